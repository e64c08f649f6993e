package service_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func withFile(s *setup) { s.options.ConfigFile = "/etc/lanegate.yaml" }

// fileOf declares db, lane long and the classes given.
func fileOf(hash string, classes map[string]lanegate.ClassSpec) service.FileConfig {
	return service.FileConfig{
		Hash:      hash,
		Resources: []lanegate.Resource{{Name: "db", Capacity: 15, Pool: true}},
		Lanes:     []lanegate.Lane{lane("long", 1)},
		Classes:   classes,
	}
}

func (f *fixture) mustSync(file service.FileConfig, wantApplied bool) {
	f.t.Helper()
	applied, err := f.svc.SyncFile(f.t.Context(), file)
	f.must(err)
	if applied != wantApplied {
		f.t.Fatalf("set %s applied: %v, want %v", file.Hash, applied, wantApplied)
	}
}

type classes = map[string]lanegate.ClassSpec

func TestSyncFile(t *testing.T) {
	f := newFixture(t, withFile)
	f.mustPut("b", execSpec()) // known to the API before
	one := fileOf("one", classes{"a": execSpec("db", 5), "b": execSpec()})
	f.mustSync(one, true)
	for id, want := range map[string][]string{"a": {"created"}, "b": {"created", "joined_file"}} {
		c := f.mustClass(id)
		if c.ManagedBy != lanegate.ManagedByFile || c.Lane != lanegate.LaneSerial {
			t.Errorf("%s: managed by %s, lane %s", id, c.ManagedBy, c.Lane)
		}
		if got := f.events("class:" + id); !slices.Equal(got, want) {
			t.Errorf("history of %s: %v", id, got)
		}
	}
	if e := f.history("class:a")[0]; e.Actor != service.ActorFile || !strings.Contains(e.Reason, "/etc/lanegate.yaml") {
		t.Errorf("event %+v names no file", e)
	}

	t.Run("the same set again changes nothing", func(t *testing.T) {
		before := f.config()
		f.clock.advance(1e9)
		f.mustSync(one, true)
		if diff := cmp.Diff(before, f.config()); diff != "" {
			t.Errorf("changed:\n%s", diff)
		}
	})
	t.Run("an edit in the file is applied", func(t *testing.T) {
		one := one
		one.Hash, one.Classes = "two", classes{"a": execSpec("db", 6), "b": execSpec()}
		one.Resources = []lanegate.Resource{{Name: "db", Capacity: 20, Pool: true}}
		f.mustSync(one, true)
		if c := f.mustClass("a"); c.Units["db"] != 6 {
			t.Errorf("units %v", c.Units)
		}
		if got := f.events("class:a"); !slices.Equal(got, []string{"created", "edited"}) {
			t.Errorf("history %v", got)
		}
	})
	t.Run("what left the file belongs to the API", func(t *testing.T) {
		f.mustSync(service.FileConfig{Hash: "three", Classes: classes{"b": execSpec()}}, true)
		for _, subject := range []string{"class:a", "lane:long", "resource:db"} {
			got := f.history(subject)
			if last := got[len(got)-1]; last.Event != "left_file" || last.Actor != service.ActorFile {
				t.Errorf("history of %s ends with %+v", subject, last)
			}
		}
		f.mustPut("a", execSpec("db", 1))
		f.mustLane(lane("long", 1))
		f.mustResource("db", 20, true)
		if c := f.mustClass("b"); c.ManagedBy != lanegate.ManagedByFile {
			t.Errorf("b is managed by %s", c.ManagedBy)
		}
	})
}

// An old replica's restart doesn't undo a newer file.
func TestSupersededSetIsNotAppliedAgain(t *testing.T) {
	f := newFixture(t, withFile)
	old := fileOf("old", classes{"a": execSpec("db", 1)})
	newer := fileOf("new", classes{"a": execSpec("db", 2)})
	units := func(want int) {
		t.Helper()
		if got := f.mustClass("a").Units["db"]; got != want {
			t.Errorf("units %d, want %d", got, want)
		}
	}
	f.mustSync(old, true)
	f.mustSync(newer, true)
	f.mustSync(old, false)
	units(2)
	if f.logs.count("config file not applied") != 1 {
		t.Error("not logged")
	}
	f.mustSync(newer, true)
	old.Force = true // a person asked: rolled back
	f.mustSync(old, true)
	units(1)
	f.mustSync(newer, false)
	old.Force = false
	f.mustSync(old, true)
	units(1)
}

func TestFileManagedIsNotEditedThroughTheAPI(t *testing.T) {
	f := newFixture(t, withFile)
	ctx := t.Context()
	f.mustSync(fileOf("h", classes{"a": execSpec("db", 5)}), true)
	before := f.config()
	edit := func(s lanegate.ClassSpec) (lanegate.ClassSpec, error) { return s, nil }
	_, _, put := f.svc.PutClass(ctx, "a", execSpec(), admin)
	_, patch := f.svc.PatchClass(ctx, "a", edit, admin)
	_, putLane := f.svc.PutLane(ctx, lane("long", 2), admin)
	_, putResource := f.svc.PutResource(ctx, lanegate.Resource{Name: "db", Capacity: 1}, admin)
	for what, err := range map[string]error{
		"put": put, "patch": patch, "delete": f.svc.DeleteClass(ctx, "a", admin),
		"put lane": putLane, "delete lane": f.svc.DeleteLane(ctx, "long", admin),
		"put resource": putResource, "delete resource": f.svc.DeleteResource(ctx, "db", admin),
	} {
		e := wantError(t, err, lanegate.ErrManagedByFile)
		if !strings.Contains(e.Message, "/etc/lanegate.yaml") || e.Details["file"] != "/etc/lanegate.yaml" {
			t.Errorf("%s: %q, %v don't name the file", what, e.Message, e.Details)
		}
	}
	if diff := cmp.Diff(before, f.config()); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
}

// Pausing is for the night when something goes wrong: it works on declared
// classes and lanes, and outlives a reload.
func TestPauseOutlivesAReload(t *testing.T) {
	f := newFixture(t, withFile)
	ctx := t.Context()
	file := fileOf("h", classes{"a": execSpec("db", 5), "declared": {Run: execSpec().Run, Paused: true}})
	f.mustSync(file, true)
	if !f.mustClass("declared").Paused {
		t.Error("paused: true in the file was not applied")
	}
	_, err := f.svc.PauseClass(ctx, "a", admin)
	f.must(err)
	f.must(f.svc.PauseLane(ctx, "long", admin))
	file.Hash = "edited"
	file.Lanes = []lanegate.Lane{lane("long", 2)}
	f.mustSync(file, true)
	if c := f.mustClass("a"); !c.Paused || c.ManagedBy != lanegate.ManagedByFile {
		t.Errorf("class paused: %v, managed by %s", c.Paused, c.ManagedBy)
	}
	l, err := f.svc.Lane(ctx, "long")
	if err != nil || !l.Paused || l.WidthSetting != 2 {
		t.Errorf("lane paused: %v, width %d, %v", l.Paused, l.WidthSetting, err)
	}
}

func TestFaultyFileIsRefusedAsAWhole(t *testing.T) {
	noCommand, tooMany := execSpec(), execSpec("db", 1)
	noCommand.Run.Command, tooMany.MaxAttempts = "", 1000
	lanes := []lanegate.Lane{lane("serial", 1), lane("ok", 1), lane("wide", -1)}
	for _, tt := range []struct {
		name   string
		file   service.FileConfig
		faults []string
	}{
		{
			"classes", fileOf("bad", classes{"a": execSpec("db", 5), "b": noCommand, "c": execSpec("vendor", 1), "d": tooMany, "E": execSpec()}),
			[]string{"/classes/b/run/command", "/classes/c/units/vendor", "/classes/d/max_attempts", "/classes/E/id"},
		},
		{"lanes", service.FileConfig{Hash: "bad", Lanes: lanes}, []string{"/lanes/serial", "/lanes/wide/width"}},
		{
			"resources", service.FileConfig{Hash: "bad", Resources: []lanegate.Resource{{Name: "db", Capacity: 1}, {Name: "x", Capacity: -1}, {Name: "y", Capacity: -1}}},
			[]string{"/resources/x/capacity", "/resources/y/capacity"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, withFile)
			good := fileOf("good", classes{"a": execSpec("db", 1), "old": execSpec()})
			f.mustSync(good, true)
			before := f.config()
			applied, err := f.svc.SyncFile(t.Context(), tt.file)
			wantFields(t, err, tt.faults...)
			if applied {
				t.Error("reported as applied")
			}
			if diff := cmp.Diff(before, f.config()); diff != "" {
				t.Errorf("something was left behind:\n%s", diff)
			}
			f.mustSync(good, true) // not superseded by what was refused
		})
	}
}

func TestChangedCommandDemotesLoudly(t *testing.T) {
	f := newFixture(t, withFile)
	ctx := t.Context()
	f.commands.set("other", "o1")
	f.mustPut("promoted", execSpec())
	f.mustPut("plain", execSpec())
	spec := execSpec()
	spec.Run.Command = "other"
	f.mustPut("untouched", spec)
	spec.Run.Command = "not-yet"
	unknown := f.mustPut("early", spec)
	if unknown.CommandDigest != "" {
		t.Fatalf("digest %q of a command nobody knows", unknown.CommandDigest)
	}
	f.mustPromote("promoted", lanegate.LaneParallel, 1)
	f.mustPromote("untouched", lanegate.LaneParallel, 1)

	f.must(f.svc.SyncCommands(ctx)) // as the catalogue is: nothing to do
	f.commands.set("cmd", "d2")
	f.commands.set("not-yet", "n1")
	f.commands.remove("other") // no new definition: nothing is known to have changed
	for range 2 {
		f.must(f.svc.SyncCommands(ctx))
	}
	for id, want := range map[string]struct {
		lane, digest string
		events       []string
	}{
		"promoted":  {lanegate.LaneSerial, "d2", []string{"created", "demoted", "command_changed"}},
		"plain":     {lanegate.LaneSerial, "d2", []string{"created", "command_changed"}},
		"untouched": {lanegate.LaneParallel, "o1", []string{"created"}},
		"early":     {lanegate.LaneSerial, "n1", []string{"created", "command_changed"}},
	} {
		c := f.mustClass(id)
		if c.Lane != want.lane || c.CommandDigest != want.digest || c.Fingerprint != lanegate.Fingerprint(c.ClassSpec, want.digest) {
			t.Errorf("%s: lane %s, digest %s, fingerprint %s", id, c.Lane, c.CommandDigest, c.Fingerprint)
		}
		if got := f.events("class:" + id); !slices.Equal(got, want.events) {
			t.Errorf("history of %s: %v", id, got)
		}
		demotions := 0.0
		if slices.Contains(want.events, "demoted") {
			demotions = 1
		}
		if n := f.metric("lanegate_class_demotions_total", "class="+id); n != demotions {
			t.Errorf("%s: %v demotions counted", id, n)
		}
	}
	demoted := f.history("class:promoted")[1]
	if demoted.Actor != service.ActorFile || demoted.Evidence["from"] != "parallel" || demoted.Evidence["cause"] != "fingerprint_changed" {
		t.Errorf("event %+v", demoted)
	}
	if f.logs.count("class demoted") != 1 {
		t.Error("not logged once")
	}
}

// A file's edit that changes the fingerprint demotes without asking, and says so.
func TestFileEditDemotes(t *testing.T) {
	f := newFixture(t, withFile)
	f.mustSync(fileOf("one", classes{"a": execSpec("db", 5)}), true)
	f.mustPromote("a", "long", 1)
	words := execSpec("db", 5)
	words.Description = "words only"
	f.mustSync(fileOf("two", classes{"a": words}), true)
	if c := f.mustClass("a"); c.Lane != "long" {
		t.Fatalf("lane %s after an edit of words", c.Lane)
	}
	f.mustSync(fileOf("three", classes{"a": execSpec("db", 4)}), true)
	if c := f.mustClass("a"); c.Lane != lanegate.LaneSerial || c.MaxInFlight != 1 {
		t.Errorf("lane %s, max_in_flight %d", c.Lane, c.MaxInFlight)
	}
	if n := f.metric("lanegate_class_demotions_total", "class=a"); n != 1 || f.logs.count("class demoted") != 1 {
		t.Errorf("%v demotions counted, %d logged", n, f.logs.count("class demoted"))
	}
}

func TestFirstSubmissionCreatesTheClass(t *testing.T) {
	f := newFixture(t)
	_, err := f.svc.Submit(t.Context(), "cron", service.Submission{Class: "new"})
	wantError(t, err, lanegate.ErrUnknownClass)
	target := execSpec()
	f.svc.SetDefaultTarget(&target)
	var wg sync.WaitGroup
	errs := make([]error, 50)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = f.svc.Submit(t.Context(), "cron", service.Submission{Class: "new"})
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	if c := f.mustClass("new"); c.Lane != lanegate.LaneSerial || c.MaxInFlight != 1 || c.ManagedBy != lanegate.ManagedByAPI {
		t.Errorf("class %+v", c)
	}
	if got := f.history("class:new"); len(got) != 1 || got[0].Actor != service.ActorLanegate {
		t.Errorf("history %+v", got)
	}
	if f.logs.count("class created on its first submission") != 1 {
		t.Error("not logged once")
	}
	if n := f.metric("lanegate_jobs_submitted_total", "class=new"); n != 50 {
		t.Errorf("%v jobs counted", n)
	}
	f.svc.SetDefaultTarget(nil)
	_, err = f.svc.Submit(t.Context(), "cron", service.Submission{Class: "newer"})
	wantError(t, err, lanegate.ErrUnknownClass)
}

func TestBatchCreatesClasses(t *testing.T) {
	f := newFixture(t, withTarget(execSpec()))
	f.mustPut("known", execSpec())
	var subs []service.Submission
	for i := range 20 {
		subs = append(subs, service.Submission{Class: fmt.Sprintf("new-%d", i%4)}, service.Submission{Class: "known"})
	}
	subs = append(subs, service.Submission{Class: "Not A Slug"})
	results, err := f.svc.SubmitBatch(t.Context(), "cron", subs)
	f.must(err)
	for i, res := range results {
		if (res.Err != nil) != (i == 40) {
			t.Errorf("item %d: %v", i, res.Err)
		}
	}
	cfg := f.config()
	if len(cfg.Classes) != 5 {
		t.Errorf("%d classes, want 5", len(cfg.Classes))
	}
	if got := f.events("class:new-3"); !slices.Equal(got, []string{"created"}) {
		t.Errorf("history %v", got)
	}
}
