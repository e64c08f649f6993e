package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"github.com/lanegate/lanegate"
)

// Exit codes of submit beside 0 and 2.
const (
	exitFailed      = 1 // the job failed
	exitNotRun      = 3 // cancelled, or skipped by its class's overlap policy
	exitUnreachable = 4 // no answer within --retry-for
	exitStillOpen   = 5 // --timeout is over; the job goes on
)

type submitCmd struct {
	Class       string        `arg:"" help:"Job class, e.g. pos-sales."`
	Payload     string        `placeholder:"JSON|@FILE|-" help:"Payload: a JSON text, a file, or - for standard input. Handed on byte for byte; null when left out."`
	Key         string        `placeholder:"KEY" help:"Idempotency key: the same key never makes a second job. One is made up when left out, so that this call's own retries are safe."`
	RunAt       string        `placeholder:"TIME" help:"Not before this time (RFC 3339)."`
	LogicalDate string        `placeholder:"DATE" help:"The day or instant the job is about, e.g. 2026-11-28."`
	RetryFailed bool          `help:"If the key belongs to a job that failed, run that one again."`
	Wait        bool          `help:"Wait until the job has ended, print its result, and exit as it ended."`
	Timeout     time.Duration `placeholder:"2h" help:"With --wait: give up waiting after this time; the job goes on. No limit when left out."`
	clientFlags
}

// Help implements kong.HelpProvider.
func (submitCmd) Help() string {
	return `Prints the job's id; with --wait its result instead. Everything else goes to standard error.

Exit codes:

    0  accepted; with --wait: the job succeeded
    1  with --wait: the job failed
    2  refused: wrong usage, unknown class, bad payload, missing permission
    3  with --wait: the job was cancelled, or skipped because one of its class was due
    4  the gateway did not answer, or stayed overloaded, for --retry-for
    5  with --wait: --timeout is over, the job goes on

Examples:

    lanegate submit pos-sales --payload '{"date": "2026-11-28"}' --wait
    lanegate submit nightly --payload @job.json --key "nightly-$(date -u +%F)"
    generate-job | lanegate submit nightly --payload - --logical-date 2026-11-28`
}

// job is what submit reads of a job.
type job struct {
	ID        string          `json:"id"`
	State     lanegate.State  `json:"state"`
	Reason    string          `json:"reason"`
	BlockedBy string          `json:"blocked_by"`
	Attempts  int             `json:"attempts"`
	Result    json.RawMessage `json:"result"`
}

// Run posts the job.
func (c submitCmd) Run(ctx context.Context, t terminal) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	body, err := c.body(t)
	if err != nil {
		return err
	}
	cl, err := c.clientFlags.client(t)
	if err != nil {
		return err
	}
	if c.Timeout < 0 || c.RetryFor < 0 {
		return usagef("--timeout and --retry-for must not be negative")
	}
	a, err := cl.call(ctx, http.MethodPost, "/jobs", body, 30*time.Second)
	if err != nil {
		return &codedError{exitUnreachable, fmt.Errorf("no answer from %s: %w. The job may or may not have been accepted; repeating with the same --key is safe", cl.base, err)}
	}
	j, err := jobOf(a)
	if err != nil {
		return err
	}
	if a.header.Get("Idempotency-Replayed") == "true" {
		t.notef("lanegate: job %s was accepted before under this key; it is %s\n", j.ID, j.State)
	}
	if !c.Wait {
		t.printf("%s\n", j.ID)
		if j.State == lanegate.StateSkipped {
			t.notef("lanegate: job %s was skipped: job %s of its class is due or running\n", j.ID, j.BlockedBy)
		}
		return nil
	}
	t.notef("lanegate: waiting for job %s\n", j.ID)
	return c.await(ctx, t, cl, j)
}

// body is the request; the payload's bytes stay as they are.
func (c submitCmd) body(t terminal) ([]byte, error) {
	fields := map[string]any{"class": c.Class, "idempotency_key": c.Key}
	if c.Key == "" {
		fields["idempotency_key"] = "submit-" + uuid.Must(uuid.NewV7()).String()
	}
	if c.RunAt != "" {
		at, err := time.Parse(time.RFC3339Nano, c.RunAt)
		if err != nil {
			return nil, usagef("--run-at %q is not an RFC 3339 time, like 2026-11-29T02:00:00Z", c.RunAt)
		}
		fields["run_at"] = at
	}
	if c.LogicalDate != "" {
		fields["logical_date"] = c.LogicalDate
	}
	if c.RetryFailed {
		fields["if_failed"] = "retry"
	}
	head, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	payload, err := readPayload(t, c.Payload)
	if err != nil || payload == nil {
		return head, err
	}
	// By hand: a JSON encoder would write the payload anew.
	return fmt.Appendf(head[:len(head)-1], ",\"payload\":%s}", payload), nil
}

// readPayload reads a --payload; nil when there is none.
func readPayload(t terminal, arg string) ([]byte, error) {
	var payload []byte
	var err error
	switch {
	case arg == "":
		return nil, nil
	case arg == "-":
		payload, err = io.ReadAll(t.in)
	case strings.HasPrefix(arg, "@"):
		payload, err = os.ReadFile(arg[1:])
	default:
		payload = []byte(arg)
	}
	if err != nil {
		return nil, usagef("--payload: %w", err)
	}
	if !json.Valid(payload) {
		return nil, usagef("--payload is not a JSON value; a plain text needs quotes of its own: --payload '\"text\"'; a file needs @ before its name")
	}
	return bytes.TrimSpace(payload), nil
}

func jobOf(a answer) (job, error) {
	var j job
	switch {
	case patience(a.status) || a.status >= 500:
		return j, &codedError{exitUnreachable, a.refusal()}
	case a.status != http.StatusOK && a.status != http.StatusCreated:
		return j, &codedError{exitUsage, a.refusal()}
	}
	if err := json.Unmarshal(a.body, &j); err != nil || j.ID == "" {
		return j, &codedError{exitUnreachable, fmt.Errorf("the answer is no job (is --url a lanegate?): %.200s", a.body)}
	}
	return j, nil
}

// await polls until the job has ended, and says how it did.
func (c submitCmd) await(ctx context.Context, t terminal, cl *client, j job) error {
	began := time.Now()
	for !j.State.Final() {
		poll := 30 * time.Second
		if c.Timeout > 0 {
			left := c.Timeout - time.Since(began)
			if left <= 0 {
				return &codedError{exitStillOpen, fmt.Errorf("job %s is still %s after %s; it goes on", j.ID, j.State, c.Timeout)}
			}
			poll = min(poll, max(left, time.Second))
		}
		path := fmt.Sprintf("/jobs/%s/wait?timeout=%s", url.PathEscape(j.ID), poll.Round(time.Second))
		a, err := cl.call(ctx, http.MethodGet, path, nil, poll+15*time.Second)
		if err != nil {
			return &codedError{exitUnreachable, fmt.Errorf("job %s was accepted and goes on, but %s does not answer: %w", j.ID, cl.base, err)}
		}
		if j, err = jobOf(a); err != nil {
			return err
		}
	}
	return c.ended(ctx, t, cl, j)
}

func (c submitCmd) ended(ctx context.Context, t terminal, cl *client, j job) error {
	switch j.State {
	case lanegate.StateSucceeded:
		if len(j.Result) > 0 && string(j.Result) != "null" {
			t.printf("%s\n", j.Result)
		}
		return nil
	case lanegate.StateSkipped:
		return &codedError{exitNotRun, fmt.Errorf("job %s was skipped: job %s stood in its way", j.ID, j.BlockedBy)}
	case lanegate.StateCancelled:
		return &codedError{exitNotRun, fmt.Errorf("job %s was cancelled", j.ID)}
	}
	// Cron's mail is often the only trace: put the output into it.
	if a, err := cl.once(ctx, http.MethodGet, "/jobs/"+url.PathEscape(j.ID)+"/output", nil, 15*time.Second); err == nil && a.status == http.StatusOK && len(a.body) > 0 {
		t.notef("%s\n", bytes.TrimRight(a.body, "\n"))
	}
	return &codedError{exitFailed, fmt.Errorf("job %s failed: %s", j.ID, j.Reason)}
}
