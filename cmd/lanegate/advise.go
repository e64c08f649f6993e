package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/runlog"
)

type adviseCmd struct {
	Files      []string      `arg:"" name:"file" placeholder:"FILE" help:"Run logs; - is standard input. Gzip is recognised."`
	Format     string        `enum:",csv,jsonl,swf,sacct,lines" default:"" placeholder:"csv|jsonl|swf|sacct|lines" help:"Format of the files; found out when left out."`
	Columns    string        `placeholder:"ROLE=COLUMN,…" help:"Which column is what, where its name doesn't tell: submitted, eligible, started, finished, duration, class, status, exit, attempt."`
	TZ         string        `name:"tz" placeholder:"ZONE" help:"Zone of times that carry none, e.g. UTC or Europe/Berlin."`
	StartRegex string        `placeholder:"REGEX" help:"A worker's log: the lines that say a run has started, with named groups time and class, and id or submitted if there."`
	EndRegex   string        `placeholder:"REGEX" help:"The lines that say a run has ended: named groups time, id or class, and status if there."`
	Resource   []string      `placeholder:"NAME=CAPACITY" help:"A resource that runs share, e.g. db=15. May be repeated."`
	Units      []string      `placeholder:"CLASS=N" help:"How much one run of a class takes: N of the only resource, or NAME:N. May be repeated."`
	Tolerable  time.Duration `default:"15m" placeholder:"15m" help:"A wait that nobody minds."`
	JSON       bool          `name:"json" help:"Print the whole report as JSON (docs/advise.md)."`
	HTML       string        `name:"html" placeholder:"FILE" help:"Also write the report as one self-contained page with plots."`
}

// Help implements kong.HelpProvider.
func (adviseCmd) Help() string {
	return `Reads logs of finished jobs and says whether separate lanes would help: who makes whom wait in one line, what other lanes or more workers
would have changed, and which classes to verify first. Needs no gateway and no database, and changes nothing. Reads CSV with a header, JSON lines,
SWF, what sacct -P prints, Airflow's task_instance table as CSV, and plain worker logs.

Examples:

    lanegate advise runs.csv --resource db=15 --units pos-sales=5 --units weather=1
    sacct -P -a -S now-7days -o JobID,JobName,Submit,Eligible,Start,End,State | lanegate advise - --tz Europe/Berlin
    lanegate advise worker.log.gz --tz UTC --start-regex '^(?P<time>\S+ \S+) start (?P<class>\S+) (?P<id>\d+)' \
        --end-regex '^(?P<time>\S+ \S+) end (?P<id>\d+) (?P<status>\w+)'`
}

// Run reads, analyses and prints.
func (c adviseCmd) Run(ctx context.Context, t terminal) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	read, err := c.readOptions()
	if err != nil {
		return err
	}
	opts, err := c.options()
	if err != nil {
		return err
	}
	read.Progress = func(rows int) { t.notef("lanegate: %d rows read\n", rows) }
	log, err := c.read(ctx, t, read)
	if err != nil {
		return adviseError(err)
	}
	if len(log.Runs) >= manyRuns {
		t.notef("lanegate: replaying %d runs\n", len(log.Runs))
		opts.Progress = func(done, all int) { t.notef("lanegate: %d of %d replays done\n", done, all) }
	}
	report, err := runlog.Analyse(ctx, log, opts)
	if err != nil {
		return adviseError(err)
	}
	if c.HTML != "" {
		if err := writePage(c.HTML, report); err != nil {
			return err
		}
		t.notef("lanegate: wrote %s\n", c.HTML)
	}
	if c.JSON {
		enc := json.NewEncoder(t.out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(report)
	}
	return report.Text(t.out)
}

// writePage writes the page whole or not at all: a report that is being looked at
// is replaced, never cut short.
func writePage(name string, report *runlog.Report) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".lanegate-report-*")
	if err != nil {
		return usagef("--html: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("--html %s: %w", name, err)
		}
	}()
	if err = report.HTML(f); err != nil {
		return err
	}
	if err = f.Chmod(0o644); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// manyRuns take seconds to replay, so that a word about it is due.
const manyRuns = 250_000

// adviseError shows the sentence alone: the code of such an error is for programs.
func adviseError(err error) error {
	if e, ok := errors.AsType[*lanegate.Error](err); ok && e.Kind == lanegate.KindInvalid {
		return usagef("%s", e.Message)
	}
	return err
}

func (c adviseCmd) read(ctx context.Context, t terminal, opts runlog.ReadOptions) (*runlog.Log, error) {
	var sources []runlog.Source
	var files []*os.File
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	stdin := false
	for _, name := range c.Files {
		if name == "-" {
			if stdin {
				return nil, usagef("- (standard input) can be given once")
			}
			stdin = true
			sources = append(sources, runlog.Source{Name: "standard input", Reader: t.in})
			continue
		}
		f, err := openLog(name)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		sources = append(sources, runlog.Source{Name: name, Reader: f})
	}
	return runlog.Read(ctx, sources, opts)
}

func openLog(name string) (*os.File, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, usagef("%w", err)
	}
	if info, err := f.Stat(); err == nil && info.IsDir() {
		f.Close()
		return nil, usagef("%s is a directory; name the files in it", name)
	}
	return f, nil
}

func (c adviseCmd) readOptions() (runlog.ReadOptions, error) {
	opts := runlog.ReadOptions{Format: runlog.Format(c.Format)}
	var err error
	if opts.Columns, err = runlog.ParseColumns(c.Columns); err != nil {
		return opts, usagef("--columns: %w", adviseError(err))
	}
	if c.TZ != "" {
		if opts.Zone, err = time.LoadLocation(c.TZ); err != nil || c.TZ == "Local" {
			return opts, usagef("--tz %q is not a zone; write it like UTC or Europe/Berlin", c.TZ)
		}
	}
	for _, x := range []struct {
		flag, text string
		to         **regexp.Regexp
	}{{"--start-regex", c.StartRegex, &opts.StartLine}, {"--end-regex", c.EndRegex, &opts.EndLine}} {
		if x.text == "" {
			continue
		}
		if *x.to, err = regexp.Compile(x.text); err != nil {
			return opts, usagef("%s: %w", x.flag, err)
		}
	}
	if opts.StartLine != nil || opts.EndLine != nil || opts.Format == runlog.Lines {
		if err := runlog.CheckLineRegexps(opts.StartLine, opts.EndLine); err != nil {
			return opts, adviseError(err)
		}
	}
	return opts, nil
}

func (c adviseCmd) options() (runlog.Options, error) {
	opts := runlog.Options{Tolerable: c.Tolerable, Units: map[string]lanegate.Units{}}
	if c.Tolerable <= 0 {
		return opts, usagef("--tolerable must be more than nothing, e.g. 15m")
	}
	for _, s := range c.Resource {
		name, n, err := pair("--resource", s)
		if err != nil {
			return opts, err
		}
		r := lanegate.Resource{Name: name, Capacity: n, Pool: true}
		if faults := r.Validate(); len(faults) > 0 {
			return opts, usagef("--resource %s: %s %s", s, strings.TrimPrefix(faults[0].Pointer, "/"), faults[0].Detail)
		}
		opts.Resources = append(opts.Resources, r)
	}
	for _, s := range c.Units {
		if err := addUnits(&opts, s); err != nil {
			return opts, err
		}
	}
	return opts, nil
}

// addUnits reads CLASS=N or CLASS=NAME:N. A class's name may have = and : itself.
func addUnits(opts *runlog.Options, s string) error {
	at := strings.LastIndex(s, "=")
	if at < 1 {
		return usagef("--units %q is not of the form CLASS=N or CLASS=RESOURCE:N", s)
	}
	class, value := s[:at], s[at+1:]
	resource, number, named := strings.Cut(value, ":")
	if !named {
		number = value
		if len(opts.Resources) != 1 {
			return usagef("--units %q must name the resource (CLASS=RESOURCE:N), as there are %d", s, len(opts.Resources))
		}
		resource = opts.Resources[0].Name
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return usagef("--units %q: %q is not a whole number", s, number)
	}
	if opts.Units[class] == nil {
		opts.Units[class] = lanegate.Units{}
	}
	opts.Units[class][resource] = n
	return nil
}

func pair(flag, s string) (name string, n int, err error) {
	name, number, ok := strings.Cut(s, "=")
	if ok {
		n, err = strconv.Atoi(number)
	}
	if !ok || err != nil {
		return "", 0, usagef("%s %q is not of the form NAME=NUMBER", flag, s)
	}
	return name, n, nil
}
