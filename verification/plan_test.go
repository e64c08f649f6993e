package verification_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/verification"
)

func member(class string, copies, db int) verification.Member {
	return verification.Member{Class: class, Copies: copies, Units: lanegate.Units{"db": db}}
}

// text writes rounds as "a a b | a c".
func text(rounds []lanegate.Round) string {
	var out []string
	for _, r := range rounds {
		prefix := ""
		if r.Kind == lanegate.RoundBaseline {
			prefix = "alone "
		}
		out = append(out, prefix+strings.Join(r.Classes, " "))
	}
	return strings.Join(out, " | ")
}

func TestPlan(t *testing.T) {
	for _, tt := range []struct {
		name    string
		in      verification.PlanInput
		want    string
		misfits []string
	}{
		{"nothing", verification.PlanInput{}, "", nil},
		{"two copies", verification.PlanInput{Members: []verification.Member{member("a", 2, 5)}, Available: map[string]int{"db": 15}}, "a a", nil},
		{"all at once", verification.PlanInput{Members: []verification.Member{member("b", 1, 5), member("a", 2, 5)}, Available: map[string]int{"db": 15}}, "a a b", nil},
		{"by capacity", verification.PlanInput{Members: []verification.Member{member("a", 1, 5), member("b", 1, 5), member("c", 1, 5)}, Available: map[string]int{"db": 10}}, "a b | a c | b c", nil},
		{"repeated, after the baselines", verification.PlanInput{
			Members: []verification.Member{{Class: "b", Copies: 1, Alone: 2}, {Class: "a", Copies: 1, Alone: 1}}, Repeat: 2,
		}, "alone a | alone b | alone b | a b | a b", nil},
		{"nothing used fits anywhere", verification.PlanInput{Members: []verification.Member{member("a", 3, 0)}}, "a a a", nil},
		{"gang size", verification.PlanInput{Members: []verification.Member{member("a", 1, 0), member("b", 1, 0), member("c", 1, 0)}, MaxGang: 2}, "a b | a c | b c", nil},
		{"copies above the gang size", verification.PlanInput{Members: []verification.Member{member("a", 3, 0), member("b", 1, 0)}, MaxGang: 2}, "a b",
			[]string{"3 runs of a: a round has at most 2 runs"}},
		{"one is too large", verification.PlanInput{Members: []verification.Member{member("a", 2, 5), member("b", 1, 20), member("c", 1, 5)}, Available: map[string]int{"db": 15}}, "a a c",
			[]string{"one run of b: needs 20 of db, at most 15 can be had"}},
		{"a pair is too large", verification.PlanInput{Members: []verification.Member{member("a", 1, 10), member("b", 1, 10), member("c", 1, 5)}, Available: map[string]int{"db": 15}}, "a c | b c",
			[]string{"a beside b: needs 20 of db, at most 15 can be had"}},
		{"copies are too large", verification.PlanInput{Members: []verification.Member{member("a", 4, 5)}, Available: map[string]int{"db": 15}}, "",
			[]string{"4 runs of a: needs 20 of db, at most 15 can be had"}},
		{"unknown resource", verification.PlanInput{Members: []verification.Member{member("a", 2, 1)}}, "",
			[]string{"one run of a: needs 1 of db, at most 0 can be had"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rounds, misfits := verification.Plan(tt.in)
			if got := text(rounds); got != tt.want {
				t.Errorf("rounds %q, want %q", got, tt.want)
			}
			var got []string
			for _, m := range misfits {
				got = append(got, m.String())
			}
			if diff := cmp.Diff(tt.misfits, got); diff != "" {
				t.Errorf("misfits (-want +got):\n%s", diff)
			}
		})
	}
}

// task is two classes that shall run at once; all copies of one when they are the same.
type task struct{ a, b string }

func tasksOf(in verification.PlanInput) map[task]bool {
	open := map[task]bool{}
	for i, a := range in.Members {
		if a.Copies > 1 {
			open[task{a.Class, a.Class}] = true
		}
		for _, b := range in.Members[i+1:] {
			open[task{min(a.Class, b.Class), max(a.Class, b.Class)}] = true
		}
	}
	return open
}

// weight is what runs of these classes use, and whether that is allowed.
func allowed(in verification.PlanInput, classes []string) bool {
	used := map[string]int{}
	for _, class := range classes {
		for _, m := range in.Members {
			if m.Class == class {
				for name, n := range m.Units {
					used[name] += n
				}
			}
		}
	}
	for name, n := range used {
		if n > 0 && n > in.Available[name] {
			return false
		}
	}
	return len(classes) <= in.MaxGang
}

func coveredBy(in verification.PlanInput, classes []string) []task {
	count := map[string]int{}
	for _, c := range classes {
		count[c]++
	}
	var out []task
	for t := range tasksOf(in) {
		if t.a != t.b && count[t.a] > 0 && count[t.b] > 0 {
			out = append(out, t)
		}
		for _, m := range in.Members {
			if t.a == t.b && m.Class == t.a && count[t.a] >= m.Copies {
				out = append(out, t)
			}
		}
	}
	return out
}

func randomInput(r *rand.Rand, members int) verification.PlanInput {
	in := verification.PlanInput{Available: map[string]int{"db": r.IntN(30), "vendor": r.IntN(4)}, MaxGang: 2 + r.IntN(15), Repeat: 1}
	for i := range members {
		m := verification.Member{Class: fmt.Sprintf("c%02d", i), Copies: 1 + r.IntN(3), Units: lanegate.Units{}}
		if r.IntN(4) > 0 {
			m.Units["db"] = r.IntN(9)
		}
		if r.IntN(4) == 0 {
			m.Units["vendor"] = r.IntN(3)
		}
		in.Members = append(in.Members, m)
	}
	r.Shuffle(len(in.Members), func(i, k int) { in.Members[i], in.Members[k] = in.Members[k], in.Members[i] })
	return in
}

// Whatever is asked for: every pair is covered or reported, no round is too
// large, no round is needless, and the same input gives the same plan.
func TestPlanProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 600 {
		in := randomInput(r, r.IntN(13))
		rounds, misfits := verification.Plan(in)
		open := tasksOf(in)
		reported := map[task]bool{}
		for _, m := range misfits {
			if m.B != "" {
				reported[task{min(m.A, m.B), max(m.A, m.B)}] = true
			} else {
				for t := range open {
					if t.a == m.A || t.b == m.A {
						reported[t] = true
					}
				}
			}
		}
		covered := map[task]int{}
		for _, round := range rounds {
			if !allowed(in, round.Classes) || !slices.IsSorted(round.Classes) || round.Kind != lanegate.RoundBeside {
				t.Fatalf("case %d: round %v is not allowed by %+v", n, round, in)
			}
			for _, c := range coveredBy(in, round.Classes) {
				covered[c]++
			}
		}
		for c := range open {
			if (covered[c] > 0) == reported[c] {
				t.Fatalf("case %d: %v is covered %d times, reported %v, by %s of %+v", n, c, covered[c], reported[c], text(rounds), in)
			}
		}
		for _, round := range rounds {
			if !slices.ContainsFunc(coveredBy(in, round.Classes), func(c task) bool { return covered[c] == 1 }) {
				t.Fatalf("case %d: round %v is needless in %s", n, round, text(rounds))
			}
		}
		again := in
		again.Members = slices.Clone(in.Members)
		slices.Reverse(again.Members)
		if second, _ := verification.Plan(again); text(second) != text(rounds) {
			t.Fatalf("case %d: %s, then %s", n, text(rounds), text(second))
		}
	}
}

// least is the fewest rounds that cover what can be covered, by trying all.
func least(in verification.PlanInput, rounds []lanegate.Round) int {
	var sets []map[task]bool
	var grow func(classes []string, from int)
	grow = func(classes []string, from int) {
		if !allowed(in, classes) {
			return
		}
		set := map[task]bool{}
		for _, c := range coveredBy(in, classes) {
			set[c] = true
		}
		sets = append(sets, set)
		for i := from; i < len(in.Members); i++ {
			for copies := 1; copies <= in.Members[i].Copies; copies++ {
				next := slices.Clone(classes)
				for range copies {
					next = append(next, in.Members[i].Class)
				}
				grow(next, i+1)
			}
		}
	}
	grow(nil, 0)
	open := map[task]bool{}
	for _, r := range rounds {
		for _, c := range coveredBy(in, r.Classes) {
			open[c] = true
		}
	}
	var solve func(open map[task]bool, budget int) bool
	solve = func(open map[task]bool, budget int) bool {
		var first task
		for c := range open {
			if first == (task{}) || c.a+c.b < first.a+first.b {
				first = c
			}
		}
		if first == (task{}) {
			return true
		}
		if budget == 0 {
			return false
		}
		for _, s := range sets {
			if !s[first] {
				continue
			}
			rest := map[task]bool{}
			for c := range open {
				if !s[c] {
					rest[c] = true
				}
			}
			if solve(rest, budget-1) {
				return true
			}
		}
		return false
	}
	for n := 0; ; n++ {
		if solve(open, n) {
			return n
		}
	}
}

// The greedy cover is never far from the shortest one.
func TestPlanIsNearTheShortest(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	extra := 0
	const cases = 150
	for n := range cases {
		in := randomInput(r, 2+r.IntN(4))
		rounds, _ := verification.Plan(in)
		best := least(in, rounds)
		if len(rounds) > best+1+best/3 {
			t.Errorf("case %d: %d rounds, %d would do: %s of %+v", n, len(rounds), best, text(rounds), in)
		}
		extra += len(rounds) - best
	}
	if extra > cases/5 {
		t.Errorf("%d rounds too many over %d plans", extra, cases)
	}
}

// Forty classes of which five run at once: far below one round for each pair, and
// near the least that counting allows.
func TestPlanForManyClasses(t *testing.T) {
	in := verification.PlanInput{Available: map[string]int{"db": 5}}
	for i := range 40 {
		in.Members = append(in.Members, member(fmt.Sprintf("c%02d", i), 1, 1))
	}
	rounds, misfits := verification.Plan(in)
	pairs, inOne := 40*39/2, 5*4/2
	if least := pairs / inOne; len(misfits) > 0 || len(rounds) > 2*least {
		t.Errorf("%d rounds, at least %d are needed; misfits %v", len(rounds), least, misfits)
	}
}
