// Package peer has what lanegate is compared with, each behind one and the same
// small HTTP handler: other job queues, the handler alone, and bare statements.
//
// A peer gets every advantage that keeps the comparison honest: the handler
// decodes JSON leniently and knows neither tokens nor idempotency keys nor
// metrics, workers do nothing at all inside the peer's own process, and settings
// are the fastest that its documentation offers where "tuned" is said.
package peer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
)

// Job is one submission.
type Job struct {
	Class   string          `json:"class"`
	Payload json.RawMessage `json:"payload"`
}

// Queue is what stands behind the handler.
type Queue interface {
	// Add stores one job durably and returns its id.
	Add(ctx context.Context, j Job) (string, error)
	// AddMany stores many, durably when it returns.
	AddMany(ctx context.Context, jobs []Job) error
	// Work starts workers that do nothing but call ran, width at once.
	Work(ctx context.Context, width int, ran func(payload []byte)) error
	// Stop ends them; what they ran is recorded when it returns.
	Stop(ctx context.Context) error
	// Done counts the jobs whose outcome is durable.
	Done(ctx context.Context) (int, error)
	// Close ends everything.
	Close() error
}

// Config says what a peer is built on.
type Config struct {
	DSN   string // of a PostgreSQL database, or the path of a SQLite file
	Redis string // path of the socket
	Tuned bool   // the fastest settings instead of the defaults
	// Own are classes beside c00 to c19 with lanes of their own, as Prepare makes
	// them; for lanegate only.
	Own map[string]int
}

// Serve opens the peer kind and serves it on addr until ctx ends.
func Serve(ctx context.Context, kind, addr string, cfg Config) error {
	open, ok := kinds[kind]
	if !ok {
		return fmt.Errorf("there is no peer %q", kind)
	}
	q, err := open(ctx, cfg)
	if err != nil {
		return fmt.Errorf("open %s: %w", kind, err)
	}
	defer func() { _ = q.Close() }()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s := &server{q: q, starts: &Starts{}}
	srv := &http.Server{Handler: s.routes(), ReadHeaderTimeout: time.Minute}
	go func() {
		<-ctx.Done()
		_ = srv.Close()
	}()
	if err := srv.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}

var kinds = map[string]func(context.Context, Config) (Queue, error){
	"noop":          openNoop,
	"insert":        openInsert,
	"insert-sqlite": openInsertSQLite,
	"group":         openGroup,
	"river-pgx":     openRiverPgx,
	"river-pq":      openRiverPQ,
	"asynq":         openAsynq,
	"goqite-sqlite": openGoqiteSQLite,
	"goqite-pg":     openGoqitePG,
	"lanegate":      openLanegate,
}

type server struct {
	q      Queue
	starts *Starts
	ran    atomic.Int64
}

func (s *server) routes() http.Handler {
	r := chi.NewRouter()
	r.Post("/jobs", s.add)
	r.Post("/jobs/batch", s.addMany)
	r.Post("/bench/fill", s.fill)
	r.Post("/bench/work", s.work)
	r.Post("/bench/stop", s.stop)
	r.Get("/bench/ran", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.ran.Load()) })
	r.Get("/bench/done", s.done)
	r.Get("/debug/pprof/profile", pprof.Profile)
	r.Get("/debug/pprof/{name}", func(w http.ResponseWriter, r *http.Request) { pprof.Handler(chi.URLParam(r, "name")).ServeHTTP(w, r) })
	r.Get("/bench/starts", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, s.starts.Take()) })
	return r
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // an error means that the client has left
}

func fail(w http.ResponseWriter, err error) {
	answer(w, http.StatusInternalServerError, map[string]string{"detail": err.Error()})
}

// added is the answer to a submission.
type added struct {
	ID          string    `json:"id"`
	Class       string    `json:"class"`
	State       string    `json:"state"`
	SubmittedAt time.Time `json:"submitted_at"`
}

func (s *server) add(w http.ResponseWriter, r *http.Request) {
	var j Job
	if err := json.NewDecoder(r.Body).Decode(&j); err != nil {
		fail(w, err)
		return
	}
	id, err := s.q.Add(r.Context(), j)
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusCreated, added{id, j.Class, "queued", time.Now().UTC()})
}

func (s *server) addMany(w http.ResponseWriter, r *http.Request) {
	var body struct {
		Jobs []Job `json:"jobs"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		fail(w, err)
		return
	}
	if err := s.q.AddMany(r.Context(), body.Jobs); err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, map[string]int{"added": len(body.Jobs)})
}

// fill adds n jobs over some classes.
func (s *server) fill(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.Atoi(r.FormValue("n"))
	if err != nil {
		fail(w, err)
		return
	}
	for n > 0 {
		jobs := make([]Job, min(n, fillPart))
		for i := range jobs {
			jobs[i] = Job{fmt.Sprintf("c%02d", i%Classes), json.RawMessage(`{"day":"2026-11-29"}`)}
		}
		if err := s.q.AddMany(r.Context(), jobs); err != nil {
			fail(w, err)
			return
		}
		n -= len(jobs)
	}
	answer(w, http.StatusOK, nil)
}

const (
	fillPart = 5000
	// Classes is how many job classes backlogs are spread over.
	Classes = 20
)

func (s *server) work(w http.ResponseWriter, r *http.Request) {
	width, err := strconv.Atoi(r.FormValue("width"))
	if err == nil {
		err = s.q.Work(context.WithoutCancel(r.Context()), width, func(payload []byte) {
			s.ran.Add(1)
			s.starts.Note(payload)
		})
	}
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, nil)
}

func (s *server) stop(w http.ResponseWriter, r *http.Request) {
	if err := s.q.Stop(r.Context()); err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, nil)
}

func (s *server) done(w http.ResponseWriter, r *http.Request) {
	n, err := s.q.Done(r.Context())
	if err != nil {
		fail(w, err)
		return
	}
	answer(w, http.StatusOK, n)
}

// Start is when a job that carried its time of submission began.
type Start struct {
	Class string  `json:"class"`
	N     int     `json:"n"`
	Wait  float64 `json:"wait_ms"`
}

// Stamp is what such a job carries. Hold is how long it shall run.
type Stamp struct {
	Class string        `json:"class"`
	N     int           `json:"n"`    // which of the submissions
	Sent  int64         `json:"sent"` // unix nanoseconds
	Hold  time.Duration `json:"hold"`
}

// Starts collects them.
type Starts struct {
	mu  sync.Mutex
	all []Start
}

// Note takes the start of a job down, if its payload is a Stamp, and holds it for
// as long as that says.
func (s *Starts) Note(payload []byte) {
	var stamp Stamp
	if err := json.Unmarshal(payload, &stamp); err != nil || stamp.Sent == 0 {
		return
	}
	wait := float64(time.Now().UnixNano()-stamp.Sent) / 1e6
	s.mu.Lock()
	s.all = append(s.all, Start{stamp.Class, stamp.N, wait})
	s.mu.Unlock()
	time.Sleep(stamp.Hold)
}

// Take returns what was collected and forgets it.
func (s *Starts) Take() []Start {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.all
	s.all = nil
	return all
}

// ServeHTTP makes Starts the target of jobs that run as HTTP requests.
func (s *Starts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.Note(body)
	w.WriteHeader(http.StatusNoContent)
}
