package app

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/store"
	"github.com/lanegate/lanegate/worker/runner"
)

// Config is everything an operator can say about one process. Load makes it;
// a Config that Load returned without an error is valid.
//
// It holds secrets (environments of commands, headers of targets), so its text
// forms show nothing of it.
type Config struct {
	// File is the absolute path of the config file, "" when there is none.
	File     string
	Listen   string
	Database string // absolute path of a SQLite file, or a PostgreSQL URL; see ShownDatabase
	WorkDir  string // absolute path

	// Conns bounds the connections to PostgreSQL.
	Conns int
	// Doorbell is one of DoorbellLocal, DoorbellPostgres and DoorbellSQS.
	Doorbell string
	SQS      SQS
	// PublicURL is where clients reach this gateway, without a slash behind; "" when
	// nobody said.
	PublicURL string

	Intake        []Intake
	Tokens        []Token
	Resources     map[string]Resource
	Lanes         map[string]Lane
	Commands      map[string]runner.Command
	Classes       map[string]lanegate.ClassSpec
	DefaultTarget *lanegate.ClassSpec

	Slots       int
	ServeLanes  []string // nil: all
	NoWorkers   bool     // this process runs no jobs, it serves HTTP only
	Lease       time.Duration
	Beat        time.Duration
	KillGrace   time.Duration
	Drain       time.Duration // worker.DrainWait: no limit
	StartWait   time.Duration
	StopWithin  time.Duration // 0: not known
	StarveAfter time.Duration

	Limits struct {
		Payload int // bytes
		Batch   int // bytes
		Depth   int
	}
	Retention struct {
		Jobs   time.Duration
		RunLog time.Duration
	}
	Log struct {
		Level  string
		Format string
	}
	TrustedProxies []netip.Prefix
	MetricsPublic  bool
	InsecureNoAuth bool

	// Warnings are sentences about what is accepted but probably not meant.
	Warnings []string

	origins map[string]origin // setting's key → where its value came from
	texts   map[string]string // setting's key → its value as it was written
	doc     *document         // for the lines of faults found later; nil without a file
}

// The doorbells.
const (
	DoorbellLocal    = "local"    // wakes the worker of this process only
	DoorbellPostgres = "postgres" // LISTEN and NOTIFY
	DoorbellSQS      = "sqs"      // one queue per lane
)

// SQS says how SQS is reached, and how the doorbell sqs uses its queues.
type SQS struct {
	Prefix     string
	Region     string // "": where every AWS program finds it
	Endpoint   string // "": the region's
	AllowHTTP  bool
	Wait       time.Duration
	Visibility time.Duration
}

// Token is a client's credential; only the digest of its secret is known here.
type Token struct {
	Name   string `yaml:"name"`
	Role   string `yaml:"role"`
	SHA256 string `yaml:"sha256"` // 64 hex digits, of the whole token text
	// Classes that the token may submit to and see; nil means all.
	Classes []string `yaml:"classes"`
}

// Resource is a declared resource.
type Resource struct {
	Capacity int  `yaml:"capacity"`
	Pool     bool `yaml:"pool"`
	// Probe is a PostgreSQL URL; the connections that runs outside serial hold there
	// are counted and compared with their units. It stays in this process: neither
	// the database nor the API knows it.
	Probe string `yaml:"probe"`
}

// Lane is a declared lane.
type Lane struct {
	Width           Width                    `yaml:"width"`
	Order           lanegate.Order           `yaml:"order"`
	Queue           string                   `yaml:"queue"`
	WhenUnavailable lanegate.WhenUnavailable `yaml:"when_unavailable"`
	AllowOvercommit bool                     `yaml:"allow_overcommit"`
}

// Width is a lane's width: a number of at least 1, or "auto" (lanegate.WidthAuto).
type Width int

// UnmarshalText implements encoding.TextUnmarshaler.
func (w *Width) UnmarshalText(b []byte) error {
	n := lanegate.WidthAuto
	if string(b) != "auto" {
		if err := intoInt(&n, string(b), 1, 10_000); err != nil {
			return fmt.Errorf("must be \"auto\" or a whole number from 1 to 10000, not %q", b)
		}
	}
	*w = Width(n)
	return nil
}

// String shows nothing: a configuration holds secrets.
func (Config) String() string { return "configuration (not shown)" }

// GoString is String, for %#v.
func (c Config) GoString() string { return c.String() }

// LogValue is String, for logs.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Sources are where a configuration comes from, in rising order of precedence.
type Sources struct {
	// File is the path of the YAML file, "" for none.
	File string
	// Env looks a variable up, as os.LookupEnv does; nil for none. A variable that
	// is set but empty counts as not set.
	Env func(name string) (string, bool)
	// Flags are the values given on the command line, by Setting.Flag.
	Flags map[string]string
}

// Load reads and checks a configuration. The error is a *ConfigError with every
// fault, or says that the file can't be read.
func Load(s Sources) (Config, error) {
	var f faults
	c := Config{origins: map[string]origin{}, texts: map[string]string{}}
	for _, set := range settings {
		if set.Default == "" {
			continue
		}
		if err := set.set(&c, set.Default); err != nil {
			panic("app: default of " + set.Key + ": " + err.Error())
		}
		c.texts[set.Key] = set.Default
	}
	if s.File != "" {
		if err := c.readFile(s.File, s.hidden(), &f); err != nil {
			return Config{}, err
		}
	}
	c.readEnv(s, &f)
	c.readFlags(s, &f)
	c.check(&f)
	if err := f.err(); err != nil {
		return Config{}, err
	}
	if err := c.makeAbsolute(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// makeAbsolute completes the paths, which count from the working directory.
func (c *Config) makeAbsolute() (err error) {
	// Without a file to be beside: several processes may share one, each run has a
	// directory of its own in it.
	beside := filepath.Join(os.TempDir(), "lanegate-"+strconv.Itoa(os.Getuid()))
	if !c.Postgres() {
		if c.Database, err = filepath.Abs(c.Database); err != nil {
			return err
		}
		beside = c.Database
	}
	if c.WorkDir == "" {
		c.WorkDir = beside + ".work"
	}
	c.WorkDir, err = filepath.Abs(c.WorkDir)
	return err
}

// Postgres says whether the database is PostgreSQL, which takes any number of
// processes; a SQLite file takes one.
func (c *Config) Postgres() bool { return store.IsPostgres(c.Database) }

// ShownDatabase is the database as logs and people may see it: without a password.
func (c *Config) ShownDatabase() string {
	if c.Postgres() {
		return store.ShownURL(c.Database)
	}
	return c.Database
}

// hidden are the keys that the environment or a flag overrides: a bad value of
// theirs in the file is still a fault, but never takes the other's place.
func (s Sources) hidden() map[string]bool {
	over := map[string]bool{}
	for _, set := range settings {
		_, flag := s.Flags[set.Flag()]
		_, env := s.env(set.Env())
		over[set.Key] = flag || env
	}
	return over
}

func (s Sources) env(name string) (string, bool) {
	if s.Env == nil {
		return "", false
	}
	v, ok := s.Env(name)
	return v, ok && v != ""
}

func (c *Config) readFile(path string, hidden map[string]bool, f *faults) error {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("config file %s does not exist: check the path after --config (or in %sCONFIG); relative paths count from the working directory", path, envPrefix)
	case err != nil:
		return fmt.Errorf("config file: %w", err)
	}
	if c.File, err = filepath.Abs(path); err != nil {
		return err
	}
	c.decodeFile(path, text, hidden, f)
	return nil
}

func (c *Config) readEnv(s Sources, f *faults) {
	for _, set := range settings {
		if v, ok := s.env(set.Env()); ok {
			_, over := s.Flags[set.Flag()]
			c.apply(set, v, origin{name: set.Env()}, over, f)
		}
	}
}

func (c *Config) readFlags(s Sources, f *faults) {
	known := map[string]bool{}
	for _, set := range settings {
		known[set.Flag()] = true
		if v, ok := s.Flags[set.Flag()]; ok {
			c.apply(set, v, origin{name: "--" + set.Flag()}, false, f)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.Flags)) {
		if !known[name] {
			f.add(origin{name: "--" + name}, name, "is not a known flag")
		}
	}
}

// apply sets one value. A hidden one is only checked, on a copy.
func (c *Config) apply(set Setting, text string, at origin, hidden bool, f *faults) {
	target := c
	if hidden {
		target = &Config{}
	}
	if err := set.set(target, text); err != nil {
		f.add(at, set.Key, "%v", err)
		return
	}
	if !hidden {
		c.origins[set.Key], c.texts[set.Key] = at, text
	}
}

// from says where a setting's value came from.
func (c *Config) from(key string) origin { return c.origins[key] }

// sourceOf says where a dotted key of the file stands.
func (c *Config) sourceOf(key string) origin {
	if c.doc == nil {
		return origin{}
	}
	return c.doc.at(key)
}

// UnknownEnv lists variables that look like settings but are none, from
// KEY=value texts as os.Environ gives them. It leaves out those of clients, of
// jobs, and the ones that Kubernetes makes up for a service named lanegate.
func UnknownEnv(environ []string) []string {
	known := map[string]bool{"CONFIG": true, "URL": true, "TOKEN": true, "TOKEN_FILE": true}
	for _, set := range settings {
		known[strings.TrimPrefix(set.Env(), envPrefix)] = true
	}
	var unknown []string
	for _, kv := range environ {
		name, _, _ := strings.Cut(kv, "=")
		rest, ok := strings.CutPrefix(name, envPrefix)
		if !ok || known[rest] {
			continue
		}
		ours := false
		for _, prefix := range []string{"SERVICE_", "PORT", "TEST_", "JOB_", "CHAOS"} {
			ours = ours || strings.HasPrefix(rest, prefix)
		}
		if !ours && !jobEnv[rest] {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}

// jobEnv are variables that runs get: a gateway may be started by one.
var jobEnv = map[string]bool{"ATTEMPT": true, "CLASS": true, "LOGICAL_DATE": true, "VERIFICATION": true, "PAYLOAD_FILE": true, "PAYLOAD": true}

// ListenAddress finds out on which address a gateway with these sources listens.
// Faults of other values don't matter to it: it is for asking a gateway that
// runs, perhaps since before the file was edited.
func ListenAddress(s Sources) (string, error) {
	var f faults
	c := Config{origins: map[string]origin{}, texts: map[string]string{}}
	for _, set := range settings {
		if set.Key == "listen" {
			c.Listen = set.Default
		}
	}
	if s.File != "" {
		if err := c.readFile(s.File, s.hidden(), &f); err != nil {
			return "", err
		}
	}
	c.readEnv(s, &f)
	c.readFlags(s, &f)
	var own faults
	for _, fault := range f.list {
		if fault.Key == "listen" {
			own.list = append(own.list, fault)
		}
	}
	return c.Listen, own.err()
}
