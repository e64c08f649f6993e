package app

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgprobe"
	"github.com/lanegate/lanegate/worker"
)

// Parts of a stop beside the drain and the kill grace.
const (
	// httpDrain is how long requests under way may take to end. Long polls are
	// ended by the gateway itself.
	httpDrain = 6 * time.Second
	// closeTime is for writing the last outcomes and closing the database.
	closeTime = 5 * time.Second
)

// check finds what single values can't show: faults between values, and names
// that lead nowhere.
func (c *Config) check(f *faults) {
	c.checkDoorbell(f)
	c.checkTimes(f)
	c.checkIntake(f)
	c.checkTokens(f)
	c.checkResources(f)
	c.checkLanes(f)
	c.checkCommands(f)
	for _, id := range slices.Sorted(maps.Keys(c.Classes)) {
		key := "classes." + id
		if !lanegate.ValidSlug(id) {
			f.add(c.sourceOf(key), key, "%s", badName)
		}
		c.checkClass(key, c.Classes[id], f)
	}
	if c.DefaultTarget != nil {
		c.checkClass("default_target", *c.DefaultTarget, f)
	}
}

const badName = "is not a name: lower-case letters, digits, dot, underscore and dash, at most 63, starting with a letter or digit"

func (c *Config) checkTimes(f *faults) {
	// A value that is wrong by itself has left its default behind, which would be
	// judged here as if someone had meant it.
	wrong := map[string]bool{}
	for _, fault := range f.list {
		wrong[fault.Key] = true
	}
	if !wrong["lease"] && !wrong["beat"] && !wrong["kill_grace"] {
		if err := worker.CheckLease(c.Lease, c.Beat, c.KillGrace); err != nil {
			f.add(c.from("lease"), "lease", "%v (beat is from %s, kill_grace from %s)", err, c.from("beat"), c.from("kill_grace"))
		}
	}
	if !wrong["retention.jobs"] && c.Retention.Jobs < service.MinKeepJobs {
		f.add(c.from("retention.jobs"), "retention.jobs", "%s is too short: at least %s, since idempotency keys are promised for seven days",
			lanegate.FormatDuration(c.Retention.Jobs), lanegate.FormatDuration(service.MinKeepJobs))
	}
	if !wrong["limits.payload"] && !wrong["limits.batch"] && c.Limits.Batch < c.Limits.Payload {
		f.add(c.from("limits.batch"), "limits.batch", "%s is less than limits.payload (%s, from %s): no batch could hold the largest job",
			formatSize(c.Limits.Batch), formatSize(c.Limits.Payload), c.from("limits.payload"))
	}
	if c.StopWithin > 0 && !wrong["drain"] && !wrong["kill_grace"] {
		c.checkStop(f)
	}
}

// checkStop holds the sum of the stop's limits under the platform's grace period.
func (c *Config) checkStop(f *faults) {
	if c.Drain == worker.DrainWait {
		f.add(c.from("stop_within"), "stop_within", "is set, but drain (from %s) is \"wait\", which has no limit: the platform would kill what still runs", c.from("drain"))
		return
	}
	if sum := c.StopLimit(); sum > c.StopWithin {
		f.add(c.from("stop_within"), "stop_within", "%s is less than a stop may take: %s for requests + drain %s (from %s) + kill_grace %s (from %s) + %s for the doorbell + %s to close = %s",
			lanegate.FormatDuration(c.StopWithin), lanegate.FormatDuration(httpDrain), lanegate.FormatDuration(c.Drain), c.from("drain"),
			lanegate.FormatDuration(c.KillGrace), c.from("kill_grace"), lanegate.FormatDuration(c.bellStop()), lanegate.FormatDuration(closeTime), lanegate.FormatDuration(sum))
	}
}

// StopLimit is how long a stop may take at most; meaningless with a drain
// without limit.
func (c *Config) StopLimit() time.Duration {
	return httpDrain + c.Drain + c.KillGrace + c.bellStop() + closeTime
}

var sha256Hex = regexp.MustCompile(`^[0-9a-fA-F]{64}$`)

func (c *Config) checkTokens(f *faults) {
	names, digests := map[string]int{}, map[string]int{}
	for i, t := range c.Tokens {
		key := fmt.Sprintf("tokens[%d]", i)
		bad := func(field, format string, args ...any) {
			f.add(c.sourceOf(key+field), key+field, format, args...)
		}
		switch first, dup := names[t.Name]; {
		case t.Name == "":
			bad(".name", "is required: it is what logs and histories call the client")
		case !lanegate.ValidSlug(t.Name):
			bad(".name", "%s", badName)
		case dup:
			bad(".name", "%q is the name of tokens[%d] already; during a rotation give the new one a name of its own", t.Name, first)
		default:
			names[t.Name] = i
		}
		if !slices.Contains(Roles(), t.Role) {
			bad(".role", "must be one of %s", strings.Join(Roles(), ", "))
		}
		digest := strings.ToLower(t.SHA256)
		switch first, dup := digests[digest]; {
		case !sha256Hex.MatchString(t.SHA256):
			bad(".sha256", "must be the 64 hex digits of the token's SHA-256; lanegate token new makes both")
		case dup:
			bad(".sha256", "is the same as that of tokens[%d]: one token is one client", first)
		default:
			digests[digest] = i
			c.Tokens[i].SHA256 = digest
		}
		for k, id := range t.Classes {
			if !lanegate.ValidSlug(id) {
				bad(fmt.Sprintf(".classes[%d]", k), "%s", badName)
			}
		}
		if t.Classes != nil && len(t.Classes) == 0 {
			bad(".classes", "is empty, which permits nothing; leave the key out to permit all")
		}
	}
	c.checkListenAuth(f)
}

// checkListenAuth: without tokens only this machine may reach the gateway.
func (c *Config) checkListenAuth(f *faults) {
	if len(c.Tokens) > 0 || c.InsecureNoAuth || isLoopback(c.Listen) || checkListen(c.Listen) != nil {
		return
	}
	f.add(c.from("listen"), "listen", "%s can be reached from other machines, and there are no tokens: everybody there could run jobs. Declare tokens (lanegate token new), listen on 127.0.0.1, or accept it with --insecure-no-auth", c.Listen)
}

// isLoopback says whether only this machine can reach the address.
func isLoopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback()
}

func (c *Config) checkResources(f *faults) {
	for _, name := range slices.Sorted(maps.Keys(c.Resources)) {
		key := "resources." + name
		r := c.Resources[name]
		if !lanegate.ValidSlug(name) {
			f.add(c.sourceOf(key), key, "%s", badName)
			continue
		}
		if _, ok := c.lines()[key+".capacity"]; !ok {
			f.add(c.sourceOf(key), key, "needs a capacity, like {capacity: 15}")
			continue
		}
		c.addFields(f, key, lanegate.Resource{Name: name, Capacity: r.Capacity}.Validate())
		if r.Probe == "" {
			continue
		}
		if err := pgprobe.Check(r.Probe); err != nil {
			f.add(c.sourceOf(key+".probe"), key+".probe", "%v", err)
		}
	}
}

func (c *Config) lines() map[string]int {
	if c.doc == nil {
		return nil
	}
	return c.doc.lines
}

func (c *Config) checkLanes(f *faults) {
	for _, name := range slices.Sorted(maps.Keys(c.Lanes)) {
		key := "lanes." + name
		switch {
		case !lanegate.ValidSlug(name):
			f.add(c.sourceOf(key), key, "%s", badName)
		case name == lanegate.LaneSerial:
			f.add(c.sourceOf(key), key, "is built in, with width 1 for ever, and can't be changed")
		default:
			c.addFields(f, key, c.lane(name).Validate())
		}
	}
	for _, name := range c.ServeLanes {
		if _, declared := c.Lanes[name]; !declared && name != lanegate.LaneSerial && name != lanegate.LaneParallel {
			c.warn("serve_lanes names lane %q, which this file does not declare: it serves it once somebody creates it", name)
		}
	}
	switch {
	case c.NoWorkers && len(c.ServeLanes) > 0:
		f.add(c.from("serve_lanes"), "serve_lanes", "names lanes to run jobs of, and no_workers (from %s) says to run none", c.from("no_workers"))
	case c.Postgres(): // other processes may do what this one leaves out
	case c.NoWorkers:
		c.warn("no_workers: with SQLite no other process runs jobs, so all of them wait for ever")
	case len(c.ServeLanes) > 0 && !slices.Contains(c.ServeLanes, lanegate.LaneSerial):
		c.warn("serve_lanes leaves out serial: with SQLite no other process runs its jobs, so every class that was not promoted waits for ever")
	}
}

// lane is the declared lane with its defaults.
func (c *Config) lane(name string) lanegate.Lane {
	d := c.Lanes[name]
	l := lanegate.Lane{
		Name: name, WidthSetting: int(d.Width), AllowOvercommit: d.AllowOvercommit,
		Order: d.Order, Queue: d.Queue, WhenUnavailable: d.WhenUnavailable,
	}
	if l.Order == "" {
		l.Order = lanegate.OrderFIFO
		if name == lanegate.LaneParallel {
			l.Order = lanegate.OrderFair
		}
	}
	if l.WhenUnavailable == "" {
		l.WhenUnavailable = lanegate.FallbackSerial
	}
	return l
}

func (c *Config) checkClass(key string, spec lanegate.ClassSpec, f *faults) {
	c.addFields(f, key, spec.Validate())
	for _, name := range slices.Sorted(maps.Keys(spec.Units)) {
		if _, ok := c.Resources[name]; !ok {
			f.add(c.sourceOf(key+".units."+name), key+".units."+name, "there is no resource %q under resources%s", name, didYouMean(name, maps.Keys(c.Resources)))
		}
	}
	if spec.Run.Kind == lanegate.RunExec && spec.Run.Command != "" {
		if _, ok := c.Commands[spec.Run.Command]; !ok {
			c.warn("%s runs command %q, which is not declared under commands%s: its jobs wait until a process that has it asks for work",
				key, spec.Run.Command, didYouMean(spec.Run.Command, maps.Keys(c.Commands)))
		}
	}
}

func didYouMean(name string, known func(func(string) bool)) string {
	if near := nearest(name, slices.Collect(known)); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return ""
}

// addFields turns field errors, whose pointers start at key, into faults of the file.
func (c *Config) addFields(f *faults, key string, fields []lanegate.FieldError) {
	for _, e := range fields {
		at := strings.TrimPrefix(key+strings.ReplaceAll(e.Pointer, "/", "."), ".")
		f.add(c.sourceOf(at), at, "%s", e.Detail)
	}
}

func (c *Config) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// FileConfig is the declared set as the service takes it, with its hash.
func (c *Config) FileConfig() service.FileConfig {
	fc := service.FileConfig{Classes: c.Classes}
	for _, name := range slices.Sorted(maps.Keys(c.Resources)) {
		r := c.Resources[name]
		fc.Resources = append(fc.Resources, lanegate.Resource{Name: name, Capacity: r.Capacity, Pool: r.Pool})
	}
	for _, name := range slices.Sorted(maps.Keys(c.Lanes)) {
		fc.Lanes = append(fc.Lanes, c.lane(name))
	}
	fc.Hash = hashOf(fc)
	return fc
}

// declaresNothing says whether the file leaves classes, lanes and resources to others.
func (c *Config) declaresNothing() bool {
	return len(c.Classes) == 0 && len(c.Lanes) == 0 && len(c.Resources) == 0
}

// hashOf digests the declared set: equal sets have equal hashes, whatever their
// order, comments and form in the file. encoding/json sorts the keys of maps.
func hashOf(fc service.FileConfig) string {
	classes := make(map[string]any, len(fc.Classes))
	for id, spec := range fc.Classes {
		// An empty units map declares something, a missing one doesn't; omitempty
		// would make them equal.
		classes[id] = struct {
			Spec     lanegate.ClassSpec
			Declared bool
		}{spec.WithDefaults(), spec.Units != nil}
	}
	text, err := json.Marshal(struct {
		Resources []lanegate.Resource
		Lanes     []lanegate.Lane
		Classes   map[string]any
	}{fc.Resources, fc.Lanes, classes})
	if err != nil {
		panic("app: hash of plain data: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// hashWith is a set's hash together with the digests of the commands.
func hashWith(hash string, digests map[string]string) string {
	text, err := json.Marshal([]any{hash, digests})
	if err != nil {
		panic("app: hash of plain data: " + err.Error())
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}
