package api

import (
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// TestJobIsWrittenAsTheEncoderDoes: for a job with each of its fields set, and with
// none and all of them, the quick way writes the encoder's bytes. A field that is added
// to the answer and forgotten there shows here.
func TestJobIsWrittenAsTheEncoderDoes(t *testing.T) {
	at := time.Date(2026, 11, 29, 1, 2, 3, 40_000, time.UTC)
	accepted := jobResponse{
		ID: "0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d", Class: "pos-sales", State: "queued", Client: "cron", SubmittedAt: at, ReadyAt: at,
		Place: placeResponse{At: at, ID: "0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d"}, Links: "0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d",
	}
	if !accepted.plain() {
		t.Error("a job that was just accepted does not go the quick way")
	}
	const golden = `{"id":"0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d","class":"pos-sales","state":"queued","client":"cron",` +
		`"submitted_at":"2026-11-29T01:02:03.00004Z","ready_at":"2026-11-29T01:02:03.00004Z","attempts":0,"failures":0,` +
		`"place":{"at":"2026-11-29T01:02:03.00004Z","id":"0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d"},` +
		`"links":{"output":"/jobs/0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d/output","self":"/jobs/0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d",` +
		`"wait":"/jobs/0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d/wait"}}`
	if got, err := appendJob(nil, &accepted); err != nil || string(got) != golden {
		t.Errorf("a job that was just accepted (%v):\n%s\nwant\n%s", err, got, golden)
	}
	all := accepted
	docs := map[string]jobResponse{"accepted": accepted, "zero": {}}
	for i := range reflect.TypeFor[jobResponse]().NumField() {
		name := reflect.TypeFor[jobResponse]().Field(i).Name
		if name == "Payload" || name == "Result" {
			continue // not the encoder's, see TestPayloadIsShownByteForByte
		}
		doc := accepted
		for _, d := range []*jobResponse{&doc, &all} {
			fill(reflect.ValueOf(d).Elem().Field(i), at)
		}
		docs[name] = doc
	}
	docs["all"] = all
	for name, key := range map[string]string{"quotes": `a"b\c`, "wide": "é\u2028<>&", "control": "a\nb\x7f", "no UTF-8": "a\xff"} {
		doc := accepted
		doc.IdempotencyKey = key
		docs[name] = doc
	}
	for name, other := range map[string]time.Time{
		"whole second": at.Truncate(time.Second), "zone": at.In(time.FixedZone("", 3600)), "last year": time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC),
	} {
		doc := accepted
		doc.ReadyAt = other
		docs[name] = doc
	}
	for name, doc := range docs {
		want, err := json.Marshal(doc, encodeOptions)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := appendJob([]byte("x"), &doc)
		if err != nil || string(got) != "x"+string(want) {
			t.Errorf("%s (%v):\n%s\nthe encoder:\n%s", name, err, got[1:], want)
		}
	}
	accepted.ReadyAt = time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)
	if got, err := appendJob(nil, &accepted); err == nil {
		t.Errorf("the year 10000 is written: %s", got)
	}
}

// fill sets a field to something else than its zero value.
func fill(v reflect.Value, at time.Time) {
	switch v.Interface().(type) {
	case time.Time:
		v.Set(reflect.ValueOf(at.Add(time.Hour)))
		return
	case lanegate.Route:
		v.Set(reflect.ValueOf(lanegate.Route{Lane: "serial", Reason: "lane_unavailable", Wanted: "parallel"}))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("x-1")
	case reflect.Int:
		v.SetInt(7)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), at)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), at)
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field, at)
		}
	default:
		panic("fill knows no " + v.Type().String())
	}
}

// TestBatchIsWrittenAsTheEncoderDoes: the answer to a batch is what the documented
// batchResponse is as JSON.
func TestBatchIsWrittenAsTheEncoderDoes(t *testing.T) {
	at := time.Date(2026, 11, 29, 1, 2, 3, 40_000, time.UTC)
	job := lanegate.Job{ID: service.NewID(), Class: "c", Client: "cron", Key: "k", State: lanegate.StateQueued, SubmittedAt: at, ReadyAt: at, PlaceAt: at}
	job.PlaceID = job.ID
	skipped, done := job, job
	skipped.State, skipped.BlockedBy, skipped.FinishedAt = lanegate.StateSkipped, job.ID, &at
	done.State, done.StartedAt, done.Route = lanegate.StateRunning, &at, &lanegate.Route{Lane: "serial"}
	results := []service.Submitted{{Job: job}, {Err: lanegate.ErrKeyReused.Detail("job", job.ID)}, {Job: skipped}, {Job: done, Replayed: true}}
	refused := []error{nil, errNotObject, nil, nil, nil}

	want := batchResponse{Items: []batchItem{{Status: 201}, refusedItem(errNotObject), refusedItem(results[1].Err), {Status: 200}, {Status: 200, Replayed: true}}}
	for i, res := range map[int]service.Submitted{0: results[0], 3: results[2], 4: results[3]} {
		doc := newJobResponse(service.JobView{JobDetail: service.JobDetail{Job: res.Job}})
		want.Items[i].Job = &doc
	}
	text, err := json.Marshal(want, encodeOptions)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time in memory that was used before
		rec := httptest.NewRecorder()
		if err := encodeBatch(rec, refused, results); err != nil {
			t.Fatal(err)
		}
		if got := rec.Body.String(); got != string(text)+"\n" {
			t.Errorf("the answer is\n%s\nwant\n%s", got, text)
		}
	}
}
