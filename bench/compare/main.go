// Command compare measures lanegate's real binary beside other job queues, the
// same HTTP handler over nothing, and bare statements: in one run, on one machine,
// in turns, each round against the others' of the same round.
//
//	make build && cd bench && go run ./compare -binary ../bin/lanegate -out ../bin/bench
//
// It writes table.md and results.json into the folder given with -out, and with
// -docs puts the tables between the marks of that file.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/lanegate/lanegate/bench/peer"
	"github.com/lanegate/lanegate/bench/rig"
)

func main() {
	log.SetFlags(log.Ltime)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		stop()
		log.Fatal(err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) > 0 && args[0] == "peer" {
		return servePeer(ctx, args[1:])
	}
	var e env
	var only, docs string
	fs := flag.NewFlagSet("compare", flag.ContinueOnError)
	fs.StringVar(&e.binary, "binary", "../bin/lanegate", "the lanegate to measure")
	fs.StringVar(&e.out, "out", "../bin/bench", "folder for results.json, table.md and what else is found")
	fs.StringVar(&docs, "docs", "", "markdown file to put the tables into, between its marks")
	fs.StringVar(&only, "cells", "", "names of cells to measure, separated by commas; all when left out, -cells help lists them")
	fs.BoolVar(&e.quick, "quick", false, "small sizes, short spans, few rounds")
	fs.BoolVar(&e.large, "large", false, "the backlogs of 5 million, too")
	fs.IntVar(&e.rounds, "rounds", 0, "rounds of each cell; 0: its own number")
	fs.DurationVar(&e.quiet, "quiet", 0, "how long to wait for a quiet machine before a measurement, at most; 0: 20s, in a quick run 3s")
	render := fs.Bool("render", false, "measure nothing: write the tables again from the results.json of an earlier run")
	soak := fs.Duration("soak", 0, "instead of the cells: run at half of the peak for this long and write soak.svg")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if e.quiet == 0 {
		e.quiet = pick(&e, 20*time.Second, 3*time.Second)
	}
	chosen, err := choose(only)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(e.out, 0o755); err != nil {
		return err
	}
	if *render {
		return e.render(docs)
	}
	if err := e.open(ctx); err != nil {
		return errors.Join(err, e.close())
	}
	if *soak > 0 {
		return errors.Join(e.soak(ctx, *soak), e.close())
	}
	return errors.Join(e.measure(ctx, chosen, docs), e.close())
}

// measure measures the cells one after the other and writes what there is after
// each, so that a run that is cut short leaves it.
func (e *env) measure(ctx context.Context, chosen []cell, docs string) error {
	report := &rig.Report{Machine: e.machine(), Quick: e.quick}
	for _, c := range chosen {
		if ctx.Err() != nil {
			break
		}
		began := time.Now()
		report.Cells = append(report.Cells, c.run(ctx, e))
		log.Printf("%s: %v", c.name, time.Since(began).Round(time.Second))
		if err := e.write(report, docs); err != nil {
			return err
		}
	}
	return errors.Join(report.Markdown(os.Stdout), ctx.Err(), failed(report))
}

func failed(r *rig.Report) error {
	var errs []error
	for _, c := range r.Cells {
		if c.Failed != "" {
			errs = append(errs, fmt.Errorf("%s: %s", c.Name, c.Failed))
		}
	}
	return errors.Join(errs...)
}

// choose picks cells by name.
func choose(only string) ([]cell, error) {
	if only == "" {
		return cells, nil
	}
	var names []string
	for _, c := range cells {
		names = append(names, c.name)
	}
	var chosen []cell
	for name := range strings.SplitSeq(only, ",") {
		found := false
		for _, c := range cells {
			if c.name == name || strings.HasPrefix(c.name, strings.TrimSuffix(name, "*")) && strings.HasSuffix(name, "*") {
				chosen, found = append(chosen, c), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no cell %q; there are: %s", name, strings.Join(names, " "))
		}
	}
	return chosen, nil
}

// The marks between which -docs puts the tables.
const (
	docsBegin = "<!-- the tables of make bench: begin -->"
	docsEnd   = "<!-- the tables of make bench: end -->"
)

func (e *env) write(r *rig.Report, docs string) error {
	js, err := os.Create(filepath.Join(e.out, "results.json"))
	if err != nil {
		return err
	}
	if err := errors.Join(r.JSON(js), js.Close()); err != nil {
		return err
	}
	var md strings.Builder
	if err := r.Markdown(&md); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(e.out, "table.md"), []byte(md.String()), 0o644); err != nil {
		return err
	}
	if docs == "" {
		return nil
	}
	text, err := os.ReadFile(docs)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), docsBegin)
	_, after, ok2 := strings.Cut(rest, docsEnd)
	if !ok || !ok2 {
		return fmt.Errorf("%s has not both marks, %s and %s", docs, docsBegin, docsEnd)
	}
	return os.WriteFile(docs, []byte(before+docsBegin+"\n\n"+md.String()+"\n"+docsEnd+after), 0o644)
}

// render writes the tables of an earlier run again.
func (e *env) render(docs string) error {
	text, err := os.ReadFile(filepath.Join(e.out, "results.json"))
	if err != nil {
		return err
	}
	var r rig.Report
	if err := json.Unmarshal(text, &r); err != nil {
		return fmt.Errorf("results.json: %w", err)
	}
	return e.write(&r, docs)
}

// servePeer is this program as one of the peers.
func servePeer(ctx context.Context, args []string) error {
	if len(args) != 3 {
		return errors.New("compare peer KIND ADDRESS CONFIG is for compare itself")
	}
	var cfg peer.Config
	if err := json.Unmarshal([]byte(args[2]), &cfg); err != nil {
		return err
	}
	return peer.Serve(ctx, args[0], args[1], cfg)
}

// machine describes it without naming it.
func (e *env) machine() string {
	return fmt.Sprintf("%d cores, %s, PostgreSQL %s with fsync and synchronous_commit on, %s", runtime.NumCPU(), runtime.GOOS, e.pg.Version, runtime.Version())
}
