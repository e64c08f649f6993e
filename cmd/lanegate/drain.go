package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/service"
)

type drainCmd struct {
	ToSQS     string `name:"to-sqs" required:"" placeholder:"URL" help:"The queue that the jobs go to, by URL or name."`
	Class     string `placeholder:"NAME" help:"Only jobs of this class."`
	Lane      string `placeholder:"NAME" help:"Only jobs of the classes in this lane."`
	Limit     int    `placeholder:"N" help:"Send at most so many jobs."`
	DryRun    bool   `help:"Say what would be sent, and take nothing."`
	Undo      bool   `help:"Put back what an earlier drain to this queue took and did not finish. What it had sent already then runs there and here."`
	Region    string `placeholder:"NAME" env:"LANEGATE_SQS_REGION" help:"AWS region; where every AWS program finds it when left out."`
	Endpoint  string `placeholder:"URL" env:"LANEGATE_SQS_ENDPOINT" help:"SQS endpoint instead of the region's."`
	AllowHTTP bool   `name:"allow-http" env:"LANEGATE_SQS_ALLOW_HTTP" help:"Allow an endpoint without TLS, for a test server."`
	clientFlags
}

// Help implements kong.HelpProvider.
func (drainCmd) Help() string {
	return `Sends the gateway's queued jobs, in the order of their lines, to a queue: those that came in by an intake as the messages they were, others as submissions (as: submission). Running jobs are left alone. Needs a token of role admin, and AWS credentials that may send to the queue.

A job is taken out of its line first, then sent, then ended as cancelled ("sent to …"). Killed in between, none is lost: do it again, and what was taken is sent once more, with the same idempotency key. Run one drain to a queue at a time.

Exit codes: 0 nothing is left that could be sent, 1 something is, 2 wrong usage or refused, 4 no answer from the gateway.`
}

// drainBatch is how many jobs are on their way at once.
const drainBatch = 10

// drain is one drain under way.
type drain struct {
	drainCmd
	t      terminal
	cl     *client
	sender *queue.Sender
	sent   int
	left   []string // jobs that can't be sent
}

// Run takes, sends and confirms until nothing is left.
func (c drainCmd) Run(ctx context.Context, t terminal) error {
	if fault := lanegate.CheckQueue(c.ToSQS); fault != "" {
		return usagef("--to-sqs %s", fault)
	}
	if c.Limit < 0 {
		return usagef("--limit must be at least 1")
	}
	cl, err := c.client(t)
	if err != nil {
		return err
	}
	d := &drain{drainCmd: c, t: t, cl: cl}
	switch {
	case c.Undo:
		var undone struct{ Changed int }
		if err := d.post(ctx, "/undo", map[string]any{"to": c.ToSQS}, &undone); err != nil {
			return err
		}
		t.printf("%s put back\n", lanegate.Count(undone.Changed, "job"))
		return nil
	case c.DryRun:
		counts, err := d.count(ctx)
		if err != nil {
			return err
		}
		n := counts.Queued + counts.Taken
		if c.Limit > 0 {
			n = min(n, c.Limit)
		}
		t.printf("%s would be sent to %s%s\n", lanegate.Count(n, "job"), c.ToSQS, counts.rest())
		return nil
	}
	if d.sender, err = queue.OpenSender(ctx, queue.SenderOptions{SQSEndpoint: queue.SQSEndpoint{Region: c.Region, URL: c.Endpoint, AllowHTTP: c.AllowHTTP}}); err != nil {
		return usagef("%w", err)
	}
	runErr := d.run(ctx)
	counts, err := d.count(ctx)
	if err != nil {
		return errors.Join(runErr, err)
	}
	t.printf("%s sent to %s%s\n", lanegate.Count(d.sent, "job"), c.ToSQS, counts.rest())
	more := counts.Queued + counts.Taken
	switch {
	case runErr != nil:
		return runErr
	case len(d.left) > 0 || counts.Taken > 0 || more > 0 && c.Limit == 0:
		return fmt.Errorf("%s still here: do it again, or see above why not", lanegate.Count(more, "job"))
	}
	return nil
}

// handedOver is the gateway's answer.
type handedOver struct {
	Jobs []struct {
		ID      string `json:"id"`
		Message struct {
			Body       string                               `json:"body"`
			Attributes map[string]lanegate.MessageAttribute `json:"attributes"`
			Group      string                               `json:"group"`
			Dedup      string                               `json:"dedup"`
		} `json:"message"`
	} `json:"jobs"`
	Left []struct {
		ID  string `json:"id"`
		Why string `json:"why"`
	} `json:"left"`
	Counts drainCounts `json:"counts"`
}

type drainCounts struct {
	Queued  int `json:"queued"`
	Taken   int `json:"taken"`
	Running int `json:"running"`
	Pinned  int `json:"pinned"`
}

// rest says, behind a comma, what stays and why.
func (c drainCounts) rest() string {
	var parts []string
	for _, p := range []struct {
		n   int
		why string
	}{
		{c.Queued, "queued"}, {c.Taken, "taken and not confirmed"}, {c.Running, "running, left alone"}, {c.Pinned, "waiting for their own agent, left alone"},
	} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.why))
		}
	}
	if parts == nil {
		return ""
	}
	return "; still here: " + strings.Join(parts, ", ")
}

// run sends batch after batch. An error means that the queue or the gateway can't
// be had now.
func (d *drain) run(ctx context.Context) error {
	for d.Limit == 0 || d.sent < d.Limit {
		limit := drainBatch
		if d.Limit > 0 {
			limit = min(limit, d.Limit-d.sent)
		}
		var out handedOver
		if err := d.post(ctx, "", map[string]any{"to": d.ToSQS, "class": d.Class, "lane": d.Lane, "limit": limit, "skip": d.left}, &out); err != nil {
			return err
		}
		for _, l := range out.Left {
			d.leave(l.ID, l.Why)
		}
		if len(out.Jobs) == 0 && len(out.Left) == 0 {
			return nil
		}
		if err := d.sendAll(ctx, out); err != nil {
			return err
		}
		if len(d.left)+drainBatch > service.MaxHandOverSkip {
			return fmt.Errorf("%s can't be sent, see above why: mend that and do it again", lanegate.Count(len(d.left), "job"))
		}
	}
	return nil
}

func (d *drain) leave(job, why string) {
	d.left = append(d.left, job)
	d.t.notef("lanegate: job %s stays: %s\n", job, why)
}

// sendAll sends what was taken, and confirms or gives back each.
func (d *drain) sendAll(ctx context.Context, out handedOver) error {
	errs := make([]error, len(out.Jobs))
	var sends sync.WaitGroup
	for i, j := range out.Jobs {
		m := lanegate.Message{Body: j.Message.Body, Attributes: j.Message.Attributes, Group: j.Message.Group, Dedup: j.Message.Dedup}
		if strings.HasSuffix(d.ToSQS, lanegate.FIFOSuffix) { // one after the other, in their order
			if errs[i] = d.send(ctx, m); errs[i] != nil {
				for k := i + 1; k < len(errs); k++ {
					errs[k] = &lanegate.SendError{Fault: lanegate.SendNotNow, Text: "not tried after the one before it failed"}
				}
				break
			}
			continue
		}
		sends.Go(func() { errs[i] = d.send(ctx, m) })
	}
	sends.Wait()
	var sent, back []string
	var failed error
	for i, j := range out.Jobs {
		fault, ok := errors.AsType[*lanegate.SendError](errs[i])
		switch {
		case errs[i] == nil:
			sent = append(sent, j.ID)
		case ok && fault.Fault == lanegate.SendRefused:
			back = append(back, j.ID)
			d.leave(j.ID, fault.Text)
		case ok && fault.Fault != lanegate.SendUnanswered:
			back = append(back, j.ID)
			failed = errors.Join(failed, fault)
		default: // it may be there: it stays taken, and is sent again by the next drain
			failed = fmt.Errorf("job %s may have been sent, so it stays taken; do it again: %w", j.ID, errs[i])
		}
	}
	if len(sent) > 0 {
		if err := d.post(ctx, "/confirm", map[string]any{"to": d.ToSQS, "jobs": sent}, nil); err != nil {
			return fmt.Errorf("%s sent and not confirmed; do it again: %w", lanegate.Count(len(sent), "job"), err)
		}
		d.sent += len(sent)
	}
	if len(back) > 0 {
		if err := d.post(ctx, "/undo", map[string]any{"to": d.ToSQS, "jobs": back}, nil); err != nil {
			return err
		}
	}
	return failed
}

// send tries again while nobody clearly took or refused the message: a double is a
// replay, by its key.
func (d *drain) send(ctx context.Context, m lanegate.Message) error {
	for wait, began := 500*time.Millisecond, time.Now(); ; wait = min(2*wait, 10*time.Second) {
		err := d.sender.Send(ctx, d.ToSQS, m)
		fault, ok := errors.AsType[*lanegate.SendError](err)
		again := ok && (fault.Away || fault.Fault == lanegate.SendThrottled || fault.Fault == lanegate.SendUnanswered)
		pause := jittered(wait)
		if !again || time.Since(began)+pause > min(d.RetryFor, time.Minute) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

func (d *drain) count(ctx context.Context) (drainCounts, error) {
	var out handedOver
	err := d.post(ctx, "", map[string]any{"to": d.ToSQS, "class": d.Class, "lane": d.Lane, "dry_run": true}, &out)
	return out.Counts, err
}

// post calls a path below /jobs/hand-over; each of them may be repeated.
func (d *drain) post(ctx context.Context, path string, body map[string]any, v any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	a, err := d.cl.call(ctx, http.MethodPost, "/jobs/hand-over"+path, text, 30*time.Second)
	switch {
	case err != nil:
		return &codedError{exitUnreachable, fmt.Errorf("no answer from %s: %w", d.cl.base, err)}
	case patience(a.status) || a.status >= 500:
		return &codedError{exitUnreachable, a.refusal()}
	case a.status != http.StatusOK:
		return &codedError{exitUsage, a.refusal()}
	case v == nil:
		return nil
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		return &codedError{exitUnreachable, fmt.Errorf("the answer is not understood (is --url a lanegate?): %.200s", a.body)}
	}
	return nil
}
