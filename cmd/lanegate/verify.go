package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lanegate/lanegate"
)

// Exit codes of verify beside 0 (passed, or accepted without --wait) and 2.
const (
	exitVerifyFailed  = 1 // the verdict is failed
	exitInconclusive  = 3 // inconclusive, or aborted
	exitVerifyRefused = 6 // the plan can't be carried out, or the gate stays shut
)

type verifyCmd struct {
	Classes       []string      `arg:"" name:"class" help:"Job classes to try at the same time."`
	Copies        int           `default:"2" help:"Copies of each class that run at once."`
	Alongside     []string      `placeholder:"CLASS" help:"Further classes, one copy of each, that run beside."`
	Source        string        `default:"queue" enum:"queue,payloads" help:"queue: jobs that are due anyway; payloads: made-up runs, for repeatable classes."`
	Payload       []string      `sep:"none" placeholder:"CLASS=JSON|@FILE" help:"With --source payloads: a payload for a class; may be repeated, they are used in turn."`
	Rounds        int           `placeholder:"1" help:"How often the plan is repeated; default 1 (queue) or 3 (payloads)."`
	MaxSlowdown   float64       `placeholder:"2" help:"Largest allowed slowdown of the median against running alone."`
	SameResult    bool          `help:"A payload's result must be the same as alone."`
	Window        time.Duration `placeholder:"10m" help:"This much overlap is enough for classes whose runs are too long to wait for."`
	Check         string        `placeholder:"COMMAND" help:"Command of the config file that judges the data after each round."`
	MaxHold       time.Duration `placeholder:"15m" help:"How long serial may be held at most."`
	NoHold        string        `placeholder:"REASON" help:"Let the serial line flow on meanwhile, for this reason."`
	ConfirmSerial bool          `help:"Yes, although a class says why it must stay serial."`
	Reason        string        `help:"For the history."`
	DryRun        bool          `help:"Show the plan and start nothing."`
	Wait          bool          `help:"Wait for the verdict and exit by it."`
	JSON          bool          `name:"json" help:"Print the gateway's answer as it is."`
	clientFlags
}

// Help implements kong.HelpProvider.
func (verifyCmd) Help() string {
	return `Runs classes at the same time on purpose, and records what happened. A class that passed may be promoted.

Exit codes:

    0  accepted; with --wait: passed
    1  with --wait: failed
    2  wrong usage or missing permission
    3  with --wait: inconclusive or aborted
    4  the gateway did not answer
    5  with --wait: interrupted (Ctrl-C, SIGTERM) while the run is open; it goes on, and "lanegate verifications ID" shows it
    6  the plan can't be carried out; every reason is printed

Examples:

    lanegate verify pos-sales logistics --alongside weather --wait
    lanegate verify pos-sales --source payloads --payload 'pos-sales={"date": "2026-11-28"}' --dry-run
    lanegate verify heavy --copies 1 --alongside pos-sales --window 10m --wait`
}

// verificationRun is what the tools read of a verification run.
type verificationRun struct {
	ID        string                        `json:"id"`
	State     lanegate.VerificationState    `json:"state"`
	Verdict   lanegate.Verdict              `json:"verdict"`
	Sentence  string                        `json:"sentence"`
	Spec      lanegate.VerificationSpec     `json:"spec"`
	Plan      []lanegate.Round              `json:"plan"`
	Round     int                           `json:"round"`
	CreatedAt time.Time                     `json:"created_at"`
	HeldAt    *time.Time                    `json:"held_at"`
	Reasons   []lanegate.VerificationReason `json:"reasons"`
	Evidence  lanegate.Evidence             `json:"evidence"`
	WaitingOn []struct {
		Reason string   `json:"reason"`
		Jobs   []string `json:"jobs"`
	} `json:"waiting_on"`
}

// Run asks for the verification run.
func (c verifyCmd) Run(ctx context.Context, t terminal) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	body, err := c.body(t)
	if err != nil {
		return err
	}
	cl, err := c.client(t)
	if err != nil {
		return err
	}
	path := "/verification-runs"
	if c.DryRun {
		path += "?dry_run=true"
	}
	// Once: a repeated request would ask for a second experiment.
	a, err := cl.once(ctx, http.MethodPost, path, body, 30*time.Second)
	if err != nil {
		return &codedError{exitUnreachable, fmt.Errorf("no answer from %s: %w. The run may or may not have been accepted; GET /verification-runs tells", cl.base, err)}
	}
	if a.status != http.StatusOK && a.status != http.StatusCreated {
		return a.gateRefusal()
	}
	var v verificationRun
	if err := json.Unmarshal(a.body, &v); err != nil {
		return &codedError{exitUnreachable, fmt.Errorf("the answer is no verification run (is --url a lanegate?): %.200s", a.body)}
	}
	switch {
	case c.DryRun:
		return c.show(t, a, v, showPlan)
	case !c.Wait:
		return c.show(t, a, v, func(t terminal, v verificationRun) { t.printf("%s\n", v.ID) })
	}
	a, v, err = c.await(ctx, t, cl, a, v)
	if err != nil {
		return err
	}
	if err := c.show(t, a, v, showVerdict); err != nil {
		return err
	}
	switch v.Verdict {
	case lanegate.VerdictPassed:
		return nil
	case lanegate.VerdictFailed:
		return &codedError{exitVerifyFailed, nil}
	}
	return &codedError{exitInconclusive, nil}
}

func (c verifyCmd) show(t terminal, a answer, v verificationRun, text func(terminal, verificationRun)) error {
	if c.JSON {
		_, err := t.out.Write(a.body)
		return err
	}
	text(t, v)
	return nil
}

// body is the request; payloads keep their bytes.
func (c verifyCmd) body(t terminal) ([]byte, error) {
	payloads, err := c.payloads(t)
	if err != nil {
		return nil, err
	}
	type member struct {
		Class    string            `json:"class"`
		Copies   int               `json:"copies"`
		Payloads []json.RawMessage `json:"payloads,omitempty"`
	}
	var members []member
	for _, class := range c.Classes {
		members = append(members, member{class, c.Copies, payloads[class]})
	}
	for _, class := range c.Alongside {
		members = append(members, member{class, 1, payloads[class]})
	}
	criteria := map[string]any{}
	if c.MaxSlowdown != 0 {
		criteria["max_slowdown"] = c.MaxSlowdown
	}
	if c.SameResult {
		criteria["same_result"] = true
	}
	if c.Window != 0 {
		criteria["window"] = c.Window.String()
	}
	req := map[string]any{"members": members, "source": c.Source, "criteria": criteria}
	if c.Rounds != 0 {
		req["rounds"] = c.Rounds
	}
	if c.Check != "" {
		req["check"] = lanegate.Run{Kind: lanegate.RunExec, Command: c.Check}
	}
	if c.MaxHold != 0 {
		req["max_hold"] = c.MaxHold.String()
	}
	if c.NoHold != "" {
		req["hold_serial"], req["hold_reason"] = false, c.NoHold
	}
	if c.ConfirmSerial {
		req["confirm_serial"] = true
	}
	if c.Reason != "" {
		req["reason"] = c.Reason
	}
	return json.Marshal(req)
}

func (c verifyCmd) payloads(t terminal) (map[string][]json.RawMessage, error) {
	all := map[string][]json.RawMessage{}
	for _, arg := range c.Payload {
		class, text, ok := strings.Cut(arg, "=")
		if !ok || !slices.Contains(append(slices.Clone(c.Classes), c.Alongside...), class) {
			return nil, usagef("--payload %q must be CLASS=JSON, with one of the classes of this run", arg)
		}
		payload, err := readPayload(t, text)
		if err != nil {
			return nil, err
		}
		all[class] = append(all[class], payload)
	}
	return all, nil
}

// await polls until the run is over. Progress goes to standard error: one line
// that is written anew on a terminal, one line for each change elsewhere.
func (c verifyCmd) await(ctx context.Context, t terminal, cl *client, a answer, v verificationRun) (answer, verificationRun, error) {
	show := newProgress(t)
	defer show.end()
	for !v.State.Final() {
		show.line(progressOf(v))
		select {
		case <-ctx.Done():
			return a, v, &codedError{exitStillOpen, fmt.Errorf("verification run %s goes on; POST /verification-runs/%s/abort ends it", v.ID, v.ID)}
		case <-time.After(time.Second):
		}
		var err error
		a, err = cl.call(ctx, http.MethodGet, "/verification-runs/"+url.PathEscape(v.ID), nil, 30*time.Second)
		if ctx.Err() != nil {
			continue
		}
		if err != nil {
			return a, v, &codedError{exitUnreachable, fmt.Errorf("verification run %s was accepted, but %s does not answer: %w", v.ID, cl.base, err)}
		}
		if a.status != http.StatusOK {
			return a, v, &codedError{exitUnreachable, a.refusal()}
		}
		var now verificationRun
		if err := json.Unmarshal(a.body, &now); err != nil {
			return a, v, &codedError{exitUnreachable, fmt.Errorf("the answer is no verification run: %.200s", a.body)}
		}
		v = now
	}
	return a, v, nil
}

func progressOf(v verificationRun) string {
	waits := v.waits()
	if waits != "" {
		waits = ", waits on " + waits
	}
	if v.State == lanegate.VerificationPlanned {
		return fmt.Sprintf("verification run %s is planned%s", v.ID, waits)
	}
	at := min(v.Round, len(v.Plan)-1)
	return fmt.Sprintf("verification run %s: round %d of %d (%s)%s", v.ID, at+1, len(v.Plan), roundText(v.Plan[at]), waits)
}

// waits is what the run waits for, "" when it doesn't.
func (v verificationRun) waits() string {
	var parts []string
	for _, w := range v.WaitingOn {
		text := w.Reason
		if len(w.Jobs) > 0 {
			text += " (" + strings.Join(w.Jobs[:min(len(w.Jobs), 2)], ", ") + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func roundText(r lanegate.Round) string {
	text := strings.Join(r.Classes, " + ")
	if r.Kind == lanegate.RoundBaseline {
		return text + " alone"
	}
	return text
}

func showPlan(t terminal, v verificationRun) {
	t.printf("%d rounds, source %s, serial is held for at most %s\n", len(v.Plan), v.Spec.Source, v.Spec.MaxHold)
	for i, r := range v.Plan {
		t.printf("%4d  %s\n", i+1, roundText(r))
	}
}

// progress is one line of live news.
type progress struct {
	t    terminal
	tty  bool
	last string
}

func newProgress(t terminal) *progress {
	f, ok := t.err.(*os.File)
	if !ok {
		return &progress{t: t}
	}
	info, err := f.Stat()
	return &progress{t: t, tty: err == nil && info.Mode()&os.ModeCharDevice != 0}
}

func (p *progress) line(text string) {
	switch {
	case text == p.last:
		return
	case p.tty:
		p.t.notef("\r\x1b[K%s", text)
	default:
		p.t.notef("%s\n", text)
	}
	p.last = text
}

func (p *progress) end() {
	if p.tty && p.last != "" {
		p.t.notef("\r\x1b[K")
	}
}
