package app

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/store"
	"github.com/lanegate/lanegate/worker"
)

const envPrefix = "LANEGATE_"

// Setting is one value that the file, the environment and a flag can set, in
// rising order of precedence.
type Setting struct {
	// Key in the file, dotted: "limits.payload".
	Key string
	// Default as text; "" when there is none.
	Default string
	Help    string
	// Bool: true or false; as a flag it needs no value.
	Bool   bool
	flag   string // where it isn't made from the key
	set    func(c *Config, text string) error
	isList bool
}

// Flag is the setting's flag without its dashes: "limits-payload".
func (s Setting) Flag() string {
	if s.flag != "" {
		return s.flag
	}
	return strings.NewReplacer(".", "-", "_", "-").Replace(s.Key)
}

// Env is the setting's variable: "LANEGATE_LIMITS_PAYLOAD".
func (s Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
}

// Settings lists them all, in the order in which they are documented.
func Settings() []Setting { return slices.Clone(settings) }

var settings = []Setting{
	{Key: "listen", Default: "127.0.0.1:8080", Help: "Address to serve HTTP on, host:port. Anything but loopback needs tokens.", set: func(c *Config, s string) error {
		c.Listen = s
		return checkListen(s)
	}},
	{Key: "database", Default: "lanegate.db", Help: "SQLite file, for one process, or postgres://user@host/database?sslmode=verify-full, for any number of them.", set: func(c *Config, s string) error {
		c.Database = s
		return checkDatabase(s)
	}},
	{Key: "database_connections", Default: "16", Help: "Most connections of this process to PostgreSQL; two of them are kept for beats, a run holds none.", set: func(c *Config, s string) error {
		return intoInt(&c.Conns, s, 6, 1000)
	}},
	{Key: "work_dir", Help: "Directory for the runs' payload files, of this user alone; beside the SQLite file, or in the directory for temporary files, when left out.", set: func(c *Config, s string) error {
		c.WorkDir = s
		return nil
	}},
	{Key: "slots", Default: strconv.Itoa(worker.DefaultSlots), Help: "How many jobs outside serial this process runs at once at most.", set: func(c *Config, s string) error {
		return intoInt(&c.Slots, s, 1, 10_000)
	}},
	{Key: "serve_lanes", flag: "lanes", isList: true, Help: "Lanes whose jobs this process runs, separated by commas; all when left out.", set: func(c *Config, s string) error {
		return intoNames(&c.ServeLanes, s)
	}},
	{Key: "no_workers", Bool: true, Default: "false", Help: "Run no jobs here, serve HTTP only.", set: func(c *Config, s string) (err error) {
		c.NoWorkers, err = parseBool(s)
		return err
	}},
	{Key: "doorbell", Help: "What tells the workers of other processes that a lane has work: postgres (LISTEN/NOTIFY; the default with PostgreSQL), sqs, or local (tells nobody; the default with SQLite).", set: func(c *Config, s string) error {
		return intoOneOf(&c.Doorbell, s, DoorbellLocal, DoorbellPostgres, DoorbellSQS)
	}},
	{Key: "sqs.prefix", Default: queue.DefaultPrefix, Help: "Prefix of the queue of a lane that names none.", set: func(c *Config, s string) error {
		c.SQS.Prefix = s
		return queue.CheckPrefix(s)
	}},
	{Key: "sqs.region", Help: "AWS region; where every AWS program finds it when left out.", set: func(c *Config, s string) error {
		c.SQS.Region = s
		return nil
	}},
	{Key: "sqs.endpoint", Help: "URL of an SQS endpoint instead of the region's.", set: func(c *Config, s string) error {
		c.SQS.Endpoint = s
		return checkEndpoint(s)
	}},
	{Key: "sqs.allow_http", Bool: true, Default: "false", Help: "Allow an SQS endpoint without TLS, for a test server.", set: func(c *Config, s string) (err error) {
		c.SQS.AllowHTTP, err = parseBool(s)
		return err
	}},
	{Key: "sqs.wait", Default: "20s", Help: "How long one call waits for messages, whole seconds; a stop may take as long.", set: func(c *Config, s string) error {
		return intoSeconds(&c.SQS.Wait, s, time.Second, 20*time.Second)
	}},
	{Key: "sqs.visibility", Default: "60s", Help: "How long a received bell is kept from others until admission has looked, whole seconds.", set: func(c *Config, s string) error {
		return intoSeconds(&c.SQS.Visibility, s, time.Second, time.Hour)
	}},
	{Key: "public_url", Help: "Where clients reach this gateway, like https://gateway.example.com; asynchronous and sqs targets get the addresses of their attempts with it.", set: func(c *Config, s string) error {
		c.PublicURL = strings.TrimRight(s, "/")
		return checkPublicURL(s)
	}},
	{Key: "lease", Default: "60s", Help: "A worker whose beat stands still this long is dead. At least beat × 3 + kill_grace + 5s.", set: func(c *Config, s string) error {
		return intoDuration(&c.Lease, s, time.Second, 24*time.Hour)
	}},
	{Key: "beat", Default: "10s", Help: "How often a worker says that it lives.", set: func(c *Config, s string) error {
		return intoDuration(&c.Beat, s, 100*time.Millisecond, time.Hour)
	}},
	{Key: "kill_grace", Default: "10s", Help: "Time between TERM and KILL for a run that is stopped.", set: func(c *Config, s string) error {
		return intoDuration(&c.KillGrace, s, 100*time.Millisecond, time.Hour)
	}},
	{Key: "drain", Default: "30s", Help: "How long running jobs may go on after SIGTERM; \"wait\" has no limit.", set: func(c *Config, s string) error {
		if s == "wait" {
			c.Drain = worker.DrainWait
			return nil
		}
		if err := intoDuration(&c.Drain, s, 0, 7*24*time.Hour); err != nil {
			return fmt.Errorf("%w; or write \"wait\" for no limit", err)
		}
		return nil
	}},
	{Key: "start_wait", Default: "30s", Help: "How long to wait at start for another process to let go of the database file.", set: func(c *Config, s string) error {
		return intoDuration(&c.StartWait, s, 0, 24*time.Hour)
	}},
	{Key: "stop_within", Help: "The platform's grace period between SIGTERM and SIGKILL, to check the stop limits against; not checked when left out.", set: func(c *Config, s string) error {
		return intoDuration(&c.StopWithin, s, time.Second, 7*24*time.Hour)
	}},
	{Key: "starve_after", Default: "10m", Help: "A job blocked by resources this long gets them kept for it.", set: func(c *Config, s string) error {
		return intoDuration(&c.StarveAfter, s, time.Second, 7*24*time.Hour)
	}},
	{Key: "limits.payload", Default: "1MiB", Help: "Largest payload of one job.", set: func(c *Config, s string) error {
		return intoSize(&c.Limits.Payload, s, 1<<10, 64<<20)
	}},
	{Key: "limits.batch", Default: "16MiB", Help: "Largest body of POST /jobs/batch.", set: func(c *Config, s string) error {
		return intoSize(&c.Limits.Batch, s, 1<<10, 1<<30)
	}},
	{Key: "limits.depth", Default: "512", Help: "Deepest nesting of a payload.", set: func(c *Config, s string) error {
		return intoInt(&c.Limits.Depth, s, 1, 10_000)
	}},
	{Key: "retention.jobs", Default: "720h", Help: "How long finished jobs are kept; at least 168h, as idempotency keys are promised for seven days.", set: func(c *Config, s string) error {
		return intoDuration(&c.Retention.Jobs, s, 0, lanegate.MaxDuration)
	}},
	{Key: "retention.run_log", Default: "2160h", Help: "How long the run log is kept.", set: func(c *Config, s string) error {
		return intoDuration(&c.Retention.RunLog, s, 24*time.Hour, lanegate.MaxDuration)
	}},
	{Key: "log.level", Default: "info", Help: "debug, info, warn or error.", set: func(c *Config, s string) error {
		return intoOneOf(&c.Log.Level, s, "debug", "info", "warn", "error")
	}},
	{Key: "log.format", Default: "auto", Help: "text, json, or auto: text on a terminal, json otherwise.", set: func(c *Config, s string) error {
		return intoOneOf(&c.Log.Format, s, "auto", "text", "json")
	}},
	{Key: "trusted_proxies", isList: true, Help: "Networks (10.0.0.0/8) whose X-Forwarded-For is believed, separated by commas; none when left out.", set: func(c *Config, s string) error {
		return intoPrefixes(&c.TrustedProxies, s)
	}},
	{Key: "metrics_public", Bool: true, Default: "false", Help: "Serve /metrics without a token.", set: func(c *Config, s string) (err error) {
		c.MetricsPublic, err = parseBool(s)
		return err
	}},
	{Key: "insecure_no_auth", Bool: true, Default: "false", Help: "Serve other addresses than loopback although there are no tokens: everybody who reaches the port may do everything.", set: func(c *Config, s string) (err error) {
		c.InsecureNoAuth, err = parseBool(s)
		return err
	}},
}

func checkListen(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return fmt.Errorf("%q is not an address: write host:port, like 127.0.0.1:8080", s)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("%q is not an address: the port must be a number from 0 to 65535", s)
	}
	if strings.ContainsAny(host, " /") {
		return fmt.Errorf("%q is not an address: write host:port without a scheme or path", s)
	}
	return nil
}

func checkDatabase(s string) error {
	if store.IsPostgres(s) {
		return store.CheckURL(s)
	}
	scheme, _, ok := strings.Cut(s, "://")
	switch { // the URL is not repeated: it may hold a password
	case ok:
		return fmt.Errorf("%s:// is no database lanegate knows; give the path of a SQLite file or a postgres:// URL", scheme)
	case s == ":memory:" || strings.HasPrefix(s, "file:"):
		return errors.New("must be a plain path of a file: accepted jobs have to survive a restart")
	case strings.ContainsRune(s, 0):
		return errors.New("must not contain a NUL character")
	}
	return nil
}

func checkEndpoint(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%q is not a URL: write it like https://sqs.eu-west-1.amazonaws.com", s)
	}
	return nil
}

func checkPublicURL(s string) error {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is not the address of a gateway: write it like https://gateway.example.com", s)
	}
	return nil
}

func intoInt(target *int, s string, least, most int) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < least || n > most {
		return fmt.Errorf("%q is not a whole number from %d to %d", s, least, most)
	}
	*target = n
	return nil
}

func intoDuration(target *time.Duration, s string, least, most time.Duration) error {
	d, err := lanegate.ParseDuration(s)
	switch {
	case err != nil:
		return err
	case d < least:
		return fmt.Errorf("%s is too short: at least %s", s, lanegate.FormatDuration(least))
	case d > most:
		return fmt.Errorf("%s is too long: at most %s", s, lanegate.FormatDuration(most))
	}
	*target = d
	return nil
}

// intoSeconds is intoDuration for what SQS takes in seconds.
func intoSeconds(target *time.Duration, s string, least, most time.Duration) error {
	d := *target
	if err := intoDuration(&d, s, least, most); err != nil {
		return err
	}
	if d%time.Second != 0 {
		return fmt.Errorf("%s must be whole seconds", s)
	}
	*target = d
	return nil
}

// sizeUnits are the units of sizes; those of 1000 are left out on purpose, since
// "1MB" is more often meant as 1 MiB than not.
var sizeUnits = []struct {
	name  string
	bytes int
}{{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"B", 1}, {"", 1}}

func intoSize(target *int, s string, least, most int) error {
	for _, u := range sizeUnits {
		digits, ok := strings.CutSuffix(s, u.name)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(strings.TrimSpace(digits))
		if err != nil {
			continue
		}
		if n < 0 || n > most/u.bytes || n*u.bytes < least {
			return fmt.Errorf("%s is outside %s to %s", s, formatSize(least), formatSize(most))
		}
		*target = n * u.bytes
		return nil
	}
	return fmt.Errorf("%q is not a size: write bytes, or like 64KiB, 1MiB", s)
}

func formatSize(n int) string {
	for _, u := range []struct {
		name  string
		bytes int
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return fmt.Sprintf("%d%s", n/u.bytes, u.name)
		}
	}
	return fmt.Sprintf("%dB", n)
}

func intoOneOf(target *string, s string, allowed ...string) error {
	if !slices.Contains(allowed, s) {
		return fmt.Errorf("must be one of %s, not %q", strings.Join(allowed, ", "), s)
	}
	*target = s
	return nil
}

// parts splits at commas; empty parts vanish.
func parts(s string) []string {
	var out []string
	for p := range strings.SplitSeq(s, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}

func intoNames(target *[]string, s string) error {
	names := parts(s)
	for _, n := range names {
		if !lanegate.ValidSlug(n) {
			return fmt.Errorf("%q is not a name: lower-case letters, digits, dot, underscore and dash", n)
		}
	}
	*target = names
	return nil
}

func intoPrefixes(target *[]netip.Prefix, s string) error {
	var out []netip.Prefix
	for _, p := range parts(s) {
		if addr, err := netip.ParseAddr(p); err == nil {
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		prefix, err := netip.ParsePrefix(p)
		if err != nil {
			return fmt.Errorf("%q is not a network: write it like 10.0.0.0/8", p)
		}
		out = append(out, prefix.Masked())
	}
	*target = out
	return nil
}
