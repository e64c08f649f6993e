package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"
)

// listFlags are what the listing subcommands share.
type listFlags struct {
	JSON bool `name:"json" help:"Print the gateway's answer as it is."`
	clientFlags
}

// get fetches path into v, or prints the body as it is with --json; shown tells
// that this was done.
func (f listFlags) get(ctx context.Context, t terminal, path string, v any) (shown bool, err error) {
	cl, err := f.client(t)
	if err != nil {
		return false, err
	}
	a, err := cl.call(ctx, http.MethodGet, path, nil, 30*time.Second)
	switch {
	case err != nil:
		return false, &codedError{exitUnreachable, fmt.Errorf("no answer from %s: %w", cl.base, err)}
	case patience(a.status) || a.status >= 500:
		return false, &codedError{exitUnreachable, a.refusal()}
	case a.status != http.StatusOK:
		return false, &codedError{exitUsage, a.refusal()}
	case f.JSON:
		_, err := t.out.Write(a.body)
		return true, err
	}
	if err := json.Unmarshal(a.body, v); err != nil {
		return false, &codedError{exitUnreachable, fmt.Errorf("the answer is not understood (is --url a lanegate?): %.200s", a.body)}
	}
	return false, nil
}

// table prints rows in columns, the first row being the heads.
func (t terminal) table(rows [][]string) error {
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	return w.Flush()
}

type classesCmd struct {
	Class string `arg:"" optional:"" help:"Show this class alone, and why it is where it is."`
	listFlags
}

// classView is what the tools read of a job class.
type classView struct {
	ID          string         `json:"id"`
	Lane        string         `json:"lane"`
	MaxInFlight int            `json:"max_in_flight"`
	Units       map[string]int `json:"units"`
	Paused      bool           `json:"paused"`
	ManagedBy   string         `json:"managed_by"`
	Fingerprint string         `json:"fingerprint"`
	Serial      string         `json:"serial_because"`
	Standing    *struct {
		Because        string     `json:"because"`
		At             *time.Time `json:"at"`
		Actor          string     `json:"actor"`
		Reason         string     `json:"reason"`
		ProvenCopies   int        `json:"proven_copies"`
		ProvenBeside   []string   `json:"proven_beside"`
		UnprovenBeside []string   `json:"unproven_beside"`
		LatestRun      string     `json:"latest_verification_run"`
		LatestVerdict  string     `json:"latest_verdict"`
		Warnings       []string   `json:"warnings"`
	} `json:"standing"`
}

// Run lists job classes.
func (c classesCmd) Run(ctx context.Context, t terminal) error {
	if c.Class != "" {
		var class classView
		shown, err := c.get(ctx, t, "/job-classes/"+url.PathEscape(c.Class), &class)
		if err != nil || shown {
			return err
		}
		class.print(t)
		return nil
	}
	var list struct {
		Items []classView `json:"items"`
	}
	shown, err := c.get(ctx, t, "/job-classes?limit=500", &list)
	if err != nil || shown {
		return err
	}
	rows := [][]string{{"CLASS", "LANE", "AT ONCE", "UNITS", "PAUSED", "DECLARED IN"}}
	for _, k := range list.Items {
		rows = append(rows, []string{k.ID, k.Lane, fmt.Sprint(k.MaxInFlight), unitsText(k.Units), yes(k.Paused), k.ManagedBy})
	}
	return t.table(rows)
}

func (k classView) print(t terminal) {
	t.printf("%s: lane %s, at most %d at once, units %s\n", k.ID, k.Lane, k.MaxInFlight, unitsText(k.Units))
	if k.Paused {
		t.printf("paused\n")
	}
	if k.Serial != "" {
		t.printf("must stay serial: %s\n", k.Serial)
	}
	s := k.Standing
	if s == nil {
		return
	}
	if s.Because != "" {
		at := ""
		if s.At != nil {
			at = " at " + s.At.Local().Format("2006-01-02 15:04 MST")
		}
		line := s.Because + " by " + s.Actor + at
		if s.Reason != "" {
			line += ": " + s.Reason
		}
		t.printf("%s\n", line)
	}
	switch {
	case s.ProvenCopies > 0:
		t.printf("proven: %d at once, beside %s\n", s.ProvenCopies, orNobody(s.ProvenBeside))
	case s.LatestRun != "":
		t.printf("nothing proven: verification run %s %s\n", s.LatestRun, s.LatestVerdict)
	default:
		t.printf("nothing proven: no verification run of this fingerprint (%s)\n", k.Fingerprint)
	}
	if len(s.UnprovenBeside) > 0 {
		t.printf("never proven beside: %s\n", strings.Join(s.UnprovenBeside, ", "))
	}
	for _, w := range s.Warnings {
		t.printf("warning: %s\n", w)
	}
}

func orNobody(names []string) string {
	if len(names) == 0 {
		return "nobody"
	}
	return strings.Join(names, ", ")
}

func unitsText(u map[string]int) string {
	if u == nil {
		return "undeclared"
	}
	if len(u) == 0 {
		return "none"
	}
	var parts []string
	for _, name := range sortedKeys(u) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, u[name]))
	}
	return strings.Join(parts, ",")
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return ""
}

type lanesCmd struct{ listFlags }

// Run lists lanes.
func (c lanesCmd) Run(ctx context.Context, t terminal) error {
	var list struct {
		Items []struct {
			Name       string `json:"name"`
			Width      int    `json:"width"`
			InFlight   int    `json:"in_flight"`
			Queued     int    `json:"queued"`
			OldestWait string `json:"oldest_wait"`
			Paused     bool   `json:"paused"`
			Available  bool   `json:"available"`
			Arithmetic struct {
				Sentence string `json:"sentence"`
			} `json:"arithmetic"`
		} `json:"items"`
	}
	shown, err := c.get(ctx, t, "/lanes", &list)
	if err != nil || shown {
		return err
	}
	rows := [][]string{{"LANE", "RUNNING", "WIDTH", "QUEUED", "OLDEST WAIT", "STATE", "WIDTH IS"}}
	for _, l := range list.Items {
		state := "available"
		switch {
		case l.Paused:
			state = "paused"
		case !l.Available:
			state = "unavailable"
		}
		rows = append(rows, []string{l.Name, fmt.Sprint(l.InFlight), fmt.Sprint(l.Width), fmt.Sprint(l.Queued), l.OldestWait, state, l.Arithmetic.Sentence})
	}
	return t.table(rows)
}

type jobsCmd struct {
	Class string `placeholder:"CLASS" help:"Jobs of this class only."`
	State string `placeholder:"STATE" help:"queued, running, succeeded, failed, cancelled or skipped."`
	Limit int    `default:"20" help:"How many, newest first."`
	listFlags
}

// Run lists jobs.
func (c jobsCmd) Run(ctx context.Context, t terminal) error {
	q := url.Values{"limit": {fmt.Sprint(c.Limit)}}
	if c.Class != "" {
		q.Set("class", c.Class)
	}
	if c.State != "" {
		q.Set("state", c.State)
	}
	var list struct {
		Items []struct {
			ID          string    `json:"id"`
			Class       string    `json:"class"`
			State       string    `json:"state"`
			Reason      string    `json:"reason"`
			SubmittedAt time.Time `json:"submitted_at"`
			WaitingOn   []struct {
				Reason string   `json:"reason"`
				Jobs   []string `json:"jobs"`
			} `json:"waiting_on"`
		} `json:"items"`
		Next string `json:"next_cursor"`
	}
	shown, err := c.get(ctx, t, "/jobs?"+q.Encode(), &list)
	if err != nil || shown {
		return err
	}
	items := list.Items
	for len(items) < c.Limit && list.Next != "" { // a short page is not the last one
		q.Set("limit", fmt.Sprint(c.Limit-len(items)))
		q.Set("cursor", list.Next)
		list.Items, list.Next = nil, ""
		if _, err := c.get(ctx, t, "/jobs?"+q.Encode(), &list); err != nil {
			return err
		}
		items = append(items, list.Items...)
	}
	rows := [][]string{{"JOB", "CLASS", "STATE", "SUBMITTED", "WHY"}}
	for _, j := range items {
		why := j.Reason
		var waits []string
		for _, w := range j.WaitingOn {
			text := w.Reason
			if len(w.Jobs) > 0 {
				text += " (" + strings.Join(w.Jobs[:min(len(w.Jobs), 2)], ", ") + ")"
			}
			waits = append(waits, text)
		}
		if len(waits) > 0 {
			why = strings.Join(waits, "; ")
		}
		rows = append(rows, []string{j.ID, j.Class, j.State, j.SubmittedAt.Local().Format("01-02 15:04:05"), why})
	}
	return t.table(rows)
}

type phrasesCmd struct {
	Class string   `arg:"" help:"Job class."`
	Try   []string `sep:"none" placeholder:"EXPR" help:"Expression to try instead of the class's own; may be repeated."`
	Last  int      `default:"50" help:"How many of the newest runs are searched."`
	listFlags
}

// Help implements kong.HelpProvider.
func (phrasesCmd) Help() string {
	return `Searches the kept output of past runs for phrases of trouble: the built-in ones, and the class's own
or those given with --try. A phrase that good runs print too is no sign of trouble.

Exit codes: 0 nothing found, 1 something found, 2 wrong usage, 4 the gateway did not answer.`
}

// Run tries phrases over past output.
func (c phrasesCmd) Run(ctx context.Context, t terminal) error {
	cl, err := c.client(t)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"expressions": c.Try, "last": c.Last})
	if err != nil {
		return err
	}
	a, err := cl.call(ctx, http.MethodPost, "/job-classes/"+url.PathEscape(c.Class)+"/phrases", body, 30*time.Second)
	switch {
	case err != nil:
		return &codedError{exitUnreachable, fmt.Errorf("no answer from %s: %w", cl.base, err)}
	case a.status != http.StatusOK:
		return a.gateRefusal()
	}
	var found struct {
		Searched int `json:"searched"`
		Hits     []struct {
			Job     string    `json:"job"`
			Attempt int       `json:"attempt"`
			EndedAt time.Time `json:"ended_at"`
			Outcome string    `json:"outcome"`
			Matches []struct {
				Phrase string `json:"phrase"`
				Line   string `json:"line"`
			} `json:"matches"`
		} `json:"hits"`
	}
	if err := json.Unmarshal(a.body, &found); err != nil {
		return &codedError{exitUnreachable, fmt.Errorf("the answer is not understood (is --url a lanegate?): %.200s", a.body)}
	}
	if c.JSON {
		if _, err := t.out.Write(a.body); err != nil {
			return err
		}
	} else {
		t.printf("%d runs searched, something found in %d\n", found.Searched, len(found.Hits))
		for _, h := range found.Hits {
			t.printf("%s attempt %d, %s, ended %s\n", h.Job, h.Attempt, h.Outcome, h.EndedAt.Local().Format("2006-01-02 15:04:05"))
			for _, m := range h.Matches {
				t.printf("  %s\n    by %s\n", m.Line, m.Phrase)
			}
		}
	}
	if len(found.Hits) > 0 {
		return &codedError{exitError, nil}
	}
	return nil
}
