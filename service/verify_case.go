package service

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/verification"
)

// caseOf is what a verdict about v is made from.
func caseOf(v lanegate.Verification, runs []TrialRun, others []string, now time.Time) verification.Case {
	c := verification.Case{Spec: v.Spec, Plan: v.Plan, Round: v.Round, Evidence: v.Evidence, Now: now, Others: others}
	for _, r := range runs {
		c.Runs = append(c.Runs, verification.Run{
			Job: r.Job, Attempt: r.Number, Class: r.Class, Round: r.Round, StartedAt: r.StartedAt, EndedAt: r.EndedAt,
			Duration: r.Duration, Outcome: r.Outcome, ExitCode: r.ExitCode, Signal: r.Signal, Status: r.Status, Error: r.Error,
			Result: hex.EncodeToString(r.ResultDigest), Payload: hex.EncodeToString(r.PayloadDigest),
			Trouble: r.Trouble, Declared: r.Units, Measured: r.Measured, Dropped: r.Dropped,
		})
	}
	return c
}

// others names the classes that are no members.
func others(v lanegate.Verification, classes []lanegate.Class) []string {
	var names []string
	for _, c := range classes {
		if _, member := v.Fingerprints[c.ID]; !member {
			names = append(names, c.ID)
		}
	}
	return names
}

func hasRound(e lanegate.Evidence, n int) bool {
	return slices.ContainsFunc(e.Rounds, func(r lanegate.RoundEvidence) bool { return r.Round == n })
}

// withRound is e with round n, from 1, edited; it is added when it isn't there.
func withRound(e lanegate.Evidence, n int, edit func(*lanegate.RoundEvidence)) lanegate.Evidence {
	e.Rounds = slices.Clone(e.Rounds)
	i := slices.IndexFunc(e.Rounds, func(r lanegate.RoundEvidence) bool { return r.Round == n })
	if i < 0 {
		i = len(e.Rounds)
		e.Rounds = append(e.Rounds, lanegate.RoundEvidence{Round: n, Runs: []lanegate.RunEvidence{}})
	}
	edit(&e.Rounds[i])
	slices.SortFunc(e.Rounds, func(a, b lanegate.RoundEvidence) int { return cmp.Compare(a.Round, b.Round) })
	return e
}

// maxBeside bounds how many jobs of others a round names.
const maxBeside = 50

// beside names the jobs of others that ran during the round under way, as "class
// job": those the run log has, and those still in flight.
func (s *Service) beside(ctx context.Context, v lanegate.Verification, in admission.Input) ([]string, error) {
	i := slices.IndexFunc(v.Evidence.Rounds, func(r lanegate.RoundEvidence) bool { return r.Round == v.Round+1 })
	if i < 0 {
		return nil, nil
	}
	from := v.Evidence.Rounds[i].StartedAt
	var names []string
	err := s.store.RunLog(ctx, "", from, in.Now.Add(time.Second), func(r lanegate.RunRecord) error {
		if r.Verification != v.ID && r.Source != "import" {
			names = append(names, r.Class+" "+r.Job)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read what ran beside verification run %s: %w", v.ID, err)
	}
	for _, r := range in.InFlight {
		if r.Verification != v.ID {
			names = append(names, r.Class+" "+r.Job)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return names[:min(len(names), maxBeside)], nil
}

// memberObstacles says why nothing can be concluded about members any more.
func memberObstacles(v lanegate.Verification, classes []lanegate.Class) []lanegate.VerificationReason {
	var reasons []lanegate.VerificationReason
	say := func(code, class, format string) {
		reasons = append(reasons, lanegate.VerificationReason{Code: code, Class: class, Message: fmt.Sprintf(format, class)})
	}
	for _, m := range v.Spec.Members {
		i := slices.IndexFunc(classes, func(c lanegate.Class) bool { return c.ID == m.Class })
		switch {
		case i < 0:
			say(verification.CodeDeleted, m.Class, "%s was deleted meanwhile")
		case classes[i].Fingerprint != v.Fingerprints[m.Class]:
			say(verification.CodeChanged, m.Class, "%s changed meanwhile, so that nothing would be proven about it as it is now")
		case classes[i].Paused:
			say(verification.CodePaused, m.Class, "%s was paused meanwhile")
		}
	}
	return verification.SortReasons(reasons)
}

// changedRuns names members of which a run was started at another fingerprint
// than the run is about, though the class may be what it was again by now.
func changedRuns(v lanegate.Verification, runs []TrialRun) []lanegate.VerificationReason {
	var reasons []lanegate.VerificationReason
	for _, r := range runs {
		if r.Fingerprint != v.Fingerprints[r.Class] {
			reasons = append(reasons, lanegate.VerificationReason{
				Code: verification.CodeChanged, Class: r.Class,
				Message: r.Class + " was something else when a run of it was started, so that nothing would be proven about it as it is now",
			})
		}
	}
	return verification.SortReasons(reasons)
}

// freshMargin is how long before the latest start that keeps a class fresh a hold
// on serial ends.
const freshMargin = 5 * time.Minute

// limits says why a run must end now although nothing is wrong with it.
func (c *coordinator) limits(ctx context.Context, v lanegate.Verification, in admission.Input) ([]lanegate.VerificationReason, error) {
	if reasons := obstacles(in, v); len(reasons) > 0 {
		return reasons, nil
	}
	since := v.HeldAt
	if since == nil && !v.Spec.HoldSerial {
		since = v.StartedAt
	}
	if limit := v.Spec.MaxHold.Std(); since != nil && in.Now.Sub(*since) >= limit {
		return []lanegate.VerificationReason{maxHoldOver(in, v)}, nil
	}
	if !v.Holds() {
		return nil, nil
	}
	return c.freshLimits(ctx, v, in)
}

// freshLimits names the classes that wait in serial and must start about now to
// stay fresh. One that was late before the hold began can't be kept fresh by
// ending it.
func (c *coordinator) freshLimits(ctx context.Context, v lanegate.Verification, in admission.Input) ([]lanegate.VerificationReason, error) {
	waiting := slices.DeleteFunc(slices.Clone(in.Classes), func(k lanegate.Class) bool {
		route, wait := admission.RouteOf(k, in.Lanes)
		return k.FreshWithin <= 0 || k.Paused || wait || route.Lane != lanegate.LaneSerial ||
			!slices.ContainsFunc(in.Due, func(d admission.Due) bool { return d.Class == k.ID })
	})
	if len(waiting) == 0 {
		return nil, nil
	}
	counts, err := freshCounts(ctx, c.store, waiting)
	if err != nil {
		return nil, err
	}
	var reasons []lanegate.VerificationReason
	for _, k := range waiting {
		deadline := counts[k.ID].by(k)
		p99, err := c.p99Of(ctx, k.ID, in.Now)
		if err != nil {
			return nil, err
		}
		if deadline.After(*v.HeldAt) && !in.Now.Add(p99+freshMargin).Before(deadline) {
			reasons = append(reasons, lanegate.VerificationReason{
				Code: verification.CodeFresh, Class: k.ID,
				Message: fmt.Sprintf("%s waits in serial, takes %s (p99) and must succeed before %s to stay fresh", k.ID, p99.Round(time.Second), deadline.UTC().Format(time.RFC3339)),
			})
		}
	}
	return reasons, nil
}

// p99Of is how long good runs of a class take at most, of the last 30 days; it is
// kept for a while.
func (c *coordinator) p99Of(ctx context.Context, class string, now time.Time) (time.Duration, error) {
	if known, ok := c.p99[class]; ok && now.Sub(known.at) < 10*time.Minute && !now.Before(known.at) {
		return known.p99, nil
	}
	var good []time.Duration
	err := c.store.RunLog(ctx, class, now.Add(-30*24*time.Hour), now, func(r lanegate.RunRecord) error {
		if r.Outcome == lanegate.Succeeded && r.Verification == "" {
			good = append(good, r.Duration)
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read the run log of %s: %w", class, err)
	}
	p99 := QuantilesOf(good).P99
	c.p99[class] = p99At{now, p99}
	return p99, nil
}
