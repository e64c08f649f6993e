package runner

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/proctest"
)

func asyncJob(url string) Job {
	job := httpJob(url)
	job.Run.Mode, job.Run.Heartbeat, job.Token = lanegate.ModeAsync, lanegate.Duration(proctest.Patience), "the-token"
	return job
}

func TestHTTPAsyncHandsTheRunOver(t *testing.T) {
	headers := make(chan http.Header, 1)
	url := newTarget(t, func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header
		w.WriteHeader(http.StatusAccepted)
	})
	job := asyncJob(url)
	job.Run.Heartbeat = lanegate.Duration(90 * time.Second)
	job.Run.Headers = map[string]string{"Lanegate-Token": "pretended", "Lanegate-Heartbeat-Seconds": "1"}
	end := NewHTTP(HTTPOptions{}).Run(t.Context(), job, Unfenced)
	if end.Outcome != "" || end.Status != http.StatusAccepted {
		t.Errorf("ending %+v, want none yet", end)
	}
	h := <-headers
	for name, want := range map[string]string{
		"Lanegate-Token": "the-token", "Lanegate-Heartbeat-Seconds": "90", "Lanegate-Job-Id": job.ID, "Lanegate-Attempt": strconv.Itoa(job.Attempt),
	} {
		if got := h.Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	// A target that shall answer at once has no use for the token.
	job.Run.Mode = lanegate.ModeSync
	wantOutcome(t, NewHTTP(HTTPOptions{}).Run(t.Context(), job, Unfenced), lanegate.Succeeded)
	if h := <-headers; h.Get("Lanegate-Token") != "" || h.Get("Lanegate-Heartbeat-Seconds") != "" {
		t.Errorf("a synchronous target got %v", h)
	}
}

func TestHTTPAsyncJudgesOtherAnswersAsSync(t *testing.T) {
	for _, tt := range []struct {
		status int
		header map[string]string
		want   lanegate.Outcome
	}{
		{200, nil, lanegate.Succeeded}, {204, nil, lanegate.Succeeded}, {302, nil, lanegate.Failed},
		{400, nil, lanegate.Failed}, {500, nil, lanegate.Failed},
		{503, map[string]string{"Retry-After": "7"}, lanegate.Deferred}, {503, nil, lanegate.Failed},
	} {
		end := NewHTTP(HTTPOptions{}).Run(t.Context(), asyncJob(newTarget(t, answer(tt.status, tt.header, ""))), Unfenced)
		if end.Outcome != tt.want || end.Status != tt.status {
			t.Errorf("%d: %+v, want %s", tt.status, end, tt.want)
		}
	}
}

// Once the target may have the run, only the target or its deadline ends it.
func TestHTTPAsyncWithoutAWholeAnswerStaysOpen(t *testing.T) {
	for name, cause := range map[string]error{"cancelled": ErrCancelled, "drained": ErrDrained, "fenced": ErrFenced} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			url := newTarget(t, func(_ http.ResponseWriter, r *http.Request) {
				cancel(cause)
				<-r.Context().Done()
			})
			if end := NewHTTP(HTTPOptions{}).Run(ctx, asyncJob(url), Unfenced); end.Outcome != "" {
				t.Errorf("ending %+v, want none", end)
			}
		})
	}
	t.Run("the target hangs up", func(t *testing.T) {
		url := newTarget(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		if end := NewHTTP(HTTPOptions{}).Run(t.Context(), asyncJob(url), Unfenced); end.Outcome != "" {
			t.Errorf("ending %+v, want none", end)
		}
	})
	t.Run("no answer within the heartbeat", func(t *testing.T) {
		job := asyncJob(newTarget(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		job.Run.Heartbeat = lanegate.Duration(200 * time.Millisecond)
		if end := NewHTTP(HTTPOptions{}).Run(t.Context(), job, Unfenced); end.Outcome != "" || end.Duration > proctest.Patience/2 {
			t.Errorf("ending %+v, want none, soon", end)
		}
	})
	t.Run("nothing was sent", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(ErrDrained)
		wantOutcome(t, NewHTTP(HTTPOptions{}).Run(ctx, asyncJob("http://127.0.0.1:1/"), Unfenced), lanegate.Interrupted)
	})
}
