package service

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
)

// IntakeClient goes before an intake's name in the name of its client: who
// submitted a job, and within whom its idempotency key counts.
const IntakeClient = "intake:"

// KeyAttribute is the message attribute that says under which idempotency key a
// message is taken in, before anything else: a message that was sent back carries
// it, so that its doubles are one job.
const KeyAttribute = "Lanegate-Idempotency-Key"

// Intake says how the messages of one queue become jobs.
type Intake struct {
	// Name of the queue for people, unique among a gateway's.
	Name string
	// Class of all jobs, whose payload is the message's body; "" where the body is a
	// submission, as POST /jobs takes it, which Decode then reads.
	Class  string
	Decode func(body []byte) (Submission, error)
	// Text: with Class, the body is any text, and the payload that text as a JSON string.
	Text bool
	// Classes that submissions may name; nil: all.
	Classes []string
	// Key is where the idempotency key is; the zero value stands for the message's id.
	Key KeySource
}

// KeySource is where in a message its idempotency key is. At most one is set.
type KeySource struct {
	Attribute string   // name of a message attribute
	Field     []string // path into the body's JSON
}

// ParseKeySource reads "attribute:NAME" and "field:/path/to/it", a JSON pointer
// (RFC 6901).
func ParseKeySource(text string) (KeySource, error) {
	if name, ok := strings.CutPrefix(text, "attribute:"); ok && name != "" {
		return KeySource{Attribute: name}, nil
	}
	if pointer, ok := strings.CutPrefix(text, "field:/"); ok {
		parts := strings.Split(pointer, "/")
		for i, p := range parts {
			parts[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(p)
		}
		return KeySource{Field: parts}, nil
	}
	return KeySource{}, fmt.Errorf("%q says of no place where a key could be: write attribute:NAME, or field:/path with the field's JSON pointer in the body", text)
}

// Origin is the message that a job came in with.
type Origin struct {
	Queue   string // the intake's name
	Message lanegate.Message
}

// Arrival is a received message.
type Arrival struct {
	lanegate.Message
	// Receives counts how often it was received, this time included.
	Receives int
}

// Taken is what became of one message. Without an Err its job is committed, and the
// message has done its duty; with one it is refused, and will be as it is.
type Taken struct {
	Job      string
	Replayed bool // the job was there already
	Err      error
}

// TakeIn makes jobs of messages, in one transaction and in their order. An error
// means that nothing is known of any; taking the same messages in again is safe.
func (s *Service) TakeIn(ctx context.Context, in Intake, messages []Arrival) ([]Taken, error) {
	taken := make([]Taken, len(messages))
	var subs []Submission
	var index []int
	for i, m := range messages {
		sub, err := in.read(m)
		if err != nil {
			taken[i].Err = err
			continue
		}
		subs, index = append(subs, sub), append(index, i)
	}
	if len(subs) == 0 {
		return taken, nil
	}
	results, err := s.SubmitBatch(ctx, IntakeClient+in.Name, subs)
	if err != nil {
		return nil, err
	}
	for k, res := range results {
		if taken[index[k]] = (Taken{Job: res.Job.ID, Replayed: res.Replayed, Err: res.Err}); res.Err != nil && !lasting(res.Err) {
			return nil, res.Err
		}
	}
	return taken, nil
}

// lasting says whether the same submission would be refused again.
func lasting(err error) bool {
	k := lanegate.KindOf(err)
	return k != lanegate.KindUnavailable && k != lanegate.KindLimited
}

// unreadable is a message that is none of those the intake is for.
func unreadable(format string, args ...any) error {
	return &lanegate.Error{Kind: lanegate.KindBadRequest, Code: "unreadable_message", Message: fmt.Sprintf(format, args...)}
}

// read makes a submission of a message.
func (in Intake) read(m Arrival) (Submission, error) {
	if !utf8.ValidString(m.Body) {
		return Submission{}, unreadable("the body is not UTF-8 text")
	}
	sub := Submission{Class: in.Class, Payload: []byte(m.Body)}
	switch {
	case in.Class == "":
		var err error
		if sub, err = in.Decode([]byte(m.Body)); err != nil {
			return sub, err
		}
		if in.Classes != nil && sub.Class != "" && !slices.Contains(in.Classes, sub.Class) {
			return sub, &lanegate.Error{Kind: lanegate.KindForbidden, Code: "class_not_permitted", Message: fmt.Sprintf("this queue may not submit jobs of class %q", sub.Class)}
		}
		// A message that comes again is no wish of anybody's to run its job again.
		sub.RetryFailed = sub.RetryFailed && m.Receives <= 1
	case in.Text:
		sub.Payload = quoted(m.Body)
	case !json.Valid(sub.Payload):
		return sub, unreadable("the body is not JSON; where the queue's messages are plain texts, set body: text in its intake")
	}
	if key, ok := m.Attributes[KeyAttribute]; ok && key.Text != "" {
		sub.Key = key.Text
	} else if sub.Key == "" {
		key, err := in.Key.of(m.Message)
		if err != nil {
			return sub, err
		}
		sub.Key = key
	}
	sub.Origin = &Origin{Queue: in.Name, Message: m.Message}
	return sub, nil
}

// quoted is a text as a JSON string, with nothing escaped that need not be.
func quoted(text string) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(text) // a string into memory
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// of is the message's key. A message without the one that was named is refused: a
// key made up for it would let its repeats run again.
func (k KeySource) of(m lanegate.Message) (string, error) {
	switch {
	case k.Attribute != "":
		if a, ok := m.Attributes[k.Attribute]; ok && a.Text != "" {
			return a.Text, nil
		}
		return "", unreadable("it has no message attribute %q, which is to be its idempotency key", k.Attribute)
	case k.Field != nil:
		if key, ok := fieldText([]byte(m.Body), k.Field); ok {
			return key, nil
		}
		return "", unreadable("its body has no text or number at /%s, which is to be its idempotency key", strings.Join(k.Field, "/"))
	}
	return m.ID, nil
}

// fieldText is the text or the number, as it is written, at a path of a JSON text.
func fieldText(body []byte, path []string) (string, bool) {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return "", false
	}
	for _, name := range path {
		switch parent := v.(type) {
		case map[string]any:
			v = parent[name]
		case []any:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(parent) {
				return "", false
			}
			v = parent[i]
		default:
			return "", false
		}
	}
	switch leaf := v.(type) {
	case string:
		return leaf, leaf != ""
	case json.Number:
		return leaf.String(), true
	}
	return "", false
}
