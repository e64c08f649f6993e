package service_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

// wantWait compares the codes that a run waits for, and a piece of the words.
func (f *trial) wantWait(id, says string, codes ...string) {
	f.t.Helper()
	on, words, err := f.svc.VerificationWait(f.t.Context(), f.get(id))
	f.must(err)
	var got []string
	for _, w := range on {
		got = append(got, strings.TrimSpace(w.Reason+" "+strings.Join(w.Jobs, " ")))
	}
	if !slices.Equal(got, codes) || !strings.Contains(words, says) || (words == "") != (len(codes) == 0) {
		f.t.Errorf("it waits on %q, %q; want %q, %q", got, words, codes, says)
	}
}

func pair(classes ...string) func(*lanegate.VerificationSpec) {
	return func(s *lanegate.VerificationSpec) {
		s.Members = nil
		for _, c := range classes {
			s.Members = append(s.Members, lanegate.VerificationMember{Class: c, Copies: 1})
		}
	}
}

func TestVerificationWait(t *testing.T) {
	f := newTrial(t)
	f.mustPut("other", execSpec("db", 0))
	first := f.mustCreate(pairSpec())
	f.wantWait(first, "no job of a member is due", "not_due", "not_due:a", "not_due:b")

	running := f.mustSubmit("other")
	fences := f.mustStart("w", 4, running.ID)
	f.submitPair()
	f.wantWait(first, "lane serial is full ("+running.ID+")", "lane_full:serial "+running.ID)
	second := f.mustCreate(pairSpec(fromPayloads))
	f.wantWait(second, "verification run "+first+" comes first", "verification:"+first)

	f.mustEnd(fences[running.ID], lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Second})
	f.wantWait(first, "") // nothing but its worker
	f.mustRound(3)
	f.wantWait(first, "")
	on, _, err := f.svc.VerificationWait(t.Context(), f.get(second))
	f.must(err)
	if len(on) != 1 || on[0].Reason != "verification:"+first || len(on[0].Jobs) != 3 {
		t.Errorf("behind a running one it waits on %+v", on)
	}
	f.endRound(nil)
	f.look()
	f.wantWait(first, "")
}

// A run that can't be carried out says so, and stands in nobody's way.
func TestVerificationWaitForTheImpossible(t *testing.T) {
	f := newTrial(t)
	stuck := f.mustCreate(pairSpec())
	fits := f.mustCreate(pairSpec(pair("a", "b")))
	f.mustResource("db", 14, true)
	f.wantWait(stuck, "more of db than there is", "over_capacity:db")
	f.wantWait(fits, "no job", "not_due", "not_due:a", "not_due:b")
	f.look()
	if v := f.get(stuck); v.State != lanegate.VerificationPlanned {
		t.Errorf("a planned run ended: %+v", v.Reasons)
	}
	f.mustResource("db", 15, true)
	f.wantWait(fits, stuck, "verification:"+stuck)
}

// A running run whose next round can never start does not idle serial until
// max_hold.
func TestVerificationObstacle(t *testing.T) {
	for name, tt := range map[string]struct {
		happens func(*trial)
		says    string
	}{
		"capacity": {func(f *trial) { f.mustResource("db", 14, true) }, "round 2 of 3 can't start: it takes more of db"},
		"lane paused": {func(f *trial) {
			f.must(f.svc.PauseLane(f.t.Context(), lanegate.LaneSerial, admin))
		}, "lane serial is paused"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newTrial(t)
			id := f.mustCreate(pairSpec(func(s *lanegate.VerificationSpec) { s.Rounds = 3 }))
			f.submitPair()
			f.mustRound(3)
			f.look()
			tt.happens(f)
			f.look()
			if v := f.get(id); v.State != lanegate.VerificationRunning {
				t.Fatalf("it ended within a round: %+v", v.Reasons)
			}
			f.endRound(nil)
			f.look() // the round is over
			f.look()
			v := f.wantVerdict(id, lanegate.VerdictInconclusive, "obstacle")
			if !strings.Contains(v.Reasons[0].Message, tt.says) {
				t.Errorf("says %q, want %q", v.Reasons[0].Message, tt.says)
			}
		})
	}
}

// When max_hold is over before a round began, the verdict says what it waited for.
func TestMaxHoldSaysWhatLacked(t *testing.T) {
	f := newTrial(t)
	id := f.mustCreate(pairSpec())
	f.mustSubmit("b")
	f.mustRound(0)
	if v := f.get(id); !v.Holds() {
		t.Fatalf("it holds nothing: %+v", v)
	}
	f.wantWait(id, "2 jobs of a must be due at once", "not_due:a")
	f.clock.advance(15 * time.Minute)
	f.look()
	v := f.wantVerdict(id, lanegate.VerdictInconclusive, "max_hold")
	if m := v.Reasons[0].Message; !strings.Contains(m, "round 1 of 1 waited to start: 2 jobs of a must be due at once; ask again when") || strings.Contains(m, "raise it") {
		t.Errorf("says %q", m)
	}
}
