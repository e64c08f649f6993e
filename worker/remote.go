package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// Remote is the Backend of an agent: a gateway over HTTP. It reaps nobody, which
// gateways do. It is safe for concurrent use; Listen must run beside the worker.
type Remote struct {
	base   string
	opts   RemoteOptions
	lease  atomic.Int64 // nanoseconds; 0 before the first answer
	rings  chan struct{}
	nudges chan struct{}

	mu    sync.Mutex
	info  service.WorkerInfo // as last told to the gateway; guarded by mu
	asked chan struct{}      // holds a token after each Admit
}

// RemoteOptions configure a Remote. URL is required.
type RemoteOptions struct {
	URL       string // of the gateway, http or https
	Token     string // of role agent or run; "" for a gateway without tokens
	UserAgent string
	// Beat and KillGrace of the worker: a gateway whose lease is too short for them
	// is refused.
	Beat, KillGrace time.Duration
	// OnRegister, when not nil, is called after each registration with the new identity.
	OnRegister func(worker string)
	// OnRefuse, when not nil, is called when registering is of no use: the token, the
	// role, or the times are wrong.
	OnRefuse func(err error)
	Client   *http.Client // a client that follows no redirects, when nil
}

// NewRemote returns a Remote; it calls nobody yet.
func NewRemote(o RemoteOptions) *Remote {
	if o.Client == nil {
		// A redirect would turn a POST into a GET.
		o.Client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return &Remote{
		base: strings.TrimRight(o.URL, "/"), opts: o,
		rings: make(chan struct{}, 1), nudges: make(chan struct{}), asked: make(chan struct{}, 1),
	}
}

// wireAsk and wireGrants are POST /grants; package api documents them.
type wireAsk struct {
	Worker     string            `json:"worker"`
	Host       string            `json:"host,omitempty"`
	PID        int               `json:"pid,omitempty"`
	Lanes      []string          `json:"lanes,omitempty"`
	Slots      int               `json:"slots"`
	Commands   map[string]string `json:"commands"`
	Free       int               `json:"free"`
	SerialFree bool              `json:"serial_free"`
	Wait       string            `json:"wait,omitempty"`
	Peek       bool              `json:"peek,omitempty"`
	Draining   bool              `json:"draining,omitempty"`
}

type wireGrants struct {
	Grants []struct {
		Job            string  `json:"job"`
		Attempt        int     `json:"attempt"`
		Token          string  `json:"token"`
		Class          string  `json:"class"`
		Command        string  `json:"command"`
		Lane           string  `json:"lane"`
		LogicalDate    string  `json:"logical_date"`
		TimeoutSeconds float64 `json:"timeout_seconds"`
		Payload        string  `json:"payload"`
	} `json:"grants"`
	Work           bool     `json:"work"`
	LeaseSeconds   float64  `json:"lease_seconds"`
	NextDueSeconds *float64 `json:"next_due_seconds"`
}

type wireWorker struct {
	Worker string `json:"worker"`
}

type wireBeat struct {
	Attempts []struct {
		Job             string `json:"job"`
		Attempt         int    `json:"attempt"`
		Token           string `json:"token"`
		CancelRequested bool   `json:"cancel_requested"`
	} `json:"attempts"`
	LeaseSeconds float64 `json:"lease_seconds"`
}

// wireEnding is POST …/complete.
type wireEnding struct {
	Outcome       lanegate.Outcome `json:"outcome"`
	Error         string           `json:"error,omitempty"`
	Permanent     bool             `json:"permanent,omitempty"`
	DeferFor      string           `json:"defer_for,omitempty"`
	Output        string           `json:"output,omitempty"`
	OutputTail    string           `json:"output_tail,omitempty"`
	OutputBytes   int64            `json:"output_bytes,omitempty"`
	OutputDropped int64            `json:"output_dropped,omitempty"`
	Duration      string           `json:"duration,omitempty"`
	ExitCode      *int             `json:"exit_code,omitempty"`
	Signal        string           `json:"signal,omitempty"`
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// Lease implements LeaseGiver.
func (r *Remote) Lease() time.Duration { return time.Duration(r.lease.Load()) }

// RegisterWorker implements Backend.
func (r *Remote) RegisterWorker(ctx context.Context, w service.WorkerInfo) error {
	_, err := r.ask(ctx, w, wireAsk{})
	useless := refused(err) || lanegate.KindOf(err) == lanegate.KindUnauthorized || lanegate.KindOf(err) == lanegate.KindForbidden
	if err == nil {
		if err = CheckLease(r.Lease(), r.opts.Beat, r.opts.KillGrace); err != nil {
			useless, err = true, fmt.Errorf("the gateway's lease does not fit this agent: %w", err)
		}
	}
	if useless && r.opts.OnRefuse != nil {
		r.opts.OnRefuse(err)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.info = w
	r.mu.Unlock()
	if r.opts.OnRegister != nil {
		r.opts.OnRegister(w.ID)
	}
	return nil
}

// UpdateWorker implements Backend.
func (r *Remote) UpdateWorker(ctx context.Context, w service.WorkerInfo) error {
	r.mu.Lock()
	r.info = w
	r.mu.Unlock()
	_, err := r.ask(ctx, w, wireAsk{})
	return err
}

func (r *Remote) current() service.WorkerInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.info
}

// ask sends POST /grants with what w is; q has the rest.
func (r *Remote) ask(ctx context.Context, w service.WorkerInfo, q wireAsk) (wireGrants, error) {
	q.Worker, q.Host, q.PID, q.Lanes, q.Slots, q.Draining = w.ID, w.Host, w.PID, w.Lanes, w.Slots, w.Draining
	if q.Commands = w.Commands; q.Commands == nil {
		q.Commands = map[string]string{}
	}
	var got wireGrants
	if err := r.post(ctx, "/grants", r.opts.Token, q, &got); err != nil {
		return got, err
	}
	if got.LeaseSeconds <= 0 {
		return got, errors.New("the answer to POST /grants names no lease: is this a lanegate?")
	}
	r.lease.Store(int64(seconds(got.LeaseSeconds)))
	return got, nil
}

// Admit implements Backend. It never waits: Listen does.
func (r *Remote) Admit(ctx context.Context, ask service.Ask) (service.Admitted, error) {
	defer func() {
		select {
		case r.asked <- struct{}{}:
		default:
		}
	}()
	info := r.current()
	if info.ID != ask.Worker {
		return service.Admitted{}, lanegate.ErrWorkerGone
	}
	got, err := r.ask(ctx, info, wireAsk{Free: ask.Free, SerialFree: ask.SerialFree})
	if err != nil {
		return service.Admitted{}, err
	}
	res := service.Admitted{NextDue: -1}
	if got.NextDueSeconds != nil {
		res.NextDue = seconds(*got.NextDueSeconds)
	}
	for _, g := range got.Grants {
		res.Grants = append(res.Grants, service.Grant{
			Job:     lanegate.Job{ID: g.Job, Class: g.Class, LogicalDate: g.LogicalDate},
			Attempt: lanegate.Attempt{Job: g.Job, Number: g.Attempt, Token: g.Token, Class: g.Class, Lane: g.Lane, Worker: ask.Worker},
			Class: lanegate.Class{ID: g.Class, ClassSpec: lanegate.ClassSpec{
				Run: lanegate.Run{Kind: lanegate.RunAgent, Command: g.Command}, Timeout: lanegate.Duration(seconds(g.TimeoutSeconds)),
			}},
			Payload: []byte(g.Payload),
		})
	}
	return res, nil
}

// Beat implements Backend.
func (r *Remote) Beat(ctx context.Context, worker string) ([]service.Held, error) {
	var got wireBeat
	if err := r.post(ctx, "/grants/heartbeat", r.opts.Token, wireWorker{worker}, &got); err != nil {
		return nil, err
	}
	if got.LeaseSeconds > 0 {
		r.lease.Store(int64(seconds(got.LeaseSeconds)))
	}
	held := make([]service.Held, len(got.Attempts))
	for i, a := range got.Attempts {
		held[i] = service.Held{Fence: lanegate.Fence{Job: a.Job, Number: a.Attempt, Token: a.Token}, CancelRequested: a.CancelRequested}
	}
	return held, nil
}

// EndAttempt implements Backend. Of the answer only the error counts.
func (r *Remote) EndAttempt(ctx context.Context, f lanegate.Fence, e lanegate.Ending) (service.Ended, error) {
	body := wireEnding{
		Outcome: e.Outcome, Error: e.Error, Permanent: e.Permanent,
		Output: e.Output.Head, OutputTail: e.Output.Tail, OutputBytes: e.Output.Bytes, OutputDropped: e.Output.Dropped,
		ExitCode: e.ExitCode, Signal: e.Signal,
	}
	if e.Duration > 0 {
		body.Duration = e.Duration.String()
	}
	if e.DeferFor > 0 {
		body.DeferFor = e.DeferFor.String()
	}
	text, err := json.Marshal(body)
	if err != nil {
		return service.Ended{}, err
	}
	if e.Result != nil { // by hand: an encoder would write it anew
		text = fmt.Appendf(text[:len(text)-1], ",\"result\":%s}", e.Result)
	}
	return service.Ended{}, r.send(ctx, fmt.Sprintf("/jobs/%s/attempts/%d/complete", f.Job, f.Number), f.Token, text, nil)
}

// LeaveWorker implements Backend.
func (r *Remote) LeaveWorker(ctx context.Context, worker string) error {
	return r.post(ctx, "/grants/leave", r.opts.Token, wireWorker{worker}, nil)
}

// LiveWorkers implements Backend: nobody, as others are not an agent's to judge.
func (r *Remote) LiveWorkers(context.Context) ([]service.WorkerInfo, error) { return nil, nil }

// ReapWorker implements Backend.
func (r *Remote) ReapWorker(context.Context, string, int64) error { return nil }

// ReapOrphans implements Backend.
func (r *Remote) ReapOrphans(context.Context) error { return nil }

// Rings implements Backend.
func (r *Remote) Rings() <-chan struct{} { return r.rings }

// Nudges implements Backend: cancels come with the next beat.
func (r *Remote) Nudges() <-chan struct{} { return r.nudges }

const (
	listenWait = 25 * time.Second
	// listenPause spaces questions that failed, and those about work that the worker
	// has not taken.
	listenPause = 2 * time.Second
)

// Listen waits at the gateway for work and rings when there is some, until ctx ends.
func (r *Remote) Listen(ctx context.Context) {
	for ctx.Err() == nil {
		info := r.current()
		if info.ID == "" || info.Draining {
			sleep(ctx, 50*time.Millisecond)
			continue
		}
		call, cancel := context.WithTimeout(ctx, listenWait+callTimeout)
		got, err := r.ask(call, info, wireAsk{Wait: listenWait.String(), Peek: true})
		cancel()
		if err != nil {
			sleep(ctx, listenPause)
			continue
		}
		if !got.Work {
			continue
		}
		select {
		case <-r.asked: // of an earlier question
		default:
		}
		select {
		case r.rings <- struct{}{}:
		default: // it will ask anyway
		}
		pause := time.NewTimer(listenPause)
		select {
		case <-ctx.Done():
		case <-r.asked:
		case <-pause.C:
		}
		pause.Stop()
	}
}

// maxAnswer bounds what is read of one answer: payloads may be large.
const maxAnswer = 256 << 20

// post sends one request. An error of the gateway's is an *lanegate.Error.
func (r *Remote) post(ctx context.Context, path, token string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	return r.send(ctx, path, token, text, answer)
}

func (r *Remote) send(ctx context.Context, path, token string, text []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.base+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if r.opts.UserAgent != "" {
		req.Header.Set("User-Agent", r.opts.UserAgent)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := r.opts.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return refusal(resp.StatusCode, got)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(got, answer); err != nil {
		return fmt.Errorf("the answer to POST %s can't be read (is this a lanegate?): %w", path, err)
	}
	return nil
}

// refusal turns a problem document back into the error that it was made from.
func refusal(status int, body []byte) error {
	kinds := map[int]lanegate.Kind{
		400: lanegate.KindBadRequest, 401: lanegate.KindUnauthorized, 403: lanegate.KindForbidden, 404: lanegate.KindNotFound,
		409: lanegate.KindConflict, 413: lanegate.KindTooLarge, 415: lanegate.KindMediaType, 422: lanegate.KindInvalid,
		429: lanegate.KindLimited, 503: lanegate.KindUnavailable,
	}
	var p struct {
		Code   string                `json:"code"`
		Detail string                `json:"detail"`
		Fields []lanegate.FieldError `json:"fields"`
	}
	kind, known := kinds[status]
	if json.Unmarshal(body, &p) != nil || p.Code == "" || !known {
		return fmt.Errorf("the gateway answered %d: %.200s", status, body)
	}
	return &lanegate.Error{Kind: kind, Code: p.Code, Message: p.Detail, Fields: p.Fields}
}
