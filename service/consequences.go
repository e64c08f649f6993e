package service

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// WidthChange is a lane whose width in force changes; a width of 0 stands for a
// lane that does not exist.
type WidthChange struct {
	Lane   string `json:"lane"`
	Before int    `json:"before"`
	After  int    `json:"after"`
}

// Consequences are what follows from a change. A dry run is how to see them
// before it takes effect.
type Consequences struct {
	// Widths lists the lanes whose width in force changes, by name.
	Widths []WidthChange `json:"widths"`
	// UnprovenBeside maps each class outside serial to the classes of its lane and of
	// serial that this change brings beside it although they were never proven
	// together; see unprovenBeside.
	UnprovenBeside map[string][]string `json:"unproven_beside,omitempty"`
	// Demotes lists the classes that go back to serial.
	Demotes []string `json:"demotes,omitempty"`
	// Warnings are sentences about what is allowed and may surprise.
	Warnings []string `json:"warnings,omitempty"`
	// Needs are the query parameters without which the change itself would be
	// refused, as NeedsDemote; in a dry run that did not give them.
	Needs []string `json:"needs,omitempty"`
}

// What a change may need to be accepted.
const (
	NeedsDemote = "demote=true"
	NeedsWidth  = "accept=width"
)

// proofReader returns the proofs of a class at any fingerprint; ConfigTx.Proofs is one.
type proofReader func(class string) ([]lanegate.Proof, error)

// remembered asks read once for each class.
func remembered(read proofReader) proofReader {
	known := map[string][]lanegate.Proof{}
	return func(class string) ([]lanegate.Proof, error) {
		if proofs, ok := known[class]; ok {
			return proofs, nil
		}
		proofs, err := read(class)
		if err == nil {
			known[class] = proofs
		}
		return proofs, err
	}
}

// consequencesOf compares the configuration before and after a change of tx.
func consequencesOf(tx ConfigTx, before, after Config) (Consequences, error) {
	c := Consequences{Widths: widthChanges(before, after)}
	proofs := remembered(tx.Proofs)
	was, err := unprovenBeside(before, nil, proofs)
	if err != nil {
		return c, err
	}
	is, err := unprovenBeside(after, nil, proofs)
	if err != nil {
		return c, err
	}
	c.UnprovenBeside = addedTo(was, is)
	running, err := tx.InFlight()
	if err != nil {
		return c, err
	}
	for _, old := range before.Classes {
		now, err := after.findClass(old.ID)
		if err != nil || old.Lane == lanegate.LaneSerial || now.Lane != lanegate.LaneSerial {
			continue
		}
		c.Demotes = append(c.Demotes, old.ID)
		if n := countRunning(running, old); n > 0 {
			c.Warnings = append(c.Warnings, fmt.Sprintf(
				"%s of %s go on in lane %s; the class starts nothing more until they have ended.", plural(n, "run"), old.ID, old.Lane))
		}
	}
	c.Warnings = append(c.Warnings, changeWarnings(before, after, c.Widths)...)
	return c, nil
}

func countRunning(running []admission.Running, c lanegate.Class) int {
	n := 0
	for _, r := range running {
		if r.Class == c.ID && r.Lane == c.Lane && r.Verification == "" {
			n++
		}
	}
	return n
}

func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// widthChanges lists the lanes whose width in force differs, by name.
func widthChanges(before, after Config) []WidthChange {
	wb := admission.Widths(before.Lanes, before.Classes, before.Resources)
	wa := admission.Widths(after.Lanes, after.Classes, after.Resources)
	changes := []WidthChange{}
	for name, a := range wa {
		if b := wb[name]; a.InForce != b.InForce {
			changes = append(changes, WidthChange{Lane: name, Before: b.InForce, After: a.InForce})
		}
	}
	for name, b := range wb {
		if _, still := wa[name]; !still {
			changes = append(changes, WidthChange{Lane: name, Before: b.InForce})
		}
	}
	slices.SortFunc(changes, func(a, b WidthChange) int { return strings.Compare(a.Lane, b.Lane) })
	return changes
}

// changeWarnings tells what is allowed and may surprise about the classes that
// the change moved into a lane, and about the arithmetic that it moved.
func changeWarnings(before, after Config, widths []WidthChange) []string {
	var out []string
	moved := false
	force := admission.Widths(after.Lanes, after.Classes, after.Resources)
	for _, c := range after.Classes {
		old, err := before.findClass(c.ID)
		if c.Lane == lanegate.LaneSerial || err == nil && old.Lane == c.Lane && old.MaxInFlight == c.MaxInFlight {
			continue
		}
		moved = true
		l, err := after.findLane(c.Lane)
		if err != nil {
			continue
		}
		if w := force[l.Name].InForce; c.MaxInFlight > w {
			out = append(out, fmt.Sprintf("max_in_flight %d of %s is more than the width of lane %s, %d; that limits it.", c.MaxInFlight, c.ID, l.Name, w))
		}
		if !l.Available {
			out = append(out, unavailable(l))
		}
		if l.Paused {
			out = append(out, fmt.Sprintf("Lane %s is paused: it starts nothing until it is resumed.", l.Name))
		}
		if c.Paused {
			out = append(out, fmt.Sprintf("Class %s is paused: it starts nothing until it is resumed.", c.ID))
		}
		if c.SerialBecause != "" {
			out = append(out, fmt.Sprintf("Class %s says why it must be serial: %q.", c.ID, c.SerialBecause))
		}
	}
	pool := slices.ContainsFunc(after.Resources, func(r lanegate.Resource) bool { return r.Pool })
	if n := undeclared(after); n > 0 && pool && (moved || len(widths) > 0) {
		out = append(out, fmt.Sprintf("%d of %d classes declare no units and count as 1 of each pool resource; the arithmetic is as good as that.", n, len(after.Classes)))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func unavailable(l lanegate.Lane) string {
	if l.WhenUnavailable == lanegate.FallbackWait {
		return fmt.Sprintf("Lane %s is not available now: its jobs wait until a worker serves it.", l.Name)
	}
	return fmt.Sprintf("Lane %s is not available now: its jobs run in serial until a worker serves it.", l.Name)
}

func undeclared(cfg Config) int {
	n := 0
	for _, c := range cfg.Classes {
		if c.Units == nil {
			n++
		}
	}
	return n
}

// unprovenBeside maps the given classes (nil: all) that are outside serial to the
// classes of their lane and of serial that they are not proven beside, in the
// order of cfg.
func unprovenBeside(cfg Config, only []string, proofs proofReader) (map[string][]string, error) {
	out := map[string][]string{}
	for _, c := range cfg.Classes {
		if c.Lane == lanegate.LaneSerial || only != nil && !slices.Contains(only, c.ID) {
			continue
		}
		proven, err := provenBeside(cfg, c, proofs)
		if err != nil {
			return nil, err
		}
		for _, other := range cfg.Classes {
			if other.ID != c.ID && (other.Lane == c.Lane || other.Lane == lanegate.LaneSerial) && !slices.Contains(proven, other.ID) {
				out[c.ID] = append(out[c.ID], other.ID)
			}
		}
	}
	return out, nil
}

// provenBeside lists the classes that a class is proven beside, by name: those of
// which the proofs of both, each at its present fingerprint, name the other. A
// class that was edited since, or failed, is not what it was proven beside.
func provenBeside(cfg Config, c lanegate.Class, proofs proofReader) ([]string, error) {
	beside := func(c lanegate.Class) ([]string, error) {
		all, err := proofs(c.ID)
		if err != nil {
			return nil, err
		}
		_, _, names := lanegate.Proven(all, c.Fingerprint)
		return names, nil
	}
	named, err := beside(c)
	if err != nil {
		return nil, err
	}
	var proven []string
	for _, id := range named {
		other, err := cfg.findClass(id)
		if err != nil {
			continue // it was deleted
		}
		back, err := beside(other)
		if err != nil {
			return nil, err
		}
		if slices.Contains(back, c.ID) {
			proven = append(proven, id)
		}
	}
	return proven, nil
}

// addedTo is what is has beyond was.
func addedTo(was, is map[string][]string) map[string][]string {
	out := map[string][]string{}
	for class, others := range is {
		for _, other := range others {
			if !slices.Contains(was[class], other) {
				out[class] = append(out[class], other)
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
