package verification

import (
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
)

// Limits of what a Matcher finds, and of what a class may declare.
const (
	MaxMatches       = 20  // of one run
	MaxLine          = 500 // bytes of a line that are shown
	MaxExpressions   = 50  // of each list of a class
	MaxExpressionLen = 500 // bytes of one
)

// Matcher finds phrases of trouble in what runs print. It is safe for concurrent use.
type Matcher struct {
	phrases []phrase
	any     *regexp.Regexp // all phrases in one: most lines match none
	ignore  []*regexp.Regexp
}

type phrase struct {
	text    string // as a person reads it
	re      *regexp.Regexp
	builtin bool
}

var (
	builtinPhrases = mustBuiltin()
	deniedRE       = regexp.MustCompile(denied)
	countedRE      = regexp.MustCompile(counted)
	quotingREs     = mustAll(quoting)
)

func mustBuiltin() []phrase {
	all := make([]phrase, len(builtin))
	for i, text := range builtin {
		all[i] = phrase{text: text, re: regexp.MustCompile("(?i)" + text), builtin: true}
	}
	return all
}

func mustAll(texts []string) []*regexp.Regexp {
	all := make([]*regexp.Regexp, len(texts))
	for i, text := range texts {
		all[i] = regexp.MustCompile(text)
	}
	return all
}

// Builtin lists the expressions that every class has; they are matched without
// regard to case.
func Builtin() []string { return append([]string(nil), builtin...) }

// NewMatcher makes a Matcher for the built-in phrases and a class's own. A line
// that one of ignore matches is never trouble. The error names the expression
// and says what is wrong with it.
func NewMatcher(phrases, ignore []string) (*Matcher, error) {
	return newMatcher(builtinPhrases, phrases, ignore)
}

// NewTrialMatcher makes a Matcher for the phrases given and no others.
func NewTrialMatcher(phrases, ignore []string) (*Matcher, error) {
	return newMatcher(nil, phrases, ignore)
}

func newMatcher(base []phrase, phrases, ignore []string) (*Matcher, error) {
	m := &Matcher{phrases: make([]phrase, 0, len(phrases)+len(base))}
	for _, text := range phrases { // a class's own first: a person wrote them for it
		re, fault := compile(text)
		if fault != "" {
			return nil, fmt.Errorf("phrase %q %s", text, fault)
		}
		m.phrases = append(m.phrases, phrase{text: text, re: re})
	}
	m.phrases = append(m.phrases, base...)
	for _, text := range ignore {
		re, fault := compile(text)
		if fault != "" {
			return nil, fmt.Errorf("ignored phrase %q %s", text, fault)
		}
		m.ignore = append(m.ignore, re)
	}
	any := make([]string, len(m.phrases))
	for i, p := range m.phrases {
		any[i] = "(?:" + p.re.String() + ")"
	}
	if len(any) > 0 {
		all, err := regexp.Compile(strings.Join(any, "|"))
		if err != nil { // each is fine, together they are too large
			all = nil
		}
		m.any = all
	}
	return m, nil
}

// ordinary are lines that have nothing in common: an expression that matches all
// of them matches everything.
var ordinary = []string{"a", "42", "2026-01-31 02:00:01 INFO started", `{"rows":10}`, "* done."}

// compile returns the expression, or what is wrong with it.
func compile(text string) (*regexp.Regexp, string) {
	if text == "" {
		return nil, "is empty"
	}
	if len(text) > MaxExpressionLen {
		return nil, fmt.Sprintf("is longer than %d bytes", MaxExpressionLen)
	}
	if strings.ContainsAny(text, "\n\r") {
		return nil, "spans lines; each line of output is looked at by itself"
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, "is no regular expression (RE2): " + why(err)
	}
	if re.MatchString("") {
		return nil, "matches an empty line, and so every line"
	}
	for _, line := range ordinary {
		if !re.MatchString(line) {
			return re, ""
		}
	}
	return nil, "matches every line"
}

func why(err error) string {
	if e, ok := err.(*syntax.Error); ok { //nolint:errorlint // package regexp returns this type itself, never wrapped
		return fmt.Sprintf("%s: %q", e.Code, e.Expr)
	}
	return err.Error()
}

// CheckPhrases returns every fault of a class's own phrases and ignored phrases.
func CheckPhrases(spec lanegate.ClassSpec) []lanegate.FieldError {
	return append(checkList("/phrases", spec.Phrases), checkList("/ignore_phrases", spec.IgnorePhrases)...)
}

// CheckExpressions is CheckPhrases for one list, below the JSON pointer given.
func CheckExpressions(pointer string, texts []string) []lanegate.FieldError {
	return checkList(pointer, texts)
}

func checkList(pointer string, texts []string) []lanegate.FieldError {
	var faults []lanegate.FieldError
	if len(texts) > MaxExpressions {
		faults = append(faults, lanegate.FieldError{Pointer: pointer, Detail: fmt.Sprintf("must be at most %d expressions", MaxExpressions)})
	}
	for i, text := range texts {
		if _, fault := compile(text); fault != "" {
			faults = append(faults, lanegate.FieldError{Pointer: fmt.Sprintf("%s/%d", pointer, i), Detail: fault})
		}
	}
	return faults
}

// Find returns the lines of trouble in what a run printed and in its error, in
// their order, with the first phrase that each matches; at most MaxMatches. It
// sees what was kept of the output: dropped bytes were not searched.
func (m *Matcher) Find(output lanegate.Output, errText string) []lanegate.PhraseMatch {
	var found []lanegate.PhraseMatch
	parts := []string{output.Head, output.Tail, errText}
	if output.Dropped == 0 { // nothing is missing between the two
		parts = []string{output.Head + output.Tail, errText}
	}
	for _, part := range parts {
		found = m.search(part, found)
	}
	return found
}

// search appends what it finds in one text without a gap.
func (m *Matcher) search(text string, found []lanegate.PhraseMatch) []lanegate.PhraseMatch {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		if len(found) == MaxMatches {
			return found
		}
		p, at := m.trouble(line)
		if p == nil {
			continue
		}
		match := lanegate.PhraseMatch{Phrase: p.text, Line: cut(line, at)}
		if i > 0 {
			match.Before = cut(lines[i-1], 0)
		}
		if i+1 < len(lines) {
			match.After = cut(lines[i+1], 0)
		}
		found = append(found, match)
	}
	return found
}

// trouble returns the first phrase that line matches and where, nil when it is fine.
func (m *Matcher) trouble(line string) (*phrase, int) {
	if m.any != nil && !m.any.MatchString(line) {
		return nil, 0
	}
	for _, re := range m.ignore {
		if re.MatchString(line) {
			return nil, 0
		}
	}
	quotes := false
	for _, re := range quotingREs {
		quotes = quotes || re.MatchString(line)
	}
	for i := range m.phrases {
		p := &m.phrases[i]
		if p.builtin && quotes {
			continue
		}
		for _, at := range p.re.FindAllStringIndex(line, -1) {
			if !p.builtin || !deniedRE.MatchString(line[:at[0]]) && !countedRE.MatchString(line[at[1]:]) {
				return p, at[0]
			}
		}
	}
	return nil, 0
}

// cut shortens a line to MaxLine bytes around what starts at byte at.
func cut(line string, at int) string {
	trimmed := strings.TrimLeft(line, " \t")
	at = max(0, at-(len(line)-len(trimmed)))
	line = strings.TrimRight(trimmed, " \t")
	if len(line) <= MaxLine {
		return line
	}
	const mark = "…"
	const room = MaxLine - 2*len(mark)
	from := 0
	if at > room/2 {
		from = min(at-room/4, len(line)-room)
	}
	to := from + room
	for from > 0 && from < to && !utf8.RuneStart(line[from]) {
		from++
	}
	for to < len(line) && to > from && !utf8.RuneStart(line[to]) {
		to--
	}
	out := line[from:to]
	if from > 0 {
		out = mark + out
	}
	if to < len(line) {
		out += mark
	}
	return out
}
