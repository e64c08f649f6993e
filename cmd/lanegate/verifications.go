package main

import (
	"context"
	"fmt"
	"net/url"
	"strings"

	"github.com/lanegate/lanegate"
)

type verificationsCmd struct {
	ID    string   `arg:"" optional:"" help:"Show this verification run alone, with its evidence."`
	Class string   `placeholder:"CLASS" help:"Runs with this class only."`
	State []string `placeholder:"STATE" help:"planned, running, done or aborted; may be repeated."`
	Limit int      `default:"20" help:"How many, newest first."`
	listFlags
}

// Help implements kong.HelpProvider.
func (verificationsCmd) Help() string {
	return `Lists verification runs, newest first; with an ID, shows one as "verify --wait" does, or how far it is.

Exit codes: 0 shown, whatever the verdict, 2 wrong usage, no such run or missing permission, 4 the gateway did not answer.`
}

// Run lists verification runs, or shows one.
func (c verificationsCmd) Run(ctx context.Context, t terminal) error {
	if c.ID != "" {
		if c.Class != "" || len(c.State) > 0 {
			return usagef("with an ID there is nothing to select: leave --class and --state out")
		}
		var v verificationRun
		shown, err := c.get(ctx, t, "/verification-runs/"+url.PathEscape(c.ID), &v)
		if err != nil || shown {
			return err
		}
		if v.State == lanegate.VerificationPlanned {
			showPlan(t, v)
		}
		showVerdict(t, v)
		return nil
	}
	q := url.Values{"limit": {fmt.Sprint(c.Limit)}, "state": c.State}
	if c.Class != "" {
		q.Set("class", c.Class)
	}
	var list struct {
		Items []verificationRun `json:"items"`
	}
	shown, err := c.get(ctx, t, "/verification-runs?"+q.Encode(), &list)
	if err != nil || shown {
		return err
	}
	rows := [][]string{{"RUN", "STATE", "VERDICT", "ASKED FOR", "MEMBERS", "IN WORDS"}}
	for _, v := range list.Items {
		rows = append(rows, []string{v.ID, string(v.State), string(v.Verdict), v.CreatedAt.Local().Format("01-02 15:04:05"), membersText(v.Spec.Members), v.Sentence})
	}
	return t.table(rows)
}

func membersText(members []lanegate.VerificationMember) string {
	var parts []string
	for _, m := range members {
		text := m.Class
		if m.Copies > 1 {
			text += fmt.Sprintf("×%d", m.Copies)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ",")
}
