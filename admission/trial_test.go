package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// trialText shows what a decision does for its trial: "take hold start
// a-1>parallel", then what it waits for, as waits does.
func trialText(d Decision) string {
	var out []string
	for _, step := range []struct {
		word string
		done bool
	}{{"take", d.Trial.Take}, {"hold", d.Trial.Hold}, {"start", d.Trial.Start}} {
		if step.done {
			out = append(out, step.word)
		}
	}
	for _, g := range d.Trial.Gang {
		job := g.Job
		if job == "" {
			job = "(" + g.Class + ")"
		}
		s := job + ">" + g.Route.Lane
		if g.Worker != "w1" {
			s += "@" + g.Worker
		}
		out = append(out, s)
	}
	for _, r := range d.Trial.Reasons {
		s := r.String()
		if len(r.Jobs) > 0 {
			s += "[" + strings.Join(r.Jobs, " ") + "]"
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

type trialCase struct {
	name   string
	edit   func(in *Input)
	trial  string
	starts []string
	waits  []string
}

// trialInput has two members, a in serial and b in parallel, another class in
// each lane (s, p), and a trial of both members that was asked for at minute 10
// (of the day before) and wants serial's slot. Each run takes 3 connections of
// 15; a's and b's jobs are due at 20 and 21.
func trialInput() Input {
	in := newInput(classes(newExec("a", "serial", db(3)), newExec("b", "parallel", db(3)),
		newClass("p", "parallel", db(3)), newClass("s", "serial", db(3))), due("a", 20), due("b", 21))
	in.Workers[0].Commands = map[string]string{"a": "v1", "b": "v1"}
	in.Trial = &Trial{
		ID: "v1", PlaceAt: at(10 - 24*60), Members: []string{"a", "b"}, FromQueue: true, WantsHold: true, Round: []string{"b", "a"},
	}
	return in
}

func edits(fs ...func(in *Input)) func(in *Input) {
	return func(in *Input) {
		for _, f := range fs {
			f(in)
		}
	}
}

// taken makes w1 the owner, with serial's slot if wanted.
func taken(in *Input) {
	in.Trial.Owner = "w1"
	if in.Trial.WantsHold {
		in.Hold = in.Trial.ID
	}
}

func noHold(in *Input)   { in.Trial.WantsHold = false }
func payloads(in *Input) { in.Trial.FromQueue = false }

func dueAlso(class string, minutes ...int) func(in *Input) {
	return func(in *Input) { in.Due = append(in.Due, due(class, minutes...)...) }
}

func inFlight(runs ...Running) func(in *Input) {
	return func(in *Input) { in.InFlight = append(in.InFlight, runs...) }
}

func runTrialCases(t *testing.T, cases []trialCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			in := trialInput()
			if tt.edit != nil {
				tt.edit(&in)
			}
			d := wantPlan(t, in, tt.starts, tt.waits)
			if diff := cmp.Diff(tt.trial, trialText(d)); diff != "" {
				t.Errorf("trial (-want +got):\n%s", diff)
			}
		})
	}
}

// askedBy adds a second worker, which lacks a's command, and lets one ask.
func askedBy(id string) func(in *Input) {
	return func(in *Input) {
		in.Workers = append(in.Workers, Worker{ID: "w2", Free: 9, SerialFree: true, Commands: map[string]string{"b": "v1"}})
		in.Asking = id
	}
}

func TestPlanTrialTurn(t *testing.T) {
	runTrialCases(t, []trialCase{
		{
			name:  "on an idle day everything happens at once",
			trial: "take hold start a-20>serial b-21>parallel",
		},
		{
			name:   "a worker without all commands leaves it serial's slot, and to members elsewhere their jobs",
			edit:   edits(askedBy("w2"), dueAlso("s", 30)),
			starts: []string{"b-21>parallel@w2"},
			waits:  []string{"a-20: verification:v1"},
			trial:  "class_limit:b[b-21]",
		},
		{
			name:  "a worker with all commands takes it",
			edit:  edits(askedBy("w1"), dueAlso("s", 30)),
			waits: []string{"s-30: verification:v1[a-20 b-21]"},
			trial: "take hold start a-20>serial b-21>parallel",
		},
		{
			name:   "it waits for serial's slot, which members no longer take, while others and members elsewhere go on",
			edit:   edits(inFlight(run("x", "s", "serial", db(3))), dueAlso("p", 30)),
			starts: []string{"b-21>parallel", "p-30>parallel"},
			waits:  []string{"a-20: verification:v1 lane_full[x]"},
			trial:  "lane_full:serial[x] class_limit:b[b-21]",
		},
		{
			name:   "behind the jobs in serial with a smaller place",
			edit:   edits(dueAlso("s", 9)),
			starts: []string{"s-9>serial", "b-21>parallel"},
			waits:  []string{"a-20: verification:v1 lane_full[s-9]"},
			trial:  "lane_full:serial[s-9] class_limit:b[b-21]",
		},
		{
			name:  "but at the place of its own smallest job",
			edit:  edits(dueAlso("s", 9), func(in *Input) { in.Due[0].PlaceAt = at(8 - 24*60) }),
			waits: []string{"s-9: verification:v1[a-20 b-21]"},
			trial: "take hold start a-20>serial b-21>parallel",
		},
		{
			name:   "which does not count when its runs are made up",
			edit:   edits(payloads, dueAlso("s", 9), func(in *Input) { in.Due[0].PlaceAt = at(8 - 24*60) }),
			starts: []string{"s-9>serial", "b-21>parallel"},
			waits:  []string{"a-20: verification:v1 lane_full[s-9]"},
			trial:  "lane_full:serial[s-9] class_limit:b[b-21]",
		},
		{
			name: "also behind one that waits for its units",
			edit: edits(dueAlso("s", 9), inFlight(run("x", "o", "parallel", db(3))), func(in *Input) {
				in.Classes[3].Units = db(13)
				in.Due = in.Due[1:]
				in.Trial.Round, in.Trial.Members = []string{"b"}, []string{"b"}
				in.lane("parallel").WidthSetting = 1
			}),
			waits: []string{"b-21: lane_full[x] resource:db[x]", "s-9: resource:db[x]"},
			trial: "kept_for:s-9[s-9]",
		},
		{
			name:  "not behind one that nobody can run, or that is paused",
			edit:  edits(dueAlso("s", 9), func(in *Input) { in.Classes[3].Paused = true }),
			waits: []string{"s-9: paused:class verification:v1[a-20 b-21]"},
			trial: "take hold start a-20>serial b-21>parallel",
		},
		{
			name:   "from the queue it waits until one of its jobs is due",
			edit:   func(in *Input) { in.Due = due("s", 30) },
			starts: []string{"s-30>serial"},
			trial:  "not_due lane_full:serial[s-30] not_due:a not_due:b",
		},
		{
			name:  "then it is taken and waits for the others, and no member starts",
			edit:  func(in *Input) { in.Due = due("b", 21) },
			waits: []string{"b-21: verification:v1"},
			trial: "take hold not_due:a",
		},
		{
			name:   "without a hold it is taken at once, and serial flows on",
			edit:   edits(noHold, dueAlso("s", 5, 9)),
			starts: []string{"s-5>serial"},
			waits:  []string{"s-9: lane_full[s-5] class_limit[s-5]"},
			trial:  "take start a-20>serial b-21>parallel",
		},
		{
			name:   "another run holds serial's slot",
			edit:   edits(func(in *Input) { in.Hold = "v0" }, inFlight(verifying(run("x", "o", "long", none), "v0"))),
			starts: []string{"b-21>parallel"},
			waits:  []string{"a-20: verification:v0[x] verification:v1"},
			trial:  "verification:v0[x] class_limit:b[b-21]",
		},
	})
}

func TestPlanTrialRound(t *testing.T) {
	runTrialCases(t, []trialCase{
		{
			name:  "it takes no slot of a lane, a class or a worker",
			edit:  edits(taken, func(in *Input) { in.Workers[0].Free, in.Workers[0].SerialFree = 0, false }, inFlight(run("x", "o", "parallel", none)), func(in *Input) { in.lane("parallel").WidthSetting = 1 }),
			trial: "start a-20>serial b-21>parallel",
		},
		{
			name: "two copies of one class in the order of its line, and the rest of the line waits",
			edit: edits(taken, dueAlso("b", 22, 23), func(in *Input) { in.Trial.Round = []string{"b", "b"} }),
			waits: []string{
				"a-20: verification:v1[b-21 b-22]", "b-23: verification:v1[b-21 b-22]",
			},
			trial: "start b-21>parallel b-22>parallel",
		},
		{
			name:  "made-up runs name no job, and members' own jobs wait",
			edit:  edits(taken, payloads),
			waits: []string{"a-20: verification:v1", "b-21: verification:v1"},
			trial: "start (a)>serial (b)>parallel",
		},
		{
			name:   "only on its owner, to which its units are left meanwhile",
			edit:   edits(taken, askedBy("w2"), dueAlso("p", 30), func(in *Input) { in.Resources[0].Capacity = 8 }),
			waits:  []string{"a-20: verification:v1", "b-21: verification:v1"},
			starts: nil,
			trial:  "",
		},
		{
			name: "while a member runs ordinarily no round starts, and nothing is withheld",
			edit: edits(taken, inFlight(run("x", "b", "parallel", db(3))), dueAlso("p", 30)),
			waits: []string{
				"a-20: verification:v1", "b-21: verification:v1 class_limit[x]",
			},
			starts: []string{"p-30>parallel"},
			trial:  "class_limit:b[x]",
		},
		{
			name: "while it lacks only units, nobody outside serial takes them",
			edit: edits(taken, inFlight(run("x", "o", "parallel", db(10))), dueAlso("p", 30)),
			waits: []string{
				"a-20: verification:v1", "b-21: verification:v1 resource:db[x]", "p-30: verification:v1 resource:db[x]",
			},
			trial: "resource:db[x]",
		},
		{
			name: "not even if they have nothing else to wait for",
			edit: edits(taken, inFlight(run("x", "o", "parallel", db(11))), dueAlso("p", 30), func(in *Input) {
				in.Classes[2].Units = db(1)
			}),
			waits: []string{
				"a-20: verification:v1", "b-21: verification:v1 resource:db[x]", "p-30: verification:v1",
			},
			trial: "resource:db[x]",
		},
		{
			name: "what it does not need stays free",
			edit: edits(taken, inFlight(run("x", "o", "parallel", db(11))), dueAlso("p", 30), func(in *Input) {
				in.Classes[2].Units = none
			}),
			starts: []string{"p-30>parallel"},
			waits:  []string{"a-20: verification:v1", "b-21: verification:v1 resource:db[x]"},
			trial:  "resource:db[x]",
		},
		{
			name: "with serial's slot it may take serial's reserve",
			edit: edits(taken, inFlight(run("x", "o", "parallel", db(9))), func(in *Input) { in.Classes[3].Units = db(12) }),
			// the reserve is 12: ordinary starts have 3 at most
			trial: "start a-20>serial b-21>parallel",
		},
		{
			name:   "without it may not, and serial goes on",
			edit:   edits(noHold, taken, inFlight(run("x", "o", "parallel", db(7))), dueAlso("s", 30)),
			starts: []string{"s-30>serial"},
			waits:  []string{"a-20: verification:v1 lane_full[s-30]", "b-21: verification:v1"},
			trial:  "resource:db[s-30 x]",
		},
		{
			name: "even above its reserve, as the round goes first when that job ends",
			edit: edits(noHold, taken, inFlight(run("x", "o", "long", db(5))), dueAlso("s", 30), func(in *Input) {
				in.Classes[2].Units = db(12) // the reserve is 15 − 12 = 3
				in.Classes[3].Units = db(8)
				in.Trial.Round = []string{"a", "b", "b"}
				in.Due = append(in.Due, due("b", 22)...)
			}),
			starts: []string{"s-30>serial"},
			waits: []string{
				"a-20: verification:v1 lane_full[s-30] resource:db[s-30 x]", "b-21: verification:v1 resource:db[s-30 x]",
			},
			trial: "resource:db[s-30 x]",
		},
		{
			name: "long runs of it count as part of the round: only the others start",
			edit: edits(taken, inFlight(verifying(run("x", "a", "serial", db(3)), "v1"))),
			waits: []string{
				"a-20: verification:v1[b-21 x]",
			},
			trial: "start b-21>parallel",
		},
		{
			name: "a round that runs already needs no start",
			edit: edits(taken, inFlight(verifying(run("x", "a", "serial", db(3)), "v1"), verifying(run("y", "b", "parallel", db(3)), "v1"))),
			waits: []string{
				"a-20: verification:v1[x y]", "b-21: verification:v1[x y]",
			},
			trial: "start",
		},
		{
			name:   "one that was started waits for nothing, and its members for it",
			edit:   edits(taken, inFlight(verifying(run("x", "a", "serial", db(3)), "v1")), dueAlso("p", 30), dueAlso("s", 31), func(in *Input) { in.Trial.Round = nil }),
			starts: []string{"p-30>parallel"},
			waits:  []string{"a-20: verification:v1[x]", "b-21: verification:v1[x]", "s-31: verification:v1[x]"},
		},
		{
			name:   "runs of an older trial go on beside nothing of their class",
			edit:   edits(taken, inFlight(verifying(run("x", "b", "parallel", db(3)), "v0"))),
			trial:  "class_limit:b[x]",
			starts: nil,
			waits:  []string{"a-20: verification:v1", "b-21: verification:v1 class_limit[x]"},
		},
	})
}

// Jobs behind those that the trial starts are explained by them.
func TestDecisionExplainsJobsOfTrials(t *testing.T) {
	in := trialInput()
	d := Plan(in)
	if rs := d.ReasonsOf("b", "b-21"); rs != nil {
		t.Errorf("a job of the round waits for %v", rs)
	}
	if diff := cmp.Diff([]Reason{{Code: EarlierOf, Jobs: []string{"b-21"}}}, d.ReasonsOf("b", "b-99")); diff != "" {
		t.Errorf("a job behind it (-want +got):\n%s", diff)
	}
}

// Of several runs the first that could do something has its turn, so that one
// that can't stops no other; one that is under way keeps it.
func TestChoose(t *testing.T) {
	in := newInput(classes(newClass("a", "serial", db(5)), newClass("b", "serial", db(5)), newClass("huge", "serial", db(99))), due("b", 1))
	trial := func(id, class string, edits ...func(*Trial)) *Trial {
		tr := &Trial{ID: id, Members: []string{class}, Round: []string{class}, WantsHold: true}
		for _, edit := range edits {
			edit(tr)
		}
		return tr
	}
	queue := func(tr *Trial) { tr.FromQueue = true }
	owned := func(tr *Trial) { tr.Owner = "gone" }
	for _, tt := range []struct {
		name       string
		candidates []*Trial
		want       string
	}{
		{"none", nil, ""},
		{"only one, whatever it is", []*Trial{trial("v1", "huge")}, "v1"},
		{"the first", []*Trial{trial("v1", "a"), trial("v2", "b")}, "v1"},
		{"above the capacities", []*Trial{trial("v1", "huge"), trial("v2", "b")}, "v2"},
		{"a class that is gone", []*Trial{trial("v1", "nobody"), trial("v2", "b")}, "v2"},
		{"nothing due", []*Trial{trial("v1", "a", queue), trial("v2", "b", queue)}, "v2"},
		{"one under way", []*Trial{trial("v1", "huge", owned), trial("v2", "b")}, "v1"},
		{"none that could", []*Trial{trial("v1", "huge"), trial("v2", "a", queue)}, "v1"},
	} {
		got := ""
		if tr := Choose(in, tt.candidates); tr != nil {
			got = tr.ID
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}
