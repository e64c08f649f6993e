package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/runlog"
)

// Bounds of an analysis of the gateway's own log.
const (
	// AdviceAge is how long a report is good for everybody who asks.
	AdviceAge = time.Minute
	// MaxAdviceRuns is how many runs a report is about at most, the latest ones.
	MaxAdviceRuns = 200_000
)

// ErrNoRuns is the answer to a question about a log that has nothing to say.
var ErrNoRuns = &lanegate.Error{
	Kind: lanegate.KindNotFound, Code: "no_runs",
	Message: "the run log has no finished run in this window; ask again when some jobs have ended, or load an older log with lanegate import.",
}

// Advice is a report about the gateway's own run log, imported rows included.
type Advice struct {
	Report *runlog.Report
	At     time.Time // when it was computed
}

// Advice analyses the last window of the run log under the lanes, classes and
// resources as they are. It is computed in the background, once a minute at most
// for all who ask; when ctx ends before it is done the error says to ask again.
// Errors: ErrNoRuns; ErrUnavailable; codes in_progress and too_many_questions.
func (s *Service) Advice(ctx context.Context, window time.Duration) (Advice, error) {
	v, at, err := s.memo.get(ctx, "advice "+window.String(), AdviceAge, func(ctx context.Context) (any, error) {
		return s.analyse(ctx, window)
	})
	if err != nil {
		return Advice{}, err
	}
	return Advice{Report: v.(*runlog.Report), At: at}, nil
}

func (s *Service) analyse(ctx context.Context, window time.Duration) (*runlog.Report, error) {
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	log, notes, err := s.wholeLog(ctx, in.Now.Add(-window), in.Now.Add(time.Second))
	if err != nil {
		return nil, err
	}
	if len(log.Runs) == 0 {
		return nil, ErrNoRuns
	}
	opts := runlog.Options{Units: map[string]lanegate.Units{}, Present: &runlog.Present{Lanes: in.Lanes}, Parallel: 1}
	for _, r := range in.Resources {
		if r.Capacity > 0 {
			opts.Resources = append(opts.Resources, r)
		}
	}
	for _, c := range in.Classes {
		units, over := within(c.Units, opts.Resources)
		if over != "" && slices.Contains(log.Classes, c.ID) {
			notes = append(notes, fmt.Sprintf("%s needs more of %s than there is now; the replays give it all of it.", c.ID, over))
		}
		if c.Units = units; units != nil && slices.Contains(log.Classes, c.ID) {
			opts.Units[c.ID] = units
		}
		opts.Present.Classes = append(opts.Present.Classes, c)
	}
	report, err := runlog.Analyse(ctx, log, opts)
	if err != nil {
		return nil, err
	}
	report.Notes = append(report.Notes, notes...)
	return report, nil
}

// within is units as far as they are of resources that exist and can be had; over
// names a resource of which there is too little.
func within(units lanegate.Units, resources []lanegate.Resource) (out lanegate.Units, over string) {
	if units == nil {
		return nil, ""
	}
	out = lanegate.Units{}
	for _, r := range resources {
		n, ok := units[r.Name]
		if ok && n > r.Capacity {
			n, over = r.Capacity, r.Name
		}
		if ok {
			out[r.Name] = n
		}
	}
	return out, over
}

// wholeLog reads the run log with the imported rows, the latest MaxAdviceRuns of
// them, and says what it left out.
func (s *Service) wholeLog(ctx context.Context, from, to time.Time) (*runlog.Log, []string, error) {
	log := &runlog.Log{}
	own := runlog.Account{File: "own run log", Format: "lanegate", Dropped: []runlog.Drop{}}
	imported := runlog.Account{File: "imported run log", Format: "lanegate", Dropped: []runlog.Drop{}}
	rows, unnamed := 0, 0
	err := s.store.WholeRunLog(ctx, from, to, func(r lanegate.RunRecord) error {
		if r.Verification != "" {
			return nil
		}
		account := &own
		if r.Source == runlog.SourceImport {
			account = &imported
		}
		if err := log.Add(r); err != nil {
			if account == &imported { // classes without end, as when a class column held ids
				unnamed++
				return nil
			}
			return err
		}
		account.Rows++
		account.Used++
		if rows++; rows%MaxAdviceRuns == 0 {
			log.Trim(MaxAdviceRuns)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, nil, err
	}
	log.Trim(MaxAdviceRuns)
	log.Accounts = []runlog.Account{own}
	if imported.Rows > 0 {
		log.Accounts = append(log.Accounts, imported)
	}
	var notes []string
	if rows > MaxAdviceRuns {
		notes = append(notes, fmt.Sprintf("The log has %d runs in this window; the report is about the latest %d.", rows, MaxAdviceRuns))
	}
	if unnamed > 0 {
		notes = append(notes, plural(unnamed, "imported row")+" left out: the log has too many different classes.")
	}
	return log, notes, nil
}

// Hidden orders for promotions: from how much of the log, how long they are good
// for, and how long a promotion waits for them.
const (
	orderWindow = 30 * 24 * time.Hour
	orderAge    = 10 * time.Minute
	orderWait   = time.Second
)

// orderWarnings names the orders that the line has kept between some classes, which
// promotion takes out of it, and others: as warnings, so that what is not known
// within a second is left out.
func (s *Service) orderWarnings(ctx context.Context, classes []string) []string {
	ctx, cancel := context.WithTimeout(ctx, orderWait)
	defer cancel()
	v, _, err := s.memo.get(ctx, "orders", orderAge, func(ctx context.Context) (any, error) {
		now := time.Now()
		log, _, err := s.wholeLog(ctx, now.Add(-orderWindow), now.Add(time.Second))
		if err != nil {
			return nil, err
		}
		return runlog.HiddenOrders(log), nil
	})
	if err != nil {
		if !errors.Is(err, errInProgress) && ctx.Err() == nil {
			s.log.WarnContext(ctx, "hidden orders are not known", "err", err)
		}
		return nil
	}
	var out []string
	for _, o := range v.([]runlog.Order) {
		if slices.Contains(classes, o.First) || slices.Contains(classes, o.Then) {
			out = append(out, "serial kept an order that nothing declares: "+o.Sentence())
		}
	}
	return out[:min(len(out), maxOrderWarnings)]
}

// maxOrderWarnings bounds the orders that the answer of a promotion names.
const maxOrderWarnings = 10

// Close ends what is computed in the background. It comes before the store's.
func (s *Service) Close() error {
	s.memo.close()
	s.lines.close()
	s.lanes.close()
	return nil
}
