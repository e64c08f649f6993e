package store

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

type headRow struct {
	Job     string `db:"id"`
	Class   string `db:"class"`
	FirstAt dbTime `db:"first_at"`
	PlaceAt dbTime `db:"place_at"`
	PlaceID string `db:"place_id"`
	Worker  string `db:"worker"`
}

func (r headRow) due() admission.Due {
	d := admission.Due{Job: r.Job, Class: r.Class, PlaceAt: r.PlaceAt.t, PlaceID: r.PlaceID, Worker: r.Worker}
	if first := r.FirstAt.ptr(); first != nil {
		d.FirstAt = *first
	}
	return d
}

// lineRest says which lines were read in part.
type lineRest struct {
	// most has for each class how many of its jobs could start at most, where fewer
	// were read and more may stand behind them.
	most map[string]int
	// ends: all lines were read to their ends.
	ends bool
}

// behind lists those of the classes of which more could start.
func (r lineRest) behind(classes []string) (more []string) {
	for _, c := range classes {
		if _, ok := r.most[c]; ok {
			more = append(more, c)
		}
	}
	return more
}

// share is how many jobs of each class are read at first: twice its share of what is
// free, among those that had jobs in line lately. Most start fewer, and the rows of
// the others are read in vain.
func share(free, classes int) int { return 1 + 2*free/max(1, classes) }

// dueHeads reads the start of each class's line: its share of what is free, or what
// need says for the rounds of trials, one at least, and never more than class and
// worker could take. Classes whose lines were emptied lately are read to that
// number at once.
func (t *tx) dueHeads(cfg *configState, in admission.Input, need map[string]int, free int) ([]admission.Due, lineRest, error) {
	busy := map[string]int{}
	for _, r := range in.InFlight {
		if r.Verification == "" {
			busy[r.Class]++
		}
	}
	t.s.busy.Store(&busy)
	first, most := t.s.lineParts(cfg, busy, need, free)
	var due []admission.Due
	if ahead := t.lines; ahead != nil && ahead.cfg == cfg && len(need) == 0 {
		due, first, most = ahead.due, ahead.first, ahead.behind(busy, free)
	} else {
		var err error
		if due, err = t.heads(first); err != nil {
			return nil, lineRest{}, err
		}
	}
	t.lines = nil // the next decision is about what is there then
	read := map[string]int{}
	for i := range due {
		read[due[i].Class]++
	}
	t.s.lines.Store(int64(len(read)))
	for class := range most {
		if read[class] < first[class] {
			delete(most, class) // that is all there is
		}
	}
	ends := true
	for class, n := range read {
		ends = ends && n < first[class]
	}
	return due, lineRest{most, ends}, nil
}

// lineParts is how much of each class's line is read at first, and how many could
// start at most, where that is more; see dueHeads.
func (s *Store) lineParts(cfg *configState, busy, need map[string]int, free int) (first, most map[string]int) {
	first, most = map[string]int{}, map[string]int{}
	lines := max(int(s.lines.Load()), len(cfg.Classes)/8) // when all have jobs at once, not too many rows are read
	part, greedy := share(free, lines), s.emptied.Load()
	alike := 1 // for most, so that few statements read them where each has one number
	for _, c := range cfg.Classes {
		n := max(couldStart(c, busy, free), need[c.ID])
		switch {
		case need[c.ID] > 0 || greedy != nil && (*greedy)[c.ID]:
			first[c.ID] = n
		case n > part:
			most[c.ID] = n
			fallthrough
		default:
			alike = max(alike, min(n, part))
		}
	}
	for _, c := range cfg.Classes {
		if first[c.ID] == 0 {
			first[c.ID] = alike
		}
	}
	return first, most
}

// couldStart is how many jobs of a class could, and one at least: its head is read.
func couldStart(c lanegate.Class, busy map[string]int, free int) int {
	return max(1, min(c.MaxInFlight-busy[c.ID], free))
}

// linesRead are starts of lines that were read before it was known what is in flight,
// by a configuration that may be too old.
type linesRead struct {
	cfg   *configState
	first map[string]int // how much of each class's
	due   []admission.Due
}

// linesAhead says which starts of lines an admission of ask will read, as far as this
// process knows: as if what was in flight for its last one still were. nil when it
// can't tell, or when a verification run may need others.
func (s *Store) linesAhead(ask service.Ask) *linesRead {
	cfg := s.config.Load()
	if cfg == nil || cfg.trials || len(cfg.Classes) == 0 {
		return nil
	}
	var busy map[string]int
	if last := s.busy.Load(); last != nil {
		busy = *last
	}
	first, _ := s.lineParts(cfg, busy, nil, freeOf(ask))
	return &linesRead{cfg: cfg, first: first}
}

// behind has how many could start of each class of which fewer were read.
func (l *linesRead) behind(busy map[string]int, free int) map[string]int {
	most := map[string]int{}
	for _, c := range l.cfg.Classes {
		if n := couldStart(c, busy, free); n > l.first[c.ID] {
			most[c.ID] = n
		}
	}
	return most
}

// readOn reads the lines of some classes anew, as far as they can matter, and
// remembers these classes for the next pass; rest has them no more.
func (t *tx) readOn(in *admission.Input, rest lineRest, classes []string) error {
	n, greedy := map[string]int{}, map[string]bool{}
	for _, c := range classes {
		n[c], greedy[c] = rest.most[c], true
		delete(rest.most, c)
	}
	t.s.emptied.Store(&greedy)
	due, err := t.heads(n)
	if err != nil {
		return err
	}
	kept := slices.DeleteFunc(in.Due, func(d admission.Due) bool { return greedy[d.Class] })
	in.Due = slices.Concat(kept, due)
	return nil
}

// heads reads the first n[class] due jobs of each class.
func (t *tx) heads(n map[string]int) (due []admission.Due, err error) {
	var rows []headRow
	if t.s.d.starts != "" {
		var seen *sessionReads
		if t.joined != nil {
			seen = t.joined.reads
		}
		want, err := seen.wanted(n)
		if err != nil {
			return nil, err
		}
		if err := t.all(&rows, t.s.d.starts, want); err != nil {
			return nil, fmt.Errorf("read the starts of the lines: %w", err)
		}
		return dues(due, rows), nil
	}
	byN := map[int][]string{}
	for class, n := range n {
		byN[n] = append(byN[n], class)
	}
	for n, classes := range byN {
		names, err := json.Marshal(classes)
		if err != nil {
			return nil, err
		}
		q, args := t.s.d.heads, []any{string(names), n}
		if n == 1 && t.s.d.first != "" {
			q, args = t.s.d.first, args[:1]
		}
		rows = rows[:0]
		if err := t.all(&rows, q, args...); err != nil {
			return nil, fmt.Errorf("read the heads of the lines: %w", err)
		}
		due = dues(due, rows)
	}
	return due, nil
}

func dues(due []admission.Due, rows []headRow) []admission.Due {
	due = slices.Grow(due, len(rows))
	for _, r := range rows {
		due = append(due, r.due())
	}
	return due
}
