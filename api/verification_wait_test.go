package api

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func repeatable(c *lanegate.Class) {
	yes := true
	c.Repeatable, c.Units = &yes, lanegate.Units{}
}

// An open run says what it waits for, in codes and in its sentence.
func TestVerificationWaitingOn(t *testing.T) {
	g := newGateway(t)
	g.class("a", repeatable)
	g.class("other")
	worker := g.worker()
	running := g.submit(`{"class":"other"}`)
	if n := len(g.admit(worker)); n != 1 {
		t.Fatalf("%d started, want 1", n)
	}
	run := into[verificationResponse](g.do("POST", "/job-classes/a/verification-runs", `{"source":"payloads"}`).want(http.StatusCreated))
	got := into[verificationResponse](g.do("GET", "/verification-runs/"+run.ID, "").want(http.StatusOK))
	if len(got.WaitingOn) != 1 || got.WaitingOn[0].Reason != "lane_full:serial" || strings.Join(got.WaitingOn[0].Jobs, " ") != running.ID {
		t.Errorf("waits on %+v", got.WaitingOn)
	}
	if !strings.Contains(got.Sentence, "Waits for its turn") || !strings.Contains(got.Sentence, "It waits: lane serial is full ("+running.ID+").") {
		t.Errorf("sentence %q", got.Sentence)
	}
}

// The list leaves out the evidence, and says the same of a run as the run itself.
func TestVerificationListSentence(t *testing.T) {
	g := newGateway(t)
	ended := time.Now().UTC().Truncate(time.Microsecond)
	v := lanegate.Verification{
		ID: lanegateID(5), State: lanegate.VerificationDone, Verdict: lanegate.VerdictPassed, CreatedAt: ended, EndedAt: &ended, Round: 1,
		Spec:         lanegate.VerificationSpec{Members: []lanegate.VerificationMember{{Class: "a", Copies: 3}}, Source: lanegate.SourceQueue, Rounds: 1, MaxHold: lanegate.DefaultMaxHold},
		Plan:         []lanegate.Round{{Kind: lanegate.RoundBeside, Classes: []string{"a", "a", "a"}}},
		Fingerprints: map[string]string{"a": "f"},
		Evidence: lanegate.Evidence{
			Pairs:  []lanegate.PairEvidence{{A: "a", B: "a", Proven: true, Copies: 3}},
			Rounds: []lanegate.RoundEvidence{{Round: 1, Kind: lanegate.RoundBeside, StartedAt: ended, EndedAt: ended}},
		},
	}
	g.must(g.store.Change(t.Context(), func(tx service.ConfigTx) error {
		if err := tx.InsertVerification(v); err != nil {
			return err
		}
		return tx.SaveVerification(v)
	}))
	one := into[verificationResponse](g.do("GET", "/verification-runs/"+v.ID, "").want(http.StatusOK))
	list := into[page[verificationResponse]](g.do("GET", "/verification-runs", "").want(http.StatusOK)).Items
	if len(list) != 1 || list[0].Sentence != one.Sentence || !strings.Contains(one.Sentence, "3 copies of a") {
		t.Errorf("the list says %+v, the run %q", list, one.Sentence)
	}
	if len(list) == 1 && len(list[0].Evidence.Pairs) > 0 {
		t.Error("the list has evidence")
	}
}
