package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/verification"
)

// VerificationWait says what an open verification run, or its next round, waits
// for, as admission sees it: in codes, and in words for people. Both are empty
// while a round is under way, and when nothing is lacking but a worker's asking.
func (s *Service) VerificationWait(ctx context.Context, v lanegate.Verification) (on []WaitingOn, words string, err error) {
	if v.State.Final() || v.Started || v.Round >= len(v.Plan) {
		return nil, "", nil
	}
	open, err := s.store.Verifications(ctx, VerificationFilter{
		States: []lanegate.VerificationState{lanegate.VerificationPlanned, lanegate.VerificationRunning}, Limit: 1000,
	})
	if err != nil {
		return nil, "", err
	}
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return nil, "", err
	}
	reasons := trialReasons(in, v)
	if first, ok := goesFirst(in, v, open); ok && !isStanding(reasons) {
		reasons = []admission.Reason{{Code: admission.Verification, Subject: first.ID, Jobs: jobsOf(in, first.ID)}}
	}
	for _, r := range reasons {
		on = append(on, WaitingOn{Reason: r.String(), Jobs: r.Jobs})
	}
	return on, waitWords(reasons, v), nil
}

// trialReasons asks the planner why the next round of v does not start now, if it
// were the turn of v.
func trialReasons(in admission.Input, v lanegate.Verification) []admission.Reason {
	in.Asking = ""
	if in.Trial == nil || in.Trial.ID != v.ID {
		in.Trial = trialOf(v)
	}
	if step := admission.Plan(in).Trial; step != nil {
		return step.Reasons
	}
	return nil
}

// trialOf is a run as the planner sees it.
func trialOf(v lanegate.Verification) *admission.Trial {
	t := &admission.Trial{
		ID: v.ID, PlaceAt: v.CreatedAt, FromQueue: v.Spec.Source == lanegate.SourceQueue, Owner: v.Owner, WantsHold: v.Spec.HoldSerial,
	}
	for _, m := range v.Spec.Members {
		t.Members = append(t.Members, m.Class)
	}
	if !v.Started && v.Round < len(v.Plan) {
		t.Round = slices.Clone(v.Plan[v.Round].Classes)
	}
	return t
}

// goesFirst finds the run whose turn comes before that of v: the running one, else
// the oldest that can be carried out.
func goesFirst(in admission.Input, v lanegate.Verification, open []lanegate.Verification) (first lanegate.Verification, ok bool) {
	open = slices.Clone(open)
	slices.SortFunc(open, turnOrder)
	for _, other := range open {
		switch {
		case other.ID == v.ID || turnOrder(other, v) > 0:
			return first, false
		case other.State == lanegate.VerificationRunning || !isStanding(trialReasons(in, other)):
			return other, true
		}
	}
	return first, false
}

// turnOrder is the order of turns among open runs.
func turnOrder(a, b lanegate.Verification) int {
	waits := func(v lanegate.Verification) int {
		if v.State == lanegate.VerificationRunning {
			return 0
		}
		return 1
	}
	return cmp.Or(cmp.Compare(waits(a), waits(b)), a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
}

func jobsOf(in admission.Input, trial string) []string {
	var jobs []string
	for _, r := range in.InFlight {
		if r.Verification == trial {
			jobs = append(jobs, r.Job)
		}
	}
	return jobs
}

// isStanding says whether no finish can mend what a trial waits for: then all its
// reasons are such, see admission.TrialStep.
func isStanding(reasons []admission.Reason) bool {
	if len(reasons) == 0 {
		return false
	}
	switch reasons[0].Code {
	case admission.NoWorker, admission.UnknownClass, admission.Paused, admission.LaneWait, admission.OverCapacity:
		return true
	}
	return false
}

// obstacles says why the next round of a running run could never start, however
// idle everything is. What ends a run with its owner is not among them.
func obstacles(in admission.Input, v lanegate.Verification) []lanegate.VerificationReason {
	if v.Started || v.Round >= len(v.Plan) {
		return nil
	}
	reasons := trialReasons(in, v)
	if !isStanding(reasons) {
		return nil
	}
	var out []lanegate.VerificationReason
	for _, r := range reasons {
		if r.Code != admission.NoWorker || r.Subject != v.Owner {
			out = append(out, lanegate.VerificationReason{
				Code:    verification.CodeObstacle,
				Message: fmt.Sprintf("round %d of %d can't start: %s", v.Round+1, len(v.Plan), waitWord(r, v)),
			})
		}
	}
	return out
}

// maxHoldOver says in which round max_hold was over, and what that round waited for.
func maxHoldOver(in admission.Input, v lanegate.Verification) lanegate.VerificationReason {
	r := lanegate.VerificationReason{Code: verification.CodeMaxHold}
	if v.Started || v.Round >= len(v.Plan) {
		r.Message = fmt.Sprintf("max_hold of %s was over in round %d of %d; raise it, ask for fewer rounds, or set a window for long classes",
			v.Spec.MaxHold, min(v.Round+1, len(v.Plan)), len(v.Plan))
		return r
	}
	reasons := trialReasons(in, v)
	words := waitWords(reasons, v)
	if words == "" {
		words = "its worker had yet to ask for it"
	}
	r.Message = fmt.Sprintf("max_hold of %s was over while round %d of %d waited to start: %s", v.Spec.MaxHold, v.Round+1, len(v.Plan), words)
	if slices.ContainsFunc(reasons, func(r admission.Reason) bool { return r.Code == admission.NotDue }) {
		r.Message += "; ask again when these jobs are due together, or use the source \"payloads\""
	}
	return r
}

// waitWords is what v waits for, in words; "" when it waits for nothing.
func waitWords(reasons []admission.Reason, v lanegate.Verification) string {
	words := make([]string, 0, len(reasons))
	for _, r := range reasons {
		words = append(words, waitWord(r, v))
	}
	return strings.Join(words, "; ")
}

// waitWord is one reason in words.
func waitWord(r admission.Reason, v lanegate.Verification) string {
	switch r.Code {
	case admission.NoWorker:
		return noWorkerWords(r.Subject, v)
	case admission.UnknownClass:
		return fmt.Sprintf("class %s does not exist any more", r.Subject)
	case admission.Paused:
		return strings.Replace(r.Subject, ":", " ", 1) + " is paused"
	case admission.LaneWait:
		return fmt.Sprintf("no live worker serves lane %s", r.Subject)
	case admission.OverCapacity:
		return fmt.Sprintf("it takes more of %s than there is; raise the capacity, or ask for less at once", r.Subject)
	case admission.NotDue:
		return notDueWords(r.Subject, v)
	case admission.Verification:
		return fmt.Sprintf("verification run %s comes first", r.Subject)
	case admission.LaneFull:
		return fmt.Sprintf("lane %s is full%s", r.Subject, byJobs(r.Jobs))
	case admission.KeptFor:
		return fmt.Sprintf("job %s comes first in serial", r.Subject)
	case admission.ClassLimit:
		return fmt.Sprintf("runs of %s have to end first%s", r.Subject, byJobs(r.Jobs))
	case admission.ResourceFull:
		return fmt.Sprintf("too little of %s is free%s", r.Subject, byJobs(r.Jobs))
	}
	return r.String()
}

func noWorkerWords(subject string, v lanegate.Verification) string {
	switch {
	case subject == "":
		return "no live worker takes work"
	case subject == v.Owner:
		return fmt.Sprintf("its worker %s is gone", subject)
	case v.Owner != "":
		return fmt.Sprintf("its worker has the command %s no more, as the class was saved with it", subject)
	case strings.Contains(subject, "+"):
		return fmt.Sprintf("no live worker has all of the commands %s", strings.ReplaceAll(subject, "+", ", "))
	}
	return fmt.Sprintf("no live worker has the command %s as the class was saved with it", subject)
}

func notDueWords(class string, v lanegate.Verification) string {
	if class == "" {
		return "no job of a member is due"
	}
	needed := 0
	for _, c := range v.Plan[v.Round].Classes {
		if c == class {
			needed++
		}
	}
	return fmt.Sprintf("%s of %s must be due at once", plural(needed, "job"), class)
}

// shownJobs is how many jobs a sentence names before it only counts.
const shownJobs = 2

func byJobs(jobs []string) string {
	switch n := len(jobs); {
	case n == 0:
		return ""
	case n > shownJobs:
		return fmt.Sprintf(" (%s and %d more)", strings.Join(jobs[:shownJobs], ", "), n-shownJobs)
	}
	return " (" + strings.Join(jobs, ", ") + ")"
}
