package rig

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Explaining are settings for StartPostgres by which Explain works.
var Explaining = []string{
	"shared_preload_libraries=auto_explain", "auto_explain.log_nested_statements=on", "auto_explain.log_settings=on",
	"auto_explain.log_analyze=on", "auto_explain.log_buffers=on", "auto_explain.log_timing=off", "auto_explain.log_parameter_max_length=0",
	"logging_collector=on", "log_destination=csvlog", "log_directory=log", "log_filename=plans.log", "log_rotation_age=0", "log_rotation_size=0",
}

// Plan is a statement that ran, as EXPLAIN (ANALYZE, BUFFERS, SETTINGS, COSTS OFF,
// TIMING OFF) would show it.
type Plan struct {
	Application, Database string // of the session
	// Query is the text that was sent, or what prepared it: all of that, when several
	// statements were sent together.
	Query string
	// Took is the execution's time, which explaining made longer.
	Took time.Duration
	Text string
}

// Explain returns the plans of all statements that are executed meanwhile, in the
// order of their ends, but for some of the first: sessions begin to tell theirs one
// after the other.
func (s *Postgres) Explain(ctx context.Context, do func() error) ([]Plan, error) {
	if err := s.explainFrom(ctx, "ALTER SYSTEM SET auto_explain.log_min_duration = 0", "0"); err != nil {
		return nil, err
	}
	file := filepath.Join(s.dir, "data", "log", "plans.csv")
	before, err := os.Stat(file)
	if err != nil {
		return nil, fmt.Errorf("the server's log: %w", err)
	}
	err = do()
	if err := errors.Join(err, s.explainFrom(ctx, "ALTER SYSTEM RESET auto_explain.log_min_duration", "-1")); err != nil {
		return nil, err
	}
	text, err := s.logged(ctx, file, before.Size())
	if err != nil {
		return nil, err
	}
	return readPlans(text)
}

// explainFrom changes from what duration on plans are logged, and waits until it holds.
func (s *Postgres) explainFrom(ctx context.Context, change, want string) error {
	for _, q := range []string{change, "SELECT pg_reload_conf()"} {
		if _, err := s.admin.ExecContext(ctx, q); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
	}
	return s.proc.Await(time.Minute, func() error {
		var got string
		if err := s.admin.QueryRowContext(ctx, "SHOW auto_explain.log_min_duration").Scan(&got); err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("auto_explain.log_min_duration is %s instead of %s", got, want)
		}
		return nil
	})
}

// logged returns what the server has logged behind offset, up to now.
func (s *Postgres) logged(ctx context.Context, file string, offset int64) (text []byte, err error) {
	mark := fmt.Sprintf("read up to here %d", time.Now().UnixNano())
	if _, err := s.admin.ExecContext(ctx, "DO $$ BEGIN RAISE LOG '"+mark+"'; END $$"); err != nil {
		return nil, err
	}
	err = s.proc.Await(time.Minute, func() error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		if text, err = io.ReadAll(io.NewSectionReader(f, offset, 1<<40)); err != nil {
			return err
		}
		if !bytes.Contains(text, []byte(mark)) || text[len(text)-1] != '\n' {
			return errors.New("the server's log does not come")
		}
		return nil
	})
	return text, err
}

// Columns of csvlog, as far as they are looked at.
const (
	csvDatabase, csvMessage, csvApplication = 2, 13, 22
)

var (
	explained = regexp.MustCompile(`(?s)^duration: ([0-9.]+ ms)  plan:\nQuery Text: (.*?)\n([^\n]+  \(cost=.*)$`)
	costs     = regexp.MustCompile(`  \(cost=[^)]*\)`)
)

// readPlans finds them in a log in csvlog's format.
func readPlans(log []byte) (plans []Plan, err error) {
	lines := csv.NewReader(bytes.NewReader(log))
	lines.FieldsPerRecord = -1 // newer servers have more
	for {
		line, err := lines.Read()
		if errors.Is(err, io.EOF) {
			return plans, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the server's log: %w", err)
		}
		if len(line) <= csvApplication {
			return nil, fmt.Errorf("the server's log has a line of %d columns", len(line))
		}
		found := explained.FindStringSubmatch(line[csvMessage])
		if found == nil {
			continue
		}
		took, err := time.ParseDuration(strings.ReplaceAll(found[1], " ", ""))
		if err != nil {
			return nil, err
		}
		plans = append(plans, Plan{
			Application: line[csvApplication], Database: line[csvDatabase], Query: found[2], Took: took, Text: costs.ReplaceAllString(found[3], ""),
		})
	}
}
