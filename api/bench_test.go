package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// BenchmarkDecodeSubmit reads a submission as POST /jobs does: strictly, its
// payload kept byte for byte.
func BenchmarkDecodeSubmit(b *testing.B) {
	for _, size := range []struct {
		name    string
		payload string
	}{
		{"60B", `{"day":"2026-11-29","store":1234,"kind":"nightly"}`},
		{"64KiB", `{"rows":["` + strings.Repeat(`abcdefghijklmno","`, 4<<10) + `"]}`},
	} {
		body := fmt.Appendf(nil, `{"class":"pos-sales","payload":%s,"idempotency_key":"nightly-2026-11-29"}`, size.payload)
		b.Run(size.name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var req submitRequest
				if err := decodeBytes(body, &req, 513); err != nil {
					b.Fatal(err)
				}
				if len(req.Payload) != len(size.payload) {
					b.Fatalf("the payload has %d bytes, want %d", len(req.Payload), len(size.payload))
				}
			}
		})
	}
}

// readyStore accepts what comes and keeps none of it, so that what is measured is
// the way there and back.
type readyStore struct{ service.Store }

func (readyStore) Submit(_ context.Context, n service.NewJob) (service.Submitted, error) {
	return acceptedAt(n, time.Now()), nil
}

func (readyStore) SubmitBatch(_ context.Context, jobs []service.NewJob) ([]service.Submitted, error) {
	now := time.Now()
	out := make([]service.Submitted, len(jobs))
	for i, n := range jobs {
		out[i] = acceptedAt(n, now)
	}
	return out, nil
}

func acceptedAt(n service.NewJob, at time.Time) service.Submitted {
	at = lanegate.Micro(at)
	return service.Submitted{Lane: lanegate.LaneSerial, Job: lanegate.Job{
		ID: n.ID, Class: n.Class, Client: n.Client, Key: n.Key, State: lanegate.StateQueued,
		SubmittedAt: at, ReadyAt: at, PlaceAt: at, PlaceID: n.ID,
	}}
}

// discard takes an answer and keeps its status only; unlike a recorder it costs nothing.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(status int)      { d.status = status }

// Deadlines are a connection's.
func (d *discard) SetReadDeadline(time.Time) error  { return nil }
func (d *discard) SetWriteDeadline(time.Time) error { return nil }

// lost is a log whose lines are made, and written nowhere.
type lost struct{}

func (lost) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkSubmit is all that a submission takes but the connection and the store:
// token, strict JSON, digest, answer, access log and metrics; ns/op and allocs/op
// are those of one request, which of a batch has 1,000 jobs.
func BenchmarkSubmit(b *testing.B) {
	const payload = `{"day":"2026-11-29","store":1234,"kind":"nightly"}`
	var batch strings.Builder
	batch.WriteString(`{"jobs":[`)
	for i := range service.MaxBatchItems {
		if i > 0 {
			batch.WriteByte(',')
		}
		fmt.Fprintf(&batch, `{"class":"pos-%02d","payload":%s,"idempotency_key":"nightly-%d"}`, i%20, payload, i)
	}
	batch.WriteString(`]}`)
	tok, auth := token("bench", RoleSubmit)
	for _, bench := range []struct {
		name, path, body string
		status           int
	}{
		{"one", "/jobs", `{"class":"pos-sales","payload":` + payload + `,"idempotency_key":"nightly-2026-11-29"}`, http.StatusCreated},
		{"batch", "/jobs/batch", batch.String(), http.StatusOK},
	} {
		b.Run(bench.name, func(b *testing.B) {
			g := newGateway(b, func(s *setup) {
				s.wrap = func(st service.Store) service.Store { return readyStore{st} }
				s.api.Tokens = []Token{tok}
				s.logger = slog.New(slog.NewJSONHandler(lost{}, nil))
			})
			w := &discard{header: http.Header{}}
			body := strings.NewReader("")
			req := httptest.NewRequest(http.MethodPost, bench.path, body)
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set(auth[0], auth[1])
			req.ContentLength = int64(len(bench.body))
			b.ReportAllocs()
			for b.Loop() {
				clear(w.header)
				body.Reset(bench.body)
				g.router.ServeHTTP(w, req)
				if w.status != bench.status {
					b.Fatalf("status %d", w.status)
				}
			}
		})
	}
}
