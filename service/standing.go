package service

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// ClassFacts are what the database knows about where a class stands.
type ClassFacts struct {
	// Because is the latest event that put the class where it is: it was created,
	// promoted or demoted.
	Because HistoryEvent
	// Proofs are what conclusive verification runs said of it, newest first.
	Proofs []lanegate.Proof
	// Failures counts the latest ordinary runs that failed, timed out or were lost,
	// up to the first that succeeded; at most FailuresCounted.
	Failures int
}

// FailuresCounted is where ClassFacts stops counting failures in a row.
const FailuresCounted = 10

// StandingEvents are the events that put a class where it is.
var StandingEvents = []string{eventCreated, eventPromoted, eventDemoted}

// failuresInRow is how many failures in a row warn.
const failuresInRow = 3

// Standing says where a class stands with its proofs, and why.
type Standing struct {
	// Because is the event that put it where it is.
	Because HistoryEvent
	// Copies and Beside are proven at its present fingerprint; 0 and nil when nothing
	// is. A pair is proven while the proofs of both name the other, see provenBeside.
	Copies int
	Beside []string
	// Latest is the latest conclusive run at its present fingerprint, nil when there is none.
	Latest *lanegate.Proof
	// UnprovenBeside are the classes of its lane and of serial that it was never
	// proven beside; nil for a class in serial.
	UnprovenBeside []string
	// Warnings are sentences about what should be looked at. None of it moves the class.
	Warnings []string
}

// Standing returns how one class stands.
func (s *Service) Standing(ctx context.Context, class string) (Standing, error) {
	all, err := s.Standings(ctx, []string{class})
	if err != nil {
		return Standing{}, err
	}
	st, ok := all[class]
	if !ok {
		return Standing{}, lanegate.ErrClassNotFound.With("there is no job class %q; GET /job-classes lists them.", class)
	}
	return st, nil
}

// Standings returns how some classes stand; a class that does not exist is left
// out. It costs a fixed number of reads of the database.
func (s *Service) Standings(ctx context.Context, classes []string) (map[string]Standing, error) {
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return nil, err
	}
	facts, now, err := s.store.ClassFacts(ctx, classes)
	if err != nil {
		return nil, err
	}
	proofs, err := s.withPartners(ctx, cfg, classes, facts)
	if err != nil {
		return nil, err
	}
	read := func(class string) ([]lanegate.Proof, error) { return proofs[class], nil }
	unproven, err := unprovenBeside(cfg, classes, read)
	if err != nil {
		return nil, err
	}
	out := make(map[string]Standing, len(classes))
	for _, c := range cfg.Classes {
		if !slices.Contains(classes, c.ID) {
			continue
		}
		st := standing(c, facts[c.ID], now)
		if st.Beside, err = provenBeside(cfg, c, read); err != nil {
			return nil, err
		}
		st.UnprovenBeside = unproven[c.ID]
		out[c.ID] = st
	}
	return out, nil
}

// withPartners is the proofs of the given classes and of those that they were
// proven beside, as a pair is proven from both sides.
func (s *Service) withPartners(ctx context.Context, cfg Config, classes []string, facts map[string]ClassFacts) (map[string][]lanegate.Proof, error) {
	proofs := map[string][]lanegate.Proof{}
	partners := map[string]bool{}
	for _, c := range cfg.Classes {
		if !slices.Contains(classes, c.ID) {
			continue
		}
		proofs[c.ID] = facts[c.ID].Proofs
		_, _, beside := lanegate.Proven(proofs[c.ID], c.Fingerprint)
		for _, other := range beside {
			if _, known := facts[other]; !known {
				partners[other] = true
			}
		}
	}
	if len(partners) == 0 {
		return proofs, nil
	}
	more, _, err := s.store.ClassFacts(ctx, slices.Sorted(maps.Keys(partners)))
	if err != nil {
		return nil, err
	}
	for id, f := range more {
		proofs[id] = f.Proofs
	}
	return proofs, nil
}

// standing sums up what is known of one class alone.
func standing(c lanegate.Class, f ClassFacts, now time.Time) Standing {
	st := Standing{Because: f.Because}
	st.Latest, st.Copies, _ = lanegate.Proven(f.Proofs, c.Fingerprint)
	for _, w := range warningsOf(c, f, now) {
		st.Warnings = append(st.Warnings, w.text)
	}
	return st
}

// warning is something that should be looked at; code names its kind in the log.
type warning struct{ code, text string }

// warningsOf lists what should be looked at. That a class outside serial is not
// proven for what it does can only come from a database that somebody else wrote:
// every change that takes a proof away moves the class back.
func warningsOf(c lanegate.Class, f ClassFacts, now time.Time) []warning {
	var out []warning
	warn := func(code, format string, args ...any) { out = append(out, warning{code, fmt.Sprintf(format, args...)}) }
	if f.Failures >= failuresInRow {
		least := ""
		if f.Failures >= FailuresCounted {
			least = "at least "
		}
		warn("failures_in_row", "the last %s%d runs failed", least, f.Failures)
	}
	if c.Lane == lanegate.LaneSerial {
		return out
	}
	latest, copies, _ := lanegate.Proven(f.Proofs, c.Fingerprint)
	switch {
	case latest == nil:
		warn("unproven", "there is no verification run of the class as it is; demote it, or verify it")
	case latest.Verdict != lanegate.VerdictPassed:
		warn("proof_voided", "the latest verification run, %s, failed and voids the proof that the class was promoted with; demote it, or mend it and verify again", latest.Verification)
	case copies < c.MaxInFlight:
		warn("copies_not_proven", "max_in_flight is %d, and the number of proven copies since the latest failed run %d; promote it again with that, or verify with more", c.MaxInFlight, copies)
	}
	if latest != nil && latest.Verdict == lanegate.VerdictPassed && now.Sub(latest.EndedAt) > lanegate.ProofAge {
		warn("proof_expired", "the latest proof is %d days old; verify again", days(now.Sub(latest.EndedAt)))
	}
	return out
}
