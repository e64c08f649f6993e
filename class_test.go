package lanegate

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"
)

func TestSlug(t *testing.T) {
	for s, want := range map[string]bool{
		"pos-sales": true, "a": true, "9.b_c-d": true, strings.Repeat("x", 63): true,
		"": false, "-a": false, ".a": false, "A": false, "a b": false, "ä": false, "a/b": false, "a\n": false, strings.Repeat("x", 64): false,
	} {
		if ValidSlug(s) != want {
			t.Errorf("ValidSlug(%q) = %v", s, !want)
		}
	}
}

func TestValidID(t *testing.T) {
	for s, want := range map[string]bool{
		"0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d":          true,
		"0193779E-66AC-7C2B-8F4E-3A5F0A1B2C3D":          false,
		"{0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d}":        false,
		"urn:uuid:0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d": false,
		"0193779e-66ac-4c2b-8f4e-3a5f0a1b2c3d":          false,
		"":                                              false,
	} {
		if ValidID(s) != want {
			t.Errorf("ValidID(%q) = %v", s, !want)
		}
	}
}

func TestClassSpecValidate(t *testing.T) {
	good := []ClassSpec{
		{Run: Run{Kind: RunExec, Command: "pos-sales"}},
		{Run: Run{Kind: RunHTTP, URL: "https://x.example/run?y=1", Headers: map[string]string{"X-Team": "pos"}}, Units: Units{"db": 5}},
		{Run: Run{Kind: RunSQS, Queue: "heavy"}, Overlap: OverlapSkip, MaxAttempts: 100},
		{Run: Run{Kind: RunSQS, Queue: "https://sqs.eu-west-1.amazonaws.com/123456789012/heavy.fifo", Heartbeat: Duration(time.Minute)}},
		{Run: Run{Kind: RunAgent, Command: "x"}, Backoff: &Backoff{}},
	}
	for _, s := range good {
		if errs := s.Validate(); len(errs) > 0 {
			t.Errorf("%+v refused: %v", s, errs)
		}
	}
	for _, tt := range []struct {
		pointer string
		spec    ClassSpec
	}{
		{"/run/kind", ClassSpec{}},
		{"/run/kind", ClassSpec{Run: Run{Kind: "shell"}}},
		{"/run/command", ClassSpec{Run: Run{Kind: RunExec}}},
		{"/run/command", ClassSpec{Run: Run{Kind: RunExec, Command: "rm -rf /"}}},
		{"/run/command", ClassSpec{Run: Run{Kind: RunHTTP, URL: "http://x", Command: "c"}}},
		{"/run/url", ClassSpec{Run: Run{Kind: RunHTTP, URL: "/relative"}}},
		{"/run/url", ClassSpec{Run: Run{Kind: RunHTTP, URL: "http://user:secret@x/"}}},
		{"/run/url", ClassSpec{Run: Run{Kind: RunExec, Command: "c", URL: "http://x"}}},
		{"/run/mode", ClassSpec{Run: Run{Kind: RunHTTP, URL: "http://x", Mode: "later"}}},
		{"/run/headers", ClassSpec{Run: Run{Kind: RunHTTP, URL: "http://x", Headers: map[string]string{"A\r\nB": "c"}}}},
		{"/run/headers", ClassSpec{Run: Run{Kind: RunHTTP, URL: "http://x", Headers: map[string]string{"Host": "c"}}}},
		{"/run/queue", ClassSpec{Run: Run{Kind: RunSQS}}},
		{"/run/queue", ClassSpec{Run: Run{Kind: RunSQS, Queue: "a.b"}}},
		{"/run/queue", ClassSpec{Run: Run{Kind: RunSQS, Queue: ".fifo"}}},
		{"/run/queue", ClassSpec{Run: Run{Kind: RunSQS, Queue: strings.Repeat("q", 81)}}},
		{"/run/queue", ClassSpec{Run: Run{Kind: RunSQS, Queue: strings.Repeat("q", 76) + ".fifo"}}},
		{"/run/queue", ClassSpec{Run: Run{Kind: RunSQS, Queue: "https://key:secret@sqs.example.com/1/q"}}},
		{"/run/queue", ClassSpec{Run: Run{Kind: RunSQS, Queue: "https://sqs.example.com/1/"}}},
		{"/run/queue", ClassSpec{Run: Run{Kind: RunSQS, Queue: "arn:aws:sqs:eu-west-1:1:q"}}},
		{"/units/db", ClassSpec{Run: Run{Kind: RunExec, Command: "c"}, Units: Units{"db": -1}}},
		{"/units", ClassSpec{Run: Run{Kind: RunExec, Command: "c"}, Units: Units{"Bad Name": 1}}},
		{"/max_attempts", ClassSpec{Run: Run{Kind: RunExec, Command: "c"}, MaxAttempts: -1}},
		{"/max_attempts", ClassSpec{Run: Run{Kind: RunExec, Command: "c"}, MaxAttempts: 101}},
		{"/overlap", ClassSpec{Run: Run{Kind: RunExec, Command: "c"}, Overlap: "drop"}},
		{"/backoff/max", ClassSpec{Run: Run{Kind: RunExec, Command: "c"}, Backoff: &Backoff{Base: 2, Max: 1}}},
	} {
		found := false
		for _, e := range tt.spec.Validate() {
			found = found || e.Pointer == tt.pointer
		}
		if !found {
			t.Errorf("%+v: no fault at %s in %v", tt.spec, tt.pointer, tt.spec.Validate())
		}
	}
}

// The fingerprint covers what a proof is about and nothing else.
func TestFingerprint(t *testing.T) {
	base := func() ClassSpec {
		return ClassSpec{Run: Run{Kind: RunExec, Command: "c", Version: "1"}, Units: Units{"db": 5}}
	}
	same := map[string]func(*ClassSpec){
		"description": func(s *ClassSpec) { s.Description = "x" },
		"timeout":     func(s *ClassSpec) { s.Timeout = Duration(time.Hour) },
		"overlap":     func(s *ClassSpec) { s.Overlap = OverlapSkip },
		"paused":      func(s *ClassSpec) { s.Paused = true },
		"attempts":    func(s *ClassSpec) { s.MaxAttempts = 7 },
		"heartbeat":   func(s *ClassSpec) { s.Run.Heartbeat = Duration(time.Minute) },
		"units clone": func(s *ClassSpec) { s.Units = maps.Clone(s.Units) },
	}
	other := map[string]func(*ClassSpec){
		"command":  func(s *ClassSpec) { s.Run.Command = "d" },
		"version":  func(s *ClassSpec) { s.Run.Version = "2" },
		"units":    func(s *ClassSpec) { s.Units = Units{"db": 6} },
		"declared": func(s *ClassSpec) { s.Units = nil },
		"none":     func(s *ClassSpec) { s.Units = Units{} },
	}
	want := Fingerprint(base(), "digest")
	for name, edit := range same {
		s := base()
		edit(&s)
		if Fingerprint(s, "digest") != want {
			t.Errorf("%s changes the fingerprint", name)
		}
	}
	seen := map[string]string{want: "base"}
	for name, edit := range other {
		s := base()
		edit(&s)
		f := Fingerprint(s, "digest")
		if first, dup := seen[f]; dup {
			t.Errorf("%s has the fingerprint of %s", name, first)
		}
		seen[f] = name
	}
	if Fingerprint(base(), "other") == want {
		t.Error("another command definition has the same fingerprint")
	}
}

func TestUsing(t *testing.T) {
	resources := []Resource{{Name: "db", Capacity: 15, Pool: true}, {Name: "vendor", Capacity: 1}}
	if got := (ClassSpec{}).Using(resources); !maps.Equal(got, Units{"db": 1}) {
		t.Errorf("undeclared = %v, want 1 of each pool", got)
	}
	if got := (ClassSpec{Units: Units{}}).Using(resources); len(got) != 0 {
		t.Errorf("declared as none = %v", got)
	}
}

func TestDuration(t *testing.T) {
	for in, want := range map[string]string{"90s": "1m30s", "26h": "26h", "1h30m": "1h30m", "0s": "0s", "1500ms": "1.5s", "10m0s": "10m", "100m": "1h40m"} {
		var d Duration
		if err := json.Unmarshal([]byte(`"`+in+`"`), &d); err != nil || d.String() != want {
			t.Errorf("%s = %s (%v), want %s", in, d, err, want)
		}
		if again, err := ParseDuration(d.String()); err != nil || again != d.Std() {
			t.Errorf("%s does not read back: %v, %v", d, again, err)
		}
	}
	for _, in := range []string{"", "5", "-1s", "five minutes", "100000000h", "1d"} {
		var d Duration
		if err := d.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q accepted as %v", in, d)
		}
	}
}

func TestDurationErrorsAreTrue(t *testing.T) {
	for in, want := range map[string]string{
		"99999999h":                       `"99999999h" is too long: at most 87840h, which is ten years`,
		"87841h":                          `"87841h" is too long: at most 87840h, which is ten years`,
		strings.Repeat("9", 40) + ".5h1m": "is too long: at most 87840h",
		"-99999999h":                      "must not be negative",
		"-1ns":                            "must not be negative",
		"99999999d":                       "is not a duration",
		"1h ":                             "is not a duration",
		".h":                              "is not a duration",
	} {
		if _, err := ParseDuration(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", in, err, want)
		}
		if _, err := ParseDeclared(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s declared: %v, want %s", in, err, want)
		}
	}
	for _, in := range []string{"0", "0s", "-0s", "1ns", "999us"} {
		if _, err := ParseDuration(in); err != nil {
			t.Errorf("%s: %v", in, err)
		}
		if _, err := ParseDeclared(in); err == nil || !strings.Contains(err.Error(), "is too short: at least 1ms; to have none, or the default, leave the field out") {
			t.Errorf("%s declared: %v", in, err)
		}
	}
	if d, err := ParseDeclared("1ms"); err != nil || d.Std() != MinDuration {
		t.Errorf("1ms = %v, %v", d, err)
	}
}

func TestBackoffIsCompleted(t *testing.T) {
	hours := func(n int) Duration { return Duration(time.Duration(n) * time.Hour) }
	for _, tt := range []struct{ declared, want Backoff }{
		{Backoff{}, Backoff{DefaultBackoffBase, DefaultBackoffMax}},
		{Backoff{Base: 5}, Backoff{5, DefaultBackoffMax}},
		{Backoff{Base: hours(3)}, Backoff{hours(3), hours(3)}},
		{Backoff{Max: 5}, Backoff{5, 5}},
		{Backoff{Max: hours(3)}, Backoff{DefaultBackoffBase, hours(3)}},
		{Backoff{5, 7}, Backoff{5, 7}},
	} {
		if got := tt.declared.Complete(); got != tt.want {
			t.Errorf("%+v = %+v, want %+v", tt.declared, got, tt.want)
		}
	}
}

func FuzzDuration(f *testing.F) {
	for _, s := range []string{"90s", "26h", "1h0m1s", "0.5s", "10m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDuration(s)
		if err != nil {
			return
		}
		if again, err := ParseDuration(FormatDuration(d)); err != nil || again != d {
			t.Errorf("%q → %v → %q → %v (%v)", s, d, FormatDuration(d), again, err)
		}
	})
}
