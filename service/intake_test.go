package service_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func arrival(id, body string, attributes ...string) service.Arrival {
	a := service.Arrival{Message: lanegate.Message{ID: id, Body: body}, Receives: 1}
	for i := 0; i+1 < len(attributes); i += 2 {
		if a.Attributes == nil {
			a.Attributes = map[string]lanegate.MessageAttribute{}
		}
		a.Attributes[attributes[i]] = lanegate.MessageAttribute{Type: "String", Text: attributes[i+1]}
	}
	return a
}

// takeIn returns what became of each message: its job's payload, or the refusal's code.
func (f *fixture) takeIn(in service.Intake, messages ...service.Arrival) (got []string, jobs []string) {
	f.t.Helper()
	taken, err := f.svc.TakeIn(f.t.Context(), in, messages)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, t := range taken {
		jobs = append(jobs, t.Job)
		if e, ok := errors.AsType[*lanegate.Error](t.Err); ok {
			got = append(got, e.Code)
			continue
		} else if t.Err != nil {
			f.t.Fatal(t.Err)
		}
		j, err := f.svc.Job(f.t.Context(), t.Job)
		if err != nil {
			f.t.Fatal(err)
		}
		what := string(j.Payload)
		if t.Replayed {
			what = "again " + what
		}
		got = append(got, what)
	}
	return got, jobs
}

func (f *fixture) wantTaken(what string, got []string, want ...string) {
	f.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// C12: a message that comes again, because it could not be deleted or was sent
// twice, is the job that it was.
func TestIntakeIsIdempotent(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	byID := service.Intake{Name: "orders", Class: "c"}
	got, jobs := f.takeIn(byID, arrival("m1", `{"n":  1}`), arrival("m2", `{"n":  1}`))
	f.wantTaken("new messages", got, `{"n":  1}`, `{"n":  1}`)
	if j, _ := f.svc.Job(t.Context(), jobs[0]); jobs[0] == jobs[1] || j.Client != "intake:orders" || j.Key != "m1" {
		t.Errorf("jobs %v, client %q, key %q", jobs, j.Client, j.Key)
	}
	again, same := f.takeIn(byID, arrival("m2", `{"n":  1}`), arrival("m1", `{"n":  1}`), arrival("m3", "3"))
	f.wantTaken("with one that comes again", again, `again {"n":  1}`, `again {"n":  1}`, "3")
	if same[0] != jobs[1] || same[1] != jobs[0] {
		t.Errorf("again %v, want those of %v", same, jobs)
	}
	// Another queue's message ids are another client's keys.
	other, _ := f.takeIn(service.Intake{Name: "others", Class: "c"}, arrival("m1", "9"))
	f.wantTaken("another queue", other, "9")
	// What was sent back carries its key, whatever its id is now.
	back, _ := f.takeIn(byID, arrival("m4", "4", service.KeyAttribute, "k"), arrival("m5", "4", service.KeyAttribute, "k"), arrival("m6", "5", service.KeyAttribute, "k"))
	f.wantTaken("doubles of one that was sent back", back, "4", "again 4", "idempotency_key_reused")
}

func TestIntakeKeys(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	source := func(text string) service.KeySource {
		k, err := service.ParseKeySource(text)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	attribute := service.Intake{Name: "a", Class: "c", Key: source("attribute:run")}
	got, _ := f.takeIn(attribute, arrival("1", "1", "run", "x"), arrival("2", "1", "run", "x"), arrival("3", "1"))
	f.wantTaken("by an attribute", got, "1", "again 1", "unreadable_message")
	field := service.Intake{Name: "f", Class: "c", Key: source("field:/runs/1/a~1b~0c")}
	deep := `{"runs": [0, {"a/b~c": 12345678901234567890}]}`
	got, jobs := f.takeIn(field, arrival("1", deep), arrival("2", deep), arrival("3", `{"runs": [0]}`), arrival("4", `{"runs": [0, {"a/b~c": {}}]}`), arrival("5", `7`))
	f.wantTaken("by a field", got, deep, "again "+deep, "unreadable_message", "unreadable_message", "unreadable_message")
	if j, err := f.svc.Job(t.Context(), jobs[0]); err != nil || j.Key != "12345678901234567890" {
		t.Errorf("key %q, %v", j.Key, err)
	}
	for _, text := range []string{"", "run", "attribute:", "field:run", "header:x"} {
		if _, err := service.ParseKeySource(text); err == nil || !strings.Contains(err.Error(), "attribute:NAME") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What can't become a job is refused by itself, and holds up nothing.
func TestIntakeRefusals(t *testing.T) {
	f := newFixture(t, func(s *setup) { s.options.MaxPayload = 100 })
	f.mustPut("c", execSpec())
	f.mustPut("d", execSpec())
	got, _ := f.takeIn(service.Intake{Name: "json", Class: "c"},
		arrival("1", "hello"), arrival("2", `{"a":1,}`), arrival("3", "[1]"), arrival("4", `"`+strings.Repeat("x", 200)+`"`), arrival("5", "\"\xff\""))
	f.wantTaken("JSON bodies", got, "unreadable_message", "unreadable_message", "[1]", "payload_too_large", "unreadable_message")
	got, _ = f.takeIn(service.Intake{Name: "text", Class: "c", Text: true}, arrival("1", "a \"b\"\n<c>"), arrival("2", `{"n":1}`))
	f.wantTaken("texts", got, `"a \"b\"\n<c>"`, `"{\"n\":1}"`)
	got, _ = f.takeIn(service.Intake{Name: "lost", Class: "nowhere"}, arrival("1", "1"))
	f.wantTaken("an unknown class", got, "unknown_class")

	submissions := service.Intake{Name: "subs", Classes: []string{"c"}, Decode: func(body []byte) (service.Submission, error) {
		var s service.Submission
		if err := json.Unmarshal(body, &s); err != nil {
			return s, &lanegate.Error{Kind: lanegate.KindBadRequest, Code: "bad_json"}
		}
		return s, nil
	}}
	got, jobs := f.takeIn(submissions, arrival("1", `{"Class": "c"}`), arrival("2", `{"Class": "d"}`), arrival("3", `{`), arrival("4", `{"Class": "c", "Key": "own"}`), arrival("5", `{"Class": "c", "Worker": "w"}`))
	f.wantTaken("submissions", got, "null", "class_not_permitted", "bad_json", "null", "invalid_fields")
	for i, want := range map[int]string{0: "1", 3: "own"} {
		if j, err := f.svc.Job(t.Context(), jobs[i]); err != nil || j.Key != want {
			t.Errorf("key %q, want %q: %v", j.Key, want, err)
		}
	}
}

// A message that comes again asks for nothing: only one that was received for the
// first time can ask that a failed job runs again.
func TestIntakeRedeliveryRetriesNothing(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	in := service.Intake{Name: "subs", Decode: func([]byte) (service.Submission, error) {
		return service.Submission{Class: "c", Key: "k", RetryFailed: true}, nil
	}}
	_, jobs := f.takeIn(in, arrival("1", "x"))
	f.mustWorker("w1", 4)
	f.mustEnd(f.mustStart("w1", 4, jobs[0])[jobs[0]], lanegate.Ending{Outcome: lanegate.Failed})
	late := arrival("1", "x")
	late.Receives = 2
	f.takeIn(in, late)
	if j, _ := f.svc.Job(t.Context(), jobs[0]); j.State != lanegate.StateFailed {
		t.Errorf("after a redelivery the job is %s", j.State)
	}
	f.takeIn(in, arrival("2", "x"))
	if j, _ := f.svc.Job(t.Context(), jobs[0]); j.State != lanegate.StateQueued {
		t.Errorf("after a new message that asks for it the job is %s", j.State)
	}
}

// A database that is away refuses no message: nothing is known of any.
func TestIntakeWithoutDatabase(t *testing.T) {
	f := newFixture(t)
	f.mustPut("c", execSpec())
	if err := f.store.Close(); err != nil {
		t.Fatal(err)
	}
	if taken, err := f.svc.TakeIn(t.Context(), service.Intake{Name: "q", Class: "c"}, []service.Arrival{arrival("1", "1")}); err == nil {
		t.Errorf("taken %+v", taken)
	}
}
