package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

type promoteCmd struct {
	Classes     []string `arg:"" name:"class" help:"Job classes; all are promoted, or none."`
	Verified    string   `name:"run" placeholder:"ID" help:"Verification run that is the proof; by default each class's latest that passed."`
	Lane        string   `default:"parallel" help:"Lane to move to. Default: ${default}."`
	MaxInFlight int      `placeholder:"N" help:"Runs of the class at once; by default, and at most, the proven copies."`
	AcceptWidth bool     `help:"A lane's width may go down by this."`
	Reason      string   `help:"For the history."`
	DryRun      bool     `help:"Judge everything, change nothing."`
	JSON        bool     `name:"json" help:"Print the gateway's answer as it is."`
	clientFlags
}

// Help implements kong.HelpProvider.
func (promoteCmd) Help() string {
	return `Moves classes out of serial on the ground of a passed verification run.

Exit codes: 0 promoted (or there already), 2 wrong usage or missing permission, 4 the gateway did not answer,
6 refused; every unmet condition is printed.

Example:

    lanegate promote pos-sales logistics weather --run 0190b2a0-… --reason "nightly window"`
}

// promotion is what the tools read of the answer to promote and demote.
type promotion struct {
	Classes []struct {
		ID          string `json:"id"`
		Lane        string `json:"lane"`
		MaxInFlight int    `json:"max_in_flight"`
	} `json:"classes"`
	Changed      bool `json:"changed"`
	Consequences struct {
		Widths []struct {
			Lane          string `json:"lane"`
			Before, After int
		} `json:"widths"`
		UnprovenBeside map[string][]string `json:"unproven_beside"`
		Warnings       []string            `json:"warnings"`
		Needs          []string            `json:"needs"`
	} `json:"consequences"`
}

// Run asks for the promotion.
func (c promoteCmd) Run(ctx context.Context, t terminal) error {
	req := map[string]any{"lane": c.Lane}
	if c.Verified != "" {
		req["verification_run"] = c.Verified
	}
	if c.MaxInFlight != 0 {
		req["max_in_flight"] = c.MaxInFlight
	}
	if c.Reason != "" {
		req["reason"] = c.Reason
	}
	if len(c.Classes) > 1 {
		req["also"] = c.Classes[1:]
	}
	query := url.Values{}
	if c.AcceptWidth {
		query.Set("accept", "width")
	}
	return move(ctx, t, c.clientFlags, c.Classes[0], "promote", query, req, c.DryRun, c.JSON)
}

type demoteCmd struct {
	Class  string `arg:"" help:"Job class."`
	Reason string `help:"For the history."`
	DryRun bool   `help:"Show what follows, change nothing."`
	JSON   bool   `name:"json" help:"Print the gateway's answer as it is."`
	clientFlags
}

// Help implements kong.HelpProvider.
func (demoteCmd) Help() string {
	return `Moves a class back to serial. It always works; runs that are under way end where they are.

Exit codes: 0 demoted (or in serial already), 2 wrong usage or missing permission, 4 the gateway did not answer.`
}

// Run asks for the demotion.
func (c demoteCmd) Run(ctx context.Context, t terminal) error {
	req := map[string]any{}
	if c.Reason != "" {
		req["reason"] = c.Reason
	}
	return move(ctx, t, c.clientFlags, c.Class, "demote", url.Values{}, req, c.DryRun, c.JSON)
}

// move promotes or demotes, and prints what came of it.
func move(ctx context.Context, t terminal, f clientFlags, class, verb string, query url.Values, req map[string]any, dry, asJSON bool) error {
	cl, err := f.client(t)
	if err != nil {
		return err
	}
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	if dry {
		query.Set("dry_run", "true")
	}
	path := "/job-classes/" + url.PathEscape(class) + "/" + verb
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	a, err := cl.call(ctx, http.MethodPost, path, body, 30*time.Second)
	if err != nil {
		return &codedError{exitUnreachable, fmt.Errorf("no answer from %s: %w; repeating it is safe", cl.base, err)}
	}
	if a.status != http.StatusOK {
		return a.gateRefusal()
	}
	if asJSON {
		_, err := t.out.Write(a.body)
		return err
	}
	var p promotion
	if err := json.Unmarshal(a.body, &p); err != nil {
		return &codedError{exitUnreachable, fmt.Errorf("the answer is not understood (is --url a lanegate?): %.200s", a.body)}
	}
	p.print(t, dry)
	return nil
}

func (p promotion) print(t terminal, dry bool) {
	would := ""
	switch {
	case dry:
		would = " (dry run, nothing was changed)"
	case !p.Changed:
		would = " (as before)"
	}
	for _, c := range p.Classes {
		t.printf("%s: lane %s, at most %d at once%s\n", c.ID, c.Lane, c.MaxInFlight, would)
	}
	for _, w := range p.Consequences.Widths {
		t.printf("lane %s: width %d → %d\n", w.Lane, w.Before, w.After)
	}
	for _, class := range sortedKeys(p.Consequences.UnprovenBeside) {
		t.printf("%s was never proven beside %s\n", class, strings.Join(p.Consequences.UnprovenBeside[class], ", "))
	}
	for _, w := range p.Consequences.Warnings {
		t.printf("warning: %s\n", w)
	}
	for _, need := range p.Consequences.Needs {
		t.printf("needed: %s\n", inFlags("?"+need))
	}
}

// inFlags is a text of the gateway with the flags of this command in place of
// what a request would carry.
func inFlags(text string) string {
	return strings.NewReplacer("?accept=width", "--accept-width", "(confirm_serial)", "(--confirm-serial)").Replace(text)
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// gateRefusal is the error of a refused verification run, promotion or demotion,
// with every condition on a line of its own.
func (a answer) gateRefusal() error {
	var p struct {
		Details struct {
			Conditions []struct {
				Code    string `json:"code"`
				Class   string `json:"class"`
				Message string `json:"message"`
			} `json:"conditions"`
		} `json:"details"`
	}
	err := a.refusal()
	if json.Unmarshal(a.body, &p) == nil && len(p.Details.Conditions) > 0 {
		var text strings.Builder
		text.WriteString(err.Error())
		for _, c := range p.Details.Conditions {
			text.WriteString("\n  " + c.Code + ": ")
			if c.Class != "" && !strings.Contains(c.Message, c.Class) {
				text.WriteString(c.Class + ": ")
			}
			text.WriteString(c.Message)
		}
		err = errors.New(text.String())
	}
	err = errors.New(inFlags(err.Error()))
	switch {
	case patience(a.status) || a.status >= 500:
		return &codedError{exitUnreachable, err}
	case a.status == http.StatusConflict:
		return &codedError{exitVerifyRefused, err}
	}
	return &codedError{exitUsage, err}
}
