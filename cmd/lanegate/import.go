package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/runlog"
)

// importBatch is how many runs go into one request.
const importBatch = 2000

type importCmd struct {
	Files      []string `arg:"" name:"file" placeholder:"FILE" help:"Run logs; - is standard input. Gzip is recognised."`
	Format     string   `enum:",csv,jsonl,swf,sacct,lines" default:"" placeholder:"csv|jsonl|swf|sacct|lines" help:"Format of the files; found out when left out."`
	Columns    string   `placeholder:"ROLE=COLUMN,…" help:"Which column is what, where its name doesn't tell; as for advise."`
	TZ         string   `name:"tz" placeholder:"ZONE" help:"Zone of times that carry none, e.g. UTC or Europe/Berlin."`
	StartRegex string   `placeholder:"REGEX" help:"A worker's log: the lines that say a run has started; as for advise."`
	EndRegex   string   `placeholder:"REGEX" help:"The lines that say a run has ended."`
	JSON       bool     `name:"json" help:"Print the account of every file as JSON."`
	clientFlags
}

// Help implements kong.HelpProvider.
func (importCmd) Help() string {
	return `Loads older logs of finished runs into a gateway's run log, beside its own, for GET /advice. Reads what advise reads. Jobs, freshness,
statistics and verification never see imported runs. An import can be repeated: what is there already is not added again. Needs a token with role admin.

Exit codes:

    0  every file was imported; its account says what became of each row
    1  the gateway refused, a file could not be read to its end, or none of its rows could be used
    2  wrong usage, missing permission, or a file that is no log
    4  the gateway did not answer; repeat the command

Examples:

    lanegate import runs.csv.gz --tz Europe/Berlin
    sacct -P -a -S now-30days -o JobID,JobName,Submit,Eligible,Start,End,State | lanegate import - --tz UTC`
}

// importAccount is what became of one file.
type importAccount struct {
	runlog.Account
	Added        int `json:"added"`
	AlreadyThere int `json:"already_there"`
}

// Run reads the files and sends them in parts.
func (c importCmd) Run(ctx context.Context, t terminal) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	opts, err := adviseCmd{Format: c.Format, Columns: c.Columns, TZ: c.TZ, StartRegex: c.StartRegex, EndRegex: c.EndRegex}.readOptions()
	if err != nil {
		return err
	}
	if i := slices.Index(c.Files, "-"); i >= 0 && slices.Contains(c.Files[i+1:], "-") {
		return usagef("- (standard input) can be given once")
	}
	cl, err := c.client(t)
	if err != nil {
		return err
	}
	accounts := []importAccount{}
	var useless []string
	for _, name := range c.Files {
		account, err := c.one(ctx, t, cl, name, opts)
		if account.Rows > 0 {
			accounts = append(accounts, account)
			if !c.JSON {
				t.printf("%s\n", account.text())
			}
		}
		if err != nil {
			return err
		}
		if account.Used == 0 {
			useless = append(useless, account.File)
		}
	}
	if c.JSON {
		enc := json.NewEncoder(t.out)
		enc.SetIndent("", "  ")
		if err := enc.Encode(accounts); err != nil {
			return err
		}
	}
	if len(useless) > 0 {
		return fmt.Errorf("nothing was imported from %s: no row of it could be used; its account says why", strings.Join(useless, ", "))
	}
	return nil
}

// one imports a file; the account is of what was read so far when there is an error.
func (c importCmd) one(ctx context.Context, t terminal, cl *client, name string, opts runlog.ReadOptions) (importAccount, error) {
	src := runlog.Source{Name: "standard input", Reader: t.in}
	if name != "-" {
		f, err := openLog(name)
		if err != nil {
			return importAccount{}, err
		}
		defer f.Close()
		src = runlog.Source{Name: filepath.Base(name), Reader: f}
	}
	s := &importSender{client: cl, notef: t.notef, name: src.Name}
	account, err := runlog.Import(ctx, src, opts, runlog.Keep{}, func(line int, r lanegate.RunRecord) error {
		return s.add(ctx, line, r)
	})
	if sent, ok := errors.AsType[*sendError](err); ok {
		err = sent.err
	} else if err == nil {
		err = s.send(ctx)
	} else {
		err = adviseError(err)
	}
	out := importAccount{Account: account, Added: s.added, AlreadyThere: s.known}
	for _, d := range s.dropped {
		out.Used -= d.Count
		out.Dropped = append(out.Dropped, d)
	}
	return out, err
}

// text is the account in a few lines.
func (a *importAccount) text() string {
	var s bytes.Buffer
	fmt.Fprintf(&s, "%s: %d rows, %d used: %d added, %d there already", a.File, a.Rows, a.Used, a.Added, a.AlreadyThere)
	for _, p := range []struct {
		n    int
		what string
	}{{a.Clamped, "clamped"}, {a.Unfinished, "unfinished"}, {a.NeverStarted, "never started"}, {a.Steps, "steps of others"}, {a.Ignored, "other lines"}} {
		if p.n > 0 {
			fmt.Fprintf(&s, ", %d %s", p.n, p.what)
		}
	}
	for _, d := range a.Dropped {
		fmt.Fprintf(&s, "\n  dropped %d: %s", d.Count, d.Example)
	}
	return s.String()
}

// importSender sends records in parts. What the gateway drops keeps the line
// numbers of the file.
type importSender struct {
	client *client
	notef  func(format string, args ...any)
	name   string

	body    bytes.Buffer
	lines   []int // of the file, for each record in body
	sent    int
	added   int
	known   int
	dropped []runlog.Drop
}

// sendError is an error of sending, in the middle of reading.
type sendError struct{ err error }

func (e *sendError) Error() string { return e.err.Error() }

func (s *importSender) add(ctx context.Context, line int, r lanegate.RunRecord) error {
	row := map[string]any{
		"id": r.Job, "attempt": r.Attempt, "class": r.Class, "started_at": r.StartedAt, "ended_at": r.EndedAt, "status": r.Outcome,
	}
	if r.ReadyAt != nil {
		row["submitted_at"], row["ready_at"] = r.ReadyAt, r.ReadyAt
	}
	text, err := json.Marshal(row)
	if err != nil {
		return &sendError{err}
	}
	s.body.Write(append(text, '\n'))
	if s.lines = append(s.lines, line); len(s.lines) < importBatch {
		return nil
	}
	if err := s.send(ctx); err != nil {
		return &sendError{err}
	}
	return nil
}

// send sends what was gathered. It may be repeated: rows that are there stay as they are.
func (s *importSender) send(ctx context.Context) error {
	if len(s.lines) == 0 {
		return nil
	}
	a, err := s.client.call(ctx, http.MethodPost, "/run-log?format=jsonl", s.body.Bytes(), time.Minute)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return &codedError{exitUnreachable, fmt.Errorf("no answer from %s after %d of %s's runs: %w", s.client.base, s.sent, s.name, err)}
	case a.status == http.StatusUnauthorized || a.status == http.StatusForbidden:
		return &codedError{exitUsage, a.refusal()}
	case patience(a.status):
		return &codedError{exitUnreachable, a.refusal()}
	case a.status != http.StatusOK:
		return a.refusal()
	}
	var res struct {
		Added        int           `json:"added"`
		AlreadyThere int           `json:"already_there"`
		Dropped      []runlog.Drop `json:"dropped"`
	}
	if err := json.Unmarshal(a.body, &res); err != nil {
		return fmt.Errorf("the answer is none of an import (is --url a lanegate?): %.200s", a.body)
	}
	s.sent += len(s.lines)
	s.added += res.Added
	s.known += res.AlreadyThere
	for _, d := range res.Dropped {
		s.drop(d)
	}
	s.notef("lanegate: %s: %d runs sent\n", s.name, s.sent)
	s.body.Reset()
	s.lines = s.lines[:0]
	return nil
}

// drop counts what the gateway dropped, by the lines of the file.
func (s *importSender) drop(d runlog.Drop) {
	lines := make([]int, 0, len(d.Lines))
	for _, line := range d.Lines {
		if line >= 1 && line <= len(s.lines) {
			lines = append(lines, s.lines[line-1])
		}
	}
	d.Lines = lines
	i := slices.IndexFunc(s.dropped, func(x runlog.Drop) bool { return x.Reason == d.Reason })
	if i < 0 {
		d.Example = d.Reason
		if len(lines) > 0 {
			d.Example = fmt.Sprintf("%s, line %d: %s", s.name, lines[0], d.Reason)
		}
		s.dropped = append(s.dropped, d)
		return
	}
	const shown = 5
	have := &s.dropped[i]
	have.Count += d.Count
	have.Lines = append(have.Lines, d.Lines...)
	have.Lines = have.Lines[:min(shown, len(have.Lines))]
}
