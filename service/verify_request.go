package service

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/verification"
)

// Limits of a verification run.
const (
	maxCopies        = 10
	maxMembers       = 40
	maxRounds        = 20
	maxMaxHold       = 24 * time.Hour
	minMaxHold       = 10 * time.Second
	maxTrialPayloads = 20
)

// verificationDefaults fills in what was left out.
func verificationDefaults(spec lanegate.VerificationSpec) lanegate.VerificationSpec {
	spec.Members = slices.Clone(spec.Members)
	if spec.Source == "" {
		spec.Source = lanegate.SourceQueue
	}
	if spec.Rounds == 0 {
		spec.Rounds = lanegate.DefaultRoundsQueue
		if spec.Source == lanegate.SourcePayloads {
			spec.Rounds = lanegate.DefaultRoundsPayloads
		}
	}
	if spec.Criteria.MaxSlowdown == 0 {
		spec.Criteria.MaxSlowdown = lanegate.DefaultMaxSlowdown
	}
	if spec.Criteria.MinOverlap == 0 {
		spec.Criteria.MinOverlap = lanegate.DefaultMinOverlap
	}
	if spec.MaxHold == 0 {
		spec.MaxHold = lanegate.DefaultMaxHold
	}
	if spec.Check != nil && spec.Check.Kind == lanegate.RunHTTP && spec.Check.Mode == "" {
		check := *spec.Check
		check.Mode = lanegate.ModeSync
		spec.Check = &check
	}
	return spec
}

// verifyFacts is what a request is judged by beside the configuration.
type verifyFacts struct {
	of      map[string]classFacts
	workers []WorkerInfo
}

// classFacts are about one class at one fingerprint.
type classFacts struct {
	fingerprint string
	good        []time.Duration // good runs of it within KeepRunLog, sorted
}

// verificationFacts reads the run log of the members and who is live.
func (s *Service) verificationFacts(ctx context.Context, spec lanegate.VerificationSpec) (verifyFacts, error) {
	facts := verifyFacts{of: map[string]classFacts{}}
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return facts, err
	}
	if facts.workers, err = s.store.LiveWorkers(ctx); err != nil {
		return facts, err
	}
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return facts, err
	}
	for _, m := range spec.Members {
		c, err := cfg.findClass(m.Class)
		if _, known := facts.of[m.Class]; known || err != nil {
			continue
		}
		f := classFacts{fingerprint: c.Fingerprint}
		err = s.store.RunLog(ctx, c.ID, in.Now.Add(-s.opts.KeepRunLog), in.Now.Add(time.Second), func(r lanegate.RunRecord) error {
			if r.Outcome == lanegate.Succeeded && r.Verification == "" && r.Fingerprint == c.Fingerprint && !r.Estimated {
				f.good = append(f.good, r.Duration)
			}
			return nil
		})
		if err != nil {
			return facts, fmt.Errorf("read the run log of %s: %w", c.ID, err)
		}
		slices.Sort(f.good)
		facts.of[c.ID] = f
	}
	return facts, nil
}

// match says whether the facts are about the members as cfg has them.
func (f verifyFacts) match(cfg Config, spec lanegate.VerificationSpec) bool {
	for _, m := range spec.Members {
		c, err := cfg.findClass(m.Class)
		if known, ok := f.of[m.Class]; (err == nil) != ok || ok && known.fingerprint != c.Fingerprint {
			return false
		}
	}
	return true
}

// baselines are those of the run log, for the source "queue".
func (f verifyFacts) baselines(spec lanegate.VerificationSpec) map[string]lanegate.Baseline {
	if spec.Source != lanegate.SourceQueue {
		return nil
	}
	out := map[string]lanegate.Baseline{}
	for _, m := range spec.Members {
		seconds := make([]float64, 0, len(f.of[m.Class].good))
		for _, d := range f.of[m.Class].good {
			seconds = append(seconds, d.Seconds())
		}
		out[m.Class] = verification.BaselineOf(verification.FromRunLog, seconds)
	}
	return out
}

// request is the judgement of one request in progress.
type request struct {
	svc        *Service
	cfg        Config
	spec       lanegate.VerificationSpec
	opts       VerifyOptions
	facts      verifyFacts
	known      []lanegate.Class // the members that exist, each once
	conditions []Condition
}

func (r *request) refuse(code, class string, numbers map[string]any, format string, args ...any) {
	r.conditions = append(r.conditions, Condition{Code: code, Class: class, Message: fmt.Sprintf(format, args...), Numbers: numbers})
}

// judgeRequest plans what is asked for, or says everything that stands against it.
func (s *Service) judgeRequest(cfg Config, spec lanegate.VerificationSpec, o VerifyOptions, facts verifyFacts) ([]lanegate.Round, []Condition) {
	r := &request{svc: s, cfg: cfg, spec: spec, opts: o, facts: facts}
	r.judgeMembers()
	r.judgeSettings()
	r.judgeCheck()
	for _, c := range r.known {
		r.judgeClass(c)
	}
	r.judgeWorkers()
	plan := r.plan()
	return plan, r.conditions
}

func (r *request) judgeMembers() {
	if n := len(r.spec.Members); n == 0 || n > maxMembers {
		r.refuse("members", "", map[string]any{"members": n, "min": 1, "max": maxMembers}, "name 1 to %d classes as members; %d are named", maxMembers, n)
	}
	seen := map[string]bool{}
	for _, m := range r.spec.Members {
		if seen[m.Class] {
			r.refuse("duplicate_member", m.Class, nil, "%s is named twice; name it once and set its copies", m.Class)
			continue
		}
		seen[m.Class] = true
		if m.Copies < 1 || m.Copies > maxCopies {
			r.refuse("copies", m.Class, map[string]any{"copies": m.Copies, "min": 1, "max": maxCopies}, "copies of %s must be a whole number from 1 to %d", m.Class, maxCopies)
		}
		c, err := r.cfg.findClass(m.Class)
		if err != nil {
			r.refuse("unknown_class", m.Class, nil, "there is no job class %q; register it first with PUT /job-classes/%s", m.Class, m.Class)
			continue
		}
		r.known = append(r.known, c)
		r.judgePayloads(m)
	}
	if len(r.spec.Members) == 1 && r.spec.Members[0].Copies == 1 {
		r.refuse("nothing_to_prove", r.spec.Members[0].Class, nil, "one run of one class proves nothing about running at once; ask for 2 copies, or name a class to run it alongside")
	}
}

func (r *request) judgePayloads(m lanegate.VerificationMember) {
	switch {
	case len(m.Payloads) == 0:
		return
	case r.spec.Source == lanegate.SourceQueue:
		r.refuse("payloads", m.Class, nil, "payloads of %s are given, but the source \"queue\" runs jobs that are due anyway; leave them out or use the source \"payloads\"", m.Class)
		return
	case len(m.Payloads) > maxTrialPayloads:
		r.refuse("payloads", m.Class, map[string]any{"payloads": len(m.Payloads), "max": maxTrialPayloads}, "give at most %d payloads of %s", maxTrialPayloads, m.Class)
	}
	for i, p := range m.Payloads {
		if len(p) > r.svc.opts.MaxPayload {
			r.refuse("payloads", m.Class, map[string]any{"payload": i, "bytes": len(p), "max": r.svc.opts.MaxPayload}, "payload %d of %s has %d bytes, at most %d are taken", i+1, m.Class, len(p), r.svc.opts.MaxPayload)
		} else if err := CheckJSON(p, r.svc.opts.MaxDepth, ""); err != nil {
			r.refuse("payloads", m.Class, map[string]any{"payload": i}, "payload %d of %s can't be taken as JSON", i+1, m.Class)
		}
	}
}

func (r *request) judgeSettings() {
	s := r.spec
	if s.Source != lanegate.SourceQueue && s.Source != lanegate.SourcePayloads {
		r.refuse("source", "", nil, "source must be \"queue\" or \"payloads\"")
	}
	if s.Rounds < 1 || s.Rounds > maxRounds {
		r.refuse("rounds", "", map[string]any{"rounds": s.Rounds, "min": 1, "max": maxRounds}, "rounds must be a whole number from 1 to %d", maxRounds)
	}
	if c := s.Criteria; c.MaxSlowdown < 1 || math.IsNaN(c.MaxSlowdown) || math.IsInf(c.MaxSlowdown, 0) {
		r.refuse("criteria", "", map[string]any{"max_slowdown": fmt.Sprint(c.MaxSlowdown)}, "max_slowdown must be a number of at least 1: 1.5 allows half as long again")
	}
	if c := s.Criteria; !(c.MinOverlap > 0 && c.MinOverlap <= 1) {
		r.refuse("criteria", "", map[string]any{"min_overlap": fmt.Sprint(c.MinOverlap)}, "min_overlap must be a share above 0 and at most 1")
	}
	if s.Criteria.SameResult && s.Source == lanegate.SourceQueue {
		r.refuse("criteria", "", nil, "same_result compares with a run of the same payload alone, and the source \"queue\" has none; use the source \"payloads\"")
	}
	if w := s.Criteria.Window.Std(); w > 0 && s.MaxHold.Std() < w {
		r.refuse("criteria", "", map[string]any{"window_seconds": w.Seconds(), "max_hold_seconds": s.MaxHold.Std().Seconds()}, "a window of %s can't close within max_hold %s", s.Criteria.Window, s.MaxHold)
	}
	if d := s.MaxHold.Std(); d < minMaxHold || d > maxMaxHold {
		r.refuse("max_hold", "", map[string]any{"max_hold_seconds": d.Seconds(), "min_seconds": minMaxHold.Seconds(), "max_seconds": maxMaxHold.Seconds()},
			"max_hold must be from %s to %s", lanegate.FormatDuration(minMaxHold), lanegate.FormatDuration(maxMaxHold))
	}
	if !s.HoldSerial && strings.TrimSpace(s.HoldReason) == "" {
		r.refuse("hold_reason", "", nil, "with hold_serial false the serial line flows on beside the experiment; say in hold_reason why that is meant")
	}
	if len(s.Reason) > 2000 || len(s.HoldReason) > 2000 {
		r.refuse("reason", "", map[string]any{"max": 2000}, "reasons are at most 2000 bytes")
	}
}

func (r *request) judgeCheck() {
	check := r.spec.Check
	if check == nil {
		return
	}
	faults := lanegate.ClassSpec{Run: *check}.Validate()
	for _, f := range faults {
		r.refuse("check", "", nil, "check%s %s", strings.TrimPrefix(f.Pointer, "/run"), f.Detail)
	}
	switch {
	case len(faults) > 0:
	case check.Kind == lanegate.RunAgent || check.Detached():
		r.refuse("check", "", nil, "a check is run by the gateway itself: kind exec, or kind http with mode sync")
	case check.Kind == lanegate.RunExec:
		if _, ok := r.svc.cmds.Digest(check.Command); !ok {
			r.refuse("unknown_check", "", nil, "the check's command %q is not in the gateway's commands; add it to the config file and reload", check.Command)
		}
	}
}

// judgeClass looks at one member.
func (r *request) judgeClass(c lanegate.Class) {
	if c.Run.Kind == lanegate.RunAgent || c.Run.Detached() {
		r.refuse("run_kind", c.ID, map[string]any{"kind": c.Run.Kind}, "%s runs elsewhere (%s); only exec runs and http runs with mode sync can be started together", c.ID, c.Run.Kind)
	}
	if c.Paused {
		r.refuse("class_paused", c.ID, nil, "%s is paused; resume it first", c.ID)
	}
	if c.SerialBecause != "" && !r.opts.ConfirmSerial {
		r.refuse("serial_because", c.ID, map[string]any{"serial_because": c.SerialBecause}, "%s says that it must stay serial: %q. Repeat with a confirmation (confirm_serial) to try it all the same", c.ID, c.SerialBecause)
	}
	if c.Units == nil {
		for _, res := range r.cfg.Resources {
			if res.Pool {
				r.refuse("units_undeclared", c.ID, map[string]any{"resource": res.Name}, "%s does not declare how much of %s it uses; declare units, {} for none", c.ID, res.Name)
			}
		}
	}
	if r.spec.Source == lanegate.SourcePayloads && (c.Repeatable == nil || !*c.Repeatable) {
		r.refuse("not_repeatable", c.ID, nil, "%s is not declared repeatable: true, so runs with made-up payloads could do harm; declare it, or use the source \"queue\"", c.ID)
	}
	if n := len(r.facts.of[c.ID].good); r.spec.Source == lanegate.SourceQueue && n < lanegate.BaselineRuns {
		r.refuse("baseline_missing", c.ID, map[string]any{"good_runs": n, "needed": lanegate.BaselineRuns}, "%s has %s at its present fingerprint, and %d are needed to compare with; let it run on, or use the source \"payloads\"", c.ID, lanegate.Count(n, "good run"), lanegate.BaselineRuns)
	}
}

// judgeWorkers: one worker carries out the whole run, so it must have all commands.
func (r *request) judgeWorkers() {
	live := slices.DeleteFunc(slices.Clone(r.facts.workers), func(w WorkerInfo) bool { return w.Draining || w.Agent != "" })
	if slices.ContainsFunc(live, func(w WorkerInfo) bool { return canRunAll(w, r.known) }) {
		return
	}
	before := len(r.conditions)
	for _, c := range r.known {
		if !slices.ContainsFunc(live, func(w WorkerInfo) bool { return canRunAll(w, []lanegate.Class{c}) }) {
			r.refuse("no_worker", c.ID, map[string]any{"command": c.Run.Command, "live_workers": len(live)}, "no live worker has the command %q as %s was saved with it; start one, or reload its config file", c.Run.Command, c.ID)
		}
	}
	if len(r.conditions) == before && len(r.known) > 0 {
		r.refuse("no_worker", "", map[string]any{"live_workers": len(live)}, "no live worker has the commands of all members, and one must run them all")
	}
}

func canRunAll(w WorkerInfo, classes []lanegate.Class) bool {
	for _, c := range classes {
		if c.Run.Kind != lanegate.RunExec && c.Run.Kind != lanegate.RunAgent {
			continue
		}
		if digest, ok := w.Commands[c.Run.Command]; !ok || digest != c.CommandDigest {
			return false
		}
	}
	return true
}

// plan lists the rounds, as far as the members make sense.
func (r *request) plan() []lanegate.Round {
	in := verification.PlanInput{Available: map[string]int{}, Repeat: min(max(1, r.spec.Rounds), maxRounds)}
	for _, res := range r.cfg.Resources {
		in.Available[res.Name] = res.Capacity
		if !r.spec.HoldSerial {
			in.Available[res.Name] -= admission.Reserve(res, r.cfg.Classes)
		}
	}
	if len(r.known) > maxMembers {
		return nil
	}
	for _, c := range r.known {
		i := slices.IndexFunc(r.spec.Members, func(m lanegate.VerificationMember) bool { return m.Class == c.ID })
		m := r.spec.Members[i]
		member := verification.Member{Class: c.ID, Copies: min(m.Copies, maxCopies), Units: c.Using(r.cfg.Resources)}
		if r.spec.Source == lanegate.SourcePayloads {
			member.Alone = max(in.Repeat, min(len(m.Payloads), maxTrialPayloads))
		}
		in.Members = append(in.Members, member)
	}
	rounds, misfits := verification.Plan(in)
	for _, m := range misfits {
		numbers := map[string]any{"needed": m.Needed, "available": m.Available, "copies": m.Copies}
		if m.B != "" {
			numbers["beside"] = m.B
		}
		if m.Resource == "" {
			r.refuse("gang_size", m.A, numbers, "these can't run at once: %s", m)
			continue
		}
		numbers["resource"] = m.Resource
		hint := "raise its capacity, or ask for less at once"
		if !r.spec.HoldSerial {
			hint += "; with hold_serial, serial's reserve is free, too"
		}
		r.refuse("over_capacity", m.A, numbers, "these can't run at once: %s; %s", m, hint)
	}
	r.judgeTime(rounds)
	return rounds
}

// judgeTime compares what the rounds take by what the run log knows with max_hold.
func (r *request) judgeTime(rounds []lanegate.Round) {
	expected := r.expected(rounds)
	if limit := r.spec.MaxHold.Std(); expected > limit && limit > 0 {
		r.refuse("too_long", "", map[string]any{"expected_seconds": math.Ceil(expected.Seconds()), "max_hold_seconds": limit.Seconds(), "rounds": len(rounds)},
			"the %d rounds take about %s by the run log (p99), and max_hold is %s; raise max_hold, ask for fewer rounds, or set a window for long classes",
			len(rounds), expected.Round(time.Second), lanegate.FormatDuration(limit))
	}
}

// expected is the sum over the rounds of the time each takes: its longest run by
// p99. With a window a round is over when all but one run have ended or have been
// together that long, so its second longest run counts, at most the window.
// Classes without history count as nothing.
func (r *request) expected(rounds []lanegate.Round) time.Duration {
	window := r.spec.Criteria.Window.Std()
	total := time.Duration(0)
	for _, round := range rounds {
		var runs []time.Duration
		for _, class := range round.Classes {
			runs = append(runs, QuantilesOf(slices.Clone(r.facts.of[class].good)).P99)
		}
		slices.Sort(runs)
		takes := runs[len(runs)-1]
		if window > 0 && (round.Kind == lanegate.RoundBaseline || len(runs) == 1) {
			takes = min(window, takes)
		} else if window > 0 {
			takes = min(window, runs[len(runs)-2])
		}
		total += takes
	}
	return total
}
