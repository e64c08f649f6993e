package app_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/app"
	"github.com/lanegate/lanegate/worker"
)

// writeConfig writes text as lanegate.yaml into a directory that becomes the
// working directory, so that faults name it shortly.
func writeConfig(t *testing.T, text string) string {
	t.Helper()
	t.Chdir(t.TempDir())
	if err := os.WriteFile("lanegate.yaml", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return "lanegate.yaml"
}

func envOf(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// faultsOf returns the faults as lines, or fails.
func faultsOf(t *testing.T, err error) []string {
	t.Helper()
	ce, ok := errors.AsType[*app.ConfigError](err)
	if !ok {
		t.Fatalf("err = %v, want a ConfigError", err)
	}
	var lines []string
	for _, f := range ce.Faults {
		lines = append(lines, f.String())
	}
	return lines
}

func TestLoadDefaults(t *testing.T) {
	t.Chdir(t.TempDir())
	c, err := app.Load(app.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	got := []any{c.Listen, c.Database, c.Slots, c.Lease, c.Beat, c.KillGrace, c.Drain, c.StartWait, c.StarveAfter,
		c.Limits.Payload, c.Limits.Batch, c.Limits.Depth, c.Retention.Jobs, c.Retention.RunLog}
	want := []any{"127.0.0.1:8080", filepath.Join(wd, "lanegate.db"), 64, time.Minute, 10 * time.Second, 10 * time.Second, 30 * time.Second,
		30 * time.Second, 10 * time.Minute, 1 << 20, 16 << 20, 512, 720 * time.Hour, 2160 * time.Hour}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestLoadPrecedence(t *testing.T) {
	file := writeConfig(t, "drain: 1s\nslots: 1\nlimits: {depth: 7}\nserve_lanes: [serial, long]\n")
	env := map[string]string{"LANEGATE_DRAIN": "2s", "LANEGATE_SLOTS": "2", "LANEGATE_LEASE": ""}
	c, err := app.Load(app.Sources{File: file, Env: envOf(env), Flags: map[string]string{"drain": "wait"}})
	if err != nil {
		t.Fatal(err)
	}
	if c.Drain != worker.DrainWait {
		t.Errorf("drain = %v, want the flag's", c.Drain)
	}
	if c.Slots != 2 {
		t.Errorf("slots = %d, want the variable's", c.Slots)
	}
	if c.Limits.Depth != 7 || !slices.Equal(c.ServeLanes, []string{"serial", "long"}) {
		t.Errorf("depth %d, lanes %q, want the file's", c.Limits.Depth, c.ServeLanes)
	}
	if c.Lease != time.Minute {
		t.Errorf("lease = %v, want the default: the variable is empty", c.Lease)
	}
}

func TestLoadSections(t *testing.T) {
	file := writeConfig(t, `
tokens: [{name: cron, role: submit, sha256: `+strings.Repeat("0123", 16)+`, classes: [pos-sales]}]
resources: {db: {capacity: 15, pool: true}}
lanes:
  long: {width: 1}
  parallel: {width: auto}
commands:
  nightly: {argv: [sleep, 5, 010], env: &env {TZ: UTC, N: 007}, dir: .}
  other: {argv: [true], env: *env}
classes:
  pos-sales: {run: {kind: exec, command: nightly}, units: {db: 5}, fresh_within: 26h, backoff: {base: 2m}, repeatable: false}
  none: {run: {kind: exec, command: other}, units: {}}
  undeclared: {run: {kind: exec, command: other}}
default_target: {run: {kind: http, url: "http://127.0.0.1:1/x"}}
`)
	c, err := app.Load(app.Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{"sleep", "5", "010"}, c.Commands["nightly"].Argv); d != "" {
		t.Errorf("texts must stay as written: %s", d)
	}
	if got := c.Commands["other"].Env["N"]; got != "007" || c.Commands["other"].Argv[0] != "true" {
		t.Errorf("alias: N = %q, argv %q", got, c.Commands["other"].Argv)
	}
	if got := c.Tokens[0].SHA256; got != strings.Repeat("0123", 16) {
		t.Errorf("sha256 = %q: digits are a text, not a number", got)
	}
	k := c.Classes["pos-sales"]
	if k.Units["db"] != 5 || k.FreshWithin.Std() != 26*time.Hour || k.Repeatable == nil || *k.Repeatable {
		t.Errorf("class = %+v", k)
	}
	if k.Backoff.Base.Std() != 2*time.Minute || k.Backoff.Max != lanegate.DefaultBackoffMax {
		t.Errorf("backoff = %+v, want the other half by default", k.Backoff)
	}
	if c.Classes["none"].Units == nil || c.Classes["undeclared"].Units != nil {
		t.Error("units: {} declares, a missing one doesn't")
	}
	fc := c.FileConfig()
	if len(fc.Lanes) != 2 || fc.Lanes[0].Order != lanegate.OrderFIFO || fc.Lanes[1].Order != lanegate.OrderFair {
		t.Errorf("lanes = %+v", fc.Lanes)
	}
}

// Every bad value is reported with its source, and all of them at once.
func TestLoadFaults(t *testing.T) {
	for _, tt := range []struct {
		name, file string
		env, flags map[string]string
		want       []string // each must be the beginning of the fault at its place
	}{
		{"every source at once", "beat: 10x\nslots: many\n", map[string]string{"LANEGATE_LEASE": "-3s"}, map[string]string{"drain": "soon"}, []string{
			`lanegate.yaml:1: beat: "10x" is not a duration`,
			`lanegate.yaml:2: slots: "many" is not a whole number`,
			`LANEGATE_LEASE: a duration must not be negative`,
			`--drain: "soon" is not a duration`,
		}},
		{"a wrong value is a fault even where a flag wins", "drain: 10x\n", nil, map[string]string{"drain": "1s"}, []string{`lanegate.yaml:1: drain: "10x"`}},
		{"unknown keys", "listn: 1\nlimits: {paylod: 1}\nclasses:\n  a:\n    run: {kind: exec, comand: x, command: x}\n    nonsense: 1\n", nil, nil, []string{
			`lanegate.yaml:1: listn: is not a known key; did you mean "listen"?`,
			`lanegate.yaml:2: limits.paylod: is not a known key; did you mean "payload"?`,
			`lanegate.yaml:5: classes.a.run.comand: is not a known key; did you mean "command"?`,
			`lanegate.yaml:6: classes.a.nonsense: is not a known key; known here are: backoff, `,
		}},
		{"duplicate keys", "drain: 1s\nresources: {db: {capacity: 1}}\ndrain: 2s\nresources: {}\n", nil, nil, []string{
			`lanegate.yaml:3: drain: appears twice; the first is in line 1`,
			`lanegate.yaml:4: resources: appears twice`,
		}},
		{"a file never sets what needs proof", "commands: {x: {argv: [x]}}\nclasses:\n  a:\n    run: {kind: exec, command: x}\n    lane: parallel\n    max_in_flight: 3\n", nil, nil, []string{
			`lanegate.yaml:5: classes.a.lane: can't be set in a file`,
			`lanegate.yaml:6: classes.a.max_in_flight: can't be set in a file`,
		}},
		{"lease too short (C31)", "lease: 30s\n", map[string]string{"LANEGATE_BEAT": "9s"}, nil, []string{
			`lanegate.yaml:1: lease: beat × 3 + kill_grace + 5s must not be more than lease: with beat 9s and kill_grace 10s the lease must be at least 42s, it is 30s (beat is from LANEGATE_BEAT, kill_grace from default)`,
		}},
		{"absurd durations", "retention: {jobs: 24h, run_log: 900000h}\nkill_grace: 0s\nstarve_after: 5\n", nil, nil, []string{
			`lanegate.yaml:1: retention.run_log: "900000h" is too long: at most 87840h, which is ten years`,
			`lanegate.yaml:1: retention.jobs: 24h is too short: at least 168h`,
			`lanegate.yaml:2: kill_grace: 0s is too short`,
			`lanegate.yaml:3: starve_after: "5" is not a duration`,
		}},
		{"durations of a class that can't be meant", "commands: {x: {argv: [x]}}\nclasses:\n  a:\n    run: {kind: exec, command: x}\n    timeout: 0s\n    warn_after: 1ns\n    backoff: {base: 0s, max: 99999999h}\n    fresh_within: -1h\n", nil, nil, []string{
			`lanegate.yaml:5: classes.a.timeout: "0s" is too short: at least 1ms; to have none, or the default, leave the field out`,
			`lanegate.yaml:6: classes.a.warn_after: "1ns" is too short`,
			`lanegate.yaml:7: classes.a.backoff.base: "0s" is too short`,
			`lanegate.yaml:7: classes.a.backoff.max: "99999999h" is too long: at most 87840h, which is ten years`,
			`lanegate.yaml:8: classes.a.fresh_within: a duration must not be negative`,
		}},
		{"tokens", "tokens:\n- {name: a, role: submit, sha256: " + strings.Repeat("a", 64) + "}\n- {name: a, role: root, sha256: xyz}\n- {role: view, sha256: " + strings.Repeat("A", 64) + "}\n- {name: b, role: view, token: s3cret}\n", nil, nil, []string{
			`lanegate.yaml:3: tokens[1].name: "a" is the name of tokens[0] already`,
			`lanegate.yaml:3: tokens[1].role: must be one of submit, view`,
			`lanegate.yaml:3: tokens[1].sha256: must be the 64 hex digits`,
			`lanegate.yaml:4: tokens[2].name: is required`,
			`lanegate.yaml:4: tokens[2].sha256: is the same as that of tokens[0]`,
			`lanegate.yaml:5: tokens[3].token: secrets don't belong into this file`,
			`lanegate.yaml:5: tokens[3].sha256: must be the 64 hex digits`,
		}},
		{"names that lead nowhere", "resources: {db: {capacity: 15}}\nclasses:\n  a: {run: {kind: http, url: \"http://x/\"}, units: {dbs: 5}}\n", nil, nil, []string{
			`lanegate.yaml:3: classes.a.units.dbs: there is no resource "dbs" under resources (did you mean "db"?)`,
		}},
		{"class faults have lines", "classes:\n  a:\n    run:\n      kind: ftp\n    overlap: maybe\n    max_attempts: 1000\n  Bad Name: {run: {kind: http, url: \"http://x/\"}}\n", nil, nil, []string{
			`lanegate.yaml:4: classes.a.run.kind: must be "exec", "http"`,
			`lanegate.yaml:5: classes.a.overlap: must be "queue"`,
			`lanegate.yaml:6: classes.a.max_attempts: must be a whole number`,
			`lanegate.yaml:7: classes.Bad Name: is not a name`,
		}},
		{"lanes and resources", "lanes: {serial: {width: 2}, long: {width: 0}, l2: {order: lifo}}\nresources: {db: {pool: true}, x: {capacity: -1}}\n", nil, nil, []string{
			`lanegate.yaml:1: lanes.long.width: must be "auto" or a whole number`,
			`lanegate.yaml:1: lanes.l2.order: must be "fifo" or "fair"`,
			`lanegate.yaml:1: lanes.serial: is built in`,
			`lanegate.yaml:2: resources.db: needs a capacity`,
			`lanegate.yaml:2: resources.x.capacity: must be a whole number`,
		}},
		{"commands", "commands:\n  a: {argv: []}\n  b: {argv: sh -c x}\n  c: {argv: [x], env: {LANEGATE_JOB_ID: 1, \"A=B\": 1}, shell: true}\n  d: {argv: [x], env_file: none.env}\n", nil, nil, []string{
			`lanegate.yaml:2: commands.a.argv: must name a program`,
			`lanegate.yaml:3: commands.b.argv: must be a list, like [a, b], not a single value`,
			`lanegate.yaml:3: commands.b.argv: must name a program`,
			`lanegate.yaml:4: commands.c.shell: a command is a list under argv`,
			`lanegate.yaml:4: commands.c.env: "A=B" is not a variable name`,
			`lanegate.yaml:4: commands.c.env: "LANEGATE_JOB_ID" is set by lanegate`,
			`lanegate.yaml:5: commands.d.env_file: env_file`,
		}},
		{"loopback only without tokens", "", map[string]string{"LANEGATE_LISTEN": "0.0.0.0:8080"}, nil, []string{`LANEGATE_LISTEN: 0.0.0.0:8080 can be reached from other machines, and there are no tokens`}},
		{"the sum of the stop's limits", "stop_within: 30s\n", nil, nil, []string{`lanegate.yaml:1: stop_within: 30s is less than a stop may take: 6s for requests + drain 30s (from default)`}},
		{"a drain without limit under a limit", "stop_within: 30s\n", nil, map[string]string{"drain": "wait"}, []string{`lanegate.yaml:1: stop_within: is set, but drain (from --drain) is "wait"`}},
		{"intake", `intake:
  - {queue: a, class: c}
  - {queue: "https://sqs.x/1/a", as: submission}
  - {queue: a.b, class: c}
  - {queue: d}
  - {queue: e, class: c, as: submission}
  - {queue: f, as: jobs}
  - {queue: g, as: submission, body: text, key: run}
  - {queue: h, class: c, classes: [c], body: xml}
  - {queue: i, as: submission, classes: []}
  - {class: c}
`, nil, nil, []string{
			`lanegate.yaml:3: intake[1]: is called a, as intake[0] is already`,
			`lanegate.yaml:4: intake[2].queue: must be the name of a queue`,
			`lanegate.yaml:5: intake[3]: needs either as: submission`,
			`lanegate.yaml:6: intake[4]: needs either as: submission`,
			`lanegate.yaml:7: intake[5].as: must be "submission", not "jobs"`,
			`lanegate.yaml:8: intake[6].body: is for class`,
			`lanegate.yaml:8: intake[6].key: "run" says of no place where a key could be`,
			`lanegate.yaml:9: intake[7].classes: is for as: submission`,
			`lanegate.yaml:9: intake[7].body: must be "json" or "text", not "xml"`,
			`lanegate.yaml:10: intake[8].classes: is empty`,
			`lanegate.yaml:11: intake[9].queue: is required`,
		}},
		{"public URL", "public_url: gateway.example.com\n", nil, nil, []string{`lanegate.yaml:1: public_url: "gateway.example.com" is not the address of a gateway`}},
		{"addresses", "listen: http://localhost:8080\ntrusted_proxies: [10.0.0.0/8, all]\n", nil, nil, []string{
			`lanegate.yaml:1: listen: "http://localhost:8080" is not an address`,
			`lanegate.yaml:2: trusted_proxies: "all" is not a network`,
		}},
		{"databases", "database: postgres://u:s3cret@h/db\n", map[string]string{"LANEGATE_DATABASE": ":memory:"}, nil, []string{
			`lanegate.yaml:1: database: the database URL names no sslmode: add ?sslmode=verify-full`,
			`LANEGATE_DATABASE: must be a plain path`,
		}},
		{"other databases", "database: mysql://u:s3cret@h/db\n", map[string]string{"LANEGATE_DATABASE": "postgres://u:s3%zzcret@h/db?sslmode=require"}, nil, []string{
			`lanegate.yaml:1: database: mysql:// is no database lanegate knows; give the path of a SQLite file or a postgres:// URL`,
			`LANEGATE_DATABASE: the database URL can't be read`,
		}},
		{"doorbells", "doorbell: postgres\nsqs: {prefix: a.b, wait: 1500ms, visibility: 0s, endpoint: localhost, region: \"\", bell: 1}\n", nil, nil, []string{
			`lanegate.yaml:1: doorbell: postgres needs a PostgreSQL database (database is from default)`,
			`lanegate.yaml:2: sqs.prefix: the queue prefix "a.b" must be at most 17`,
			`lanegate.yaml:2: sqs.wait: 1500ms must be whole seconds`,
			`lanegate.yaml:2: sqs.visibility: 0s is too short: at least 1s`,
			`lanegate.yaml:2: sqs.endpoint: "localhost" is not a URL`,
			`lanegate.yaml:2: sqs.bell: is not a known key`,
		}},
		{"no workers for some lanes", "no_workers: true\nserve_lanes: [serial]\n", nil, nil, []string{
			`lanegate.yaml:2: serve_lanes: names lanes to run jobs of, and no_workers (from lanegate.yaml:1) says to run none`,
		}},
		{"few connections", "database_connections: 5\n", nil, nil, []string{`lanegate.yaml:1: database_connections: "5" is not a whole number from 6`}},
		{"a stop with an open poll", "database: postgres://h/db?sslmode=require\ndoorbell: sqs\nstop_within: 60s\n", nil, nil, []string{
			`lanegate.yaml:3: stop_within: 1m is less than a stop may take: 6s for requests + drain 30s (from default) + kill_grace 10s (from default) + 30s for the doorbell + 5s to close = 1m21s`,
		}},
		{"nothing behind a key", "drain:\nclasses:\n", nil, nil, []string{`lanegate.yaml:1: drain: has no value`, `lanegate.yaml:2: classes: must be a list of keys with values (key: value), not nothing`}},
		{"not YAML", "drain: [1\n", nil, nil, []string{`lanegate.yaml:1: is not valid YAML`}},
		{"two documents", "drain: 1s\n---\ndrain: 2s\n", nil, nil, []string{`lanegate.yaml:3: a second document`}},
		{"not UTF-8", "listen: \xff\n", nil, nil, []string{`lanegate.yaml: is not UTF-8 text`}},
		{"aliases", "commands: &c {x: {argv: *c}}\nslots: *nobody\n", nil, nil, []string{
			`lanegate.yaml:1: commands.x.argv: must be a list, like [a, b], not keys with values`,
			`lanegate.yaml:1: commands.x.argv: must name a program`,
			`lanegate.yaml:2: slots: *nobody names no anchor above it`,
		}},
		{"merge keys", "commands: {x: {<<: {}, argv: [x]}}\n", nil, nil, []string{`lanegate.yaml:1: commands.x: merge keys (<<) are not supported`}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := writeConfig(t, tt.file)
			_, err := app.Load(app.Sources{File: file, Env: envOf(tt.env), Flags: tt.flags})
			got := faultsOf(t, err)
			if len(got) != len(tt.want) {
				t.Fatalf("%d faults, want %d:\n%s", len(got), len(tt.want), strings.Join(got, "\n"))
			}
			for i := range got {
				if !strings.HasPrefix(got[i], tt.want[i]) {
					t.Errorf("fault %d:\n got %s\nwant %s…", i, got[i], tt.want[i])
				}
			}
			if strings.Contains(err.Error(), "s3cret") {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, err := app.Load(app.Sources{File: filepath.Join(t.TempDir(), "none.yaml")})
	if err == nil || !strings.Contains(err.Error(), "none.yaml does not exist") {
		t.Errorf("err = %v", err)
	}
}

func TestConfigShowsNoSecrets(t *testing.T) {
	file := writeConfig(t, "commands: {x: {argv: [x], env: {PW: s3cret}}}\nclasses: {a: {run: {kind: http, url: \"http://x/\", headers: {Authorization: s3cret}}}}\n")
	c, err := app.Load(app.Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		for _, v := range []any{c, &c} {
			if text := fmt.Sprintf(format, v); strings.Contains(text, "s3cret") {
				t.Errorf("%s shows a secret: %s", format, text)
			}
		}
	}
}

func TestConfigWarnings(t *testing.T) {
	file := writeConfig(t, "commands: {pos-sales: {argv: [x], dir: nowhere}}\nclasses: {a: {run: {kind: exec, command: pos-sale}}}\nserve_lanes: [parallel]\n")
	c, err := app.Load(app.Sources{File: file})
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Join(c.Warnings, "\n")
	for _, want := range []string{"no directory", `did you mean "pos-sales"?`, "leaves out serial"} {
		if !strings.Contains(all, want) {
			t.Errorf("no warning says %q:\n%s", want, all)
		}
	}
}

// The doorbell follows the database; a PostgreSQL URL is no path, and is shown
// without its password.
func TestPostgresConfig(t *testing.T) {
	t.Chdir(t.TempDir())
	work := filepath.Join(os.TempDir(), fmt.Sprintf("lanegate-%d.work", os.Getuid()))
	const dsn = "postgres://u:s3cret@db.example/jobs?sslmode=verify-full"
	load := func(flags map[string]string) app.Config {
		t.Helper()
		c, err := app.Load(app.Sources{Flags: flags})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := load(map[string]string{"database": dsn})
	if c.Database != dsn || c.ShownDatabase() != "postgres://u@db.example/jobs?sslmode=verify-full" || c.Doorbell != app.DoorbellPostgres || c.WorkDir != work || len(c.Warnings) > 0 {
		t.Errorf("%s, doorbell %s, work in %s, warnings %q", c.ShownDatabase(), c.Doorbell, c.WorkDir, c.Warnings)
	}
	if c = load(nil); c.Doorbell != app.DoorbellLocal {
		t.Errorf("on SQLite the doorbell is %s", c.Doorbell)
	}
	if c = load(map[string]string{"database": dsn, "doorbell": "sqs", "lanes": "long", "sqs-visibility": "5s"}); c.Doorbell != app.DoorbellSQS || c.SQS.Visibility != 5*time.Second || !slices.Equal(c.ServeLanes, []string{"long"}) {
		t.Errorf("doorbell %s, %v, lanes %q", c.Doorbell, c.SQS, c.ServeLanes)
	}
	for _, tt := range []struct {
		flags map[string]string
		want  string
	}{
		{map[string]string{"database": dsn, "doorbell": "local"}, "tells no other process"},
		{map[string]string{"database": dsn, "sqs-prefix": "x"}, "sqs.prefix (from --sqs-prefix) has no effect"},
		{map[string]string{"no-workers": "true"}, "with SQLite no other process runs jobs"},
	} {
		if c = load(tt.flags); !strings.Contains(strings.Join(c.Warnings, "\n"), tt.want) {
			t.Errorf("warnings %q, want one that says %q", c.Warnings, tt.want)
		}
	}
}

func TestFileConfigHash(t *testing.T) {
	load := func(text string) string {
		t.Helper()
		c, err := app.Load(app.Sources{File: writeConfig(t, text)})
		if err != nil {
			t.Fatal(err)
		}
		fc := c.FileConfig()
		return fc.Hash
	}
	base := load("resources: {db: {capacity: 2}}\nclasses: {a: {run: {kind: http, url: \"http://x/\"}}, b: {run: {kind: http, url: \"http://y/\"}, units: {db: 1}}}\n")
	same := load("# form and order don't count\nclasses:\n  b: {units: {db: 1}, run: {url: \"http://y/\", kind: http, mode: sync}}\n  a:\n    run: {kind: http, url: 'http://x/'}\nresources: {db: {capacity: 2}}\ndrain: 5s\n")
	if base != same {
		t.Error("the same set has two hashes")
	}
	for _, other := range []string{
		"resources: {db: {capacity: 3}}\nclasses: {a: {run: {kind: http, url: \"http://x/\"}}, b: {run: {kind: http, url: \"http://y/\"}, units: {db: 1}}}\n",
		"resources: {db: {capacity: 2}}\nclasses: {a: {run: {kind: http, url: \"http://x/\"}, units: {}}, b: {run: {kind: http, url: \"http://y/\"}, units: {db: 1}}}\n",
	} {
		if load(other) == base {
			t.Errorf("another set has the same hash: %s", other)
		}
	}
}

func TestUnknownEnv(t *testing.T) {
	got := app.UnknownEnv([]string{"PATH=/bin", "LANEGATE_LISTEN=x", "LANEGATE_LITSEN=x", "LANEGATE_PORT_8080_TCP=x", "LANEGATE_SERVICE_HOST=x", "LANEGATE_JOB_ID=1", "LANEGATE_TOKEN=x"})
	if d := cmp.Diff([]string{"LANEGATE_LITSEN"}, got); d != "" {
		t.Error(d)
	}
}

func TestExampleConfig(t *testing.T) {
	t.Chdir("..")
	for file, classes := range map[string]int{"examples/retail/lanegate.yaml": 4, "examples/production/lanegate.yaml": 2} {
		c, err := app.Load(app.Sources{File: file})
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Classes) < classes || len(c.Warnings) > 0 {
			t.Errorf("%s: %d classes, warnings %q", file, len(c.Classes), c.Warnings)
		}
	}
}

// Without tokens another address than loopback needs a word of its own.
func TestLoadInsecure(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, listen := range []string{"0.0.0.0:80", ":80", "[::]:80"} {
		flags := map[string]string{"listen": listen}
		if _, err := app.Load(app.Sources{Flags: flags}); err == nil {
			t.Errorf("%s is served without tokens", listen)
		}
		flags["insecure-no-auth"] = "true"
		if _, err := app.Load(app.Sources{Flags: flags}); err != nil {
			t.Errorf("%s with --insecure-no-auth: %v", listen, err)
		}
	}
	file := writeConfig(t, "listen: 0.0.0.0:80\ntokens: [{name: a, role: admin, sha256: "+strings.Repeat("ab", 32)+"}]\n")
	if _, err := app.Load(app.Sources{File: file}); err != nil {
		t.Errorf("with a token: %v", err)
	}
}
