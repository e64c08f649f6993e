package app

import (
	"strings"

	"github.com/lanegate/lanegate"
)

// sections are the keys of the file that only the file can set.
func (c *Config) sections() map[string]any {
	return map[string]any{
		"intake": &c.Intake, "tokens": &c.Tokens, "resources": &c.Resources, "lanes": &c.Lanes,
		"commands": &c.Commands, "classes": &c.Classes, "default_target": &c.DefaultTarget,
	}
}

// decodeFile takes in the file's text. Values that are hidden by the environment
// or a flag are checked only.
func (c *Config) decodeFile(path string, text []byte, hidden map[string]bool, f *faults) {
	doc, entries := parseDocument(path, text, f)
	doc.because = whyUnknown
	c.doc = doc
	sections := c.sections()
	groups := map[string]bool{}
	known := make([]string, 0, len(settings)+len(sections))
	for _, s := range settings {
		top, _, nested := strings.Cut(s.Key, ".")
		known = append(known, top)
		groups[top] = groups[top] || nested
	}
	for key := range sections {
		known = append(known, key)
	}
	for _, e := range entries {
		section, isSection := sections[e.name]
		switch {
		case isSection:
			doc.decode(e.value, e.key, section)
		case groups[e.name]:
			c.decodeGroup(doc, e, hidden)
		case !c.decodeSetting(doc, e, hidden):
			doc.unknown(e, unique(known))
		}
	}
	for id, spec := range c.Classes {
		c.Classes[id] = completeBackoff(spec)
	}
	if c.DefaultTarget != nil {
		*c.DefaultTarget = completeBackoff(*c.DefaultTarget)
	}
}

func (c *Config) decodeGroup(doc *document, group entry, hidden map[string]bool) {
	var known []string
	for _, s := range settings {
		if rest, ok := strings.CutPrefix(s.Key, group.key+"."); ok {
			known = append(known, rest)
		}
	}
	for _, e := range doc.mapping(group.value, group.key) {
		if !c.decodeSetting(doc, e, hidden) {
			doc.unknown(e, known)
		}
	}
}

// decodeSetting reports false when e is no setting.
func (c *Config) decodeSetting(doc *document, e entry, hidden map[string]bool) bool {
	for _, set := range settings {
		if set.Key != e.key {
			continue
		}
		read := doc.scalar
		if set.isList {
			read = doc.list
		}
		if text, ok := read(e.value, e.key); ok {
			c.apply(set, text, origin{doc.name, doc.lines[e.key]}, hidden[e.key], doc.faults)
		}
		return true
	}
	return false
}

// completeBackoff fills in the half of a backoff that the file leaves out.
func completeBackoff(spec lanegate.ClassSpec) lanegate.ClassSpec {
	if spec.Backoff != nil {
		b := spec.Backoff.Complete()
		spec.Backoff = &b
	}
	return spec
}

// whyUnknown explains keys that people rightly expect and that can't exist.
func whyUnknown(key string) string {
	section, _, _ := strings.Cut(key, ".")
	section, _, _ = strings.Cut(section, "[")
	last := key[strings.LastIndexByte(key, '.')+1:]
	switch section {
	case "classes", "default_target":
		switch last {
		case "lane", "max_in_flight":
			return "can't be set in a file: a class starts in the serial lane with one run at a time, and earns more by proof (a verification run, then PATCH /job-classes/{id}/promote)"
		case "command", "argv", "cmd":
			return "belongs under run: {kind: exec, command: NAME}, where NAME is declared under commands"
		}
	case "tokens":
		if last == "token" || last == "secret" {
			return "secrets don't belong into this file: give the token's SHA-256 under sha256 (lanegate token new makes both)"
		}
	case "commands":
		if last == "shell" || last == "command" || last == "cmd" {
			return "a command is a list under argv, run without a shell; for one write argv: [sh, -c, \"…\"]"
		}
	}
	return ""
}

func unique(names []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, n := range names {
		if !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}
