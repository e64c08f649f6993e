package store

import (
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

func TestTimeRoundTrip(t *testing.T) {
	berlin := time.FixedZone("CET", 3600)
	in := time.Date(2026, 3, 29, 2, 30, 0, 123456789, berlin)
	v, err := at(in).Value()
	if err != nil || v != "2026-03-29T01:30:00.123456Z" {
		t.Fatalf("Value = %v, %v", v, err)
	}
	for _, src := range []any{v, []byte(v.(string)), in} {
		var out dbTime
		if err := out.Scan(src); err != nil {
			t.Fatal(err)
		}
		if want := lanegate.Micro(in); out.t != want {
			t.Errorf("from %T: %v, want the very value %v", src, out.t, want)
		}
	}
	var null dbTime
	if err := null.Scan(nil); err != nil || null.ptr() != nil {
		t.Errorf("NULL: %v, %v", null, err)
	}
	if v, err := null.Value(); v != nil || err != nil {
		t.Errorf("the zero time: %v, %v", v, err)
	}
	if never.ptr() != nil {
		t.Error("never is a time")
	}
	for _, bad := range []any{"2026-11-30", "2026-11-30 00:00:00.000000Z", 7, 1.5} {
		if err := new(dbTime).Scan(bad); err == nil {
			t.Errorf("%v was read as a time", bad)
		}
	}
}

func TestJSONKeepsNilApart(t *testing.T) {
	for name, c := range map[string]struct {
		in   lanegate.Units
		want any
	}{
		"nil":   {nil, nil},
		"empty": {lanegate.Units{}, "{}"},
		"full":  {lanegate.Units{"db": 5}, `{"db":5}`},
	} {
		v, err := dbJSON[lanegate.Units]{c.in}.Value()
		if err != nil || v != c.want {
			t.Errorf("%s: %v, %v, want %v", name, v, err, c.want)
		}
		out := dbJSON[lanegate.Units]{lanegate.Units{"old": 1}}
		if err := out.Scan(v); err != nil {
			t.Fatal(err)
		}
		if (out.v == nil) != (c.in == nil) || len(out.v) != len(c.in) {
			t.Errorf("%s came back as %v", name, out.v)
		}
	}
	if err := new(dbJSON[lanegate.Units]).Scan(7); err == nil {
		t.Error("a number column was read as JSON")
	}
	if err := new(dbJSON[lanegate.Units]).Scan("{"); err == nil {
		t.Error("broken JSON was read")
	}
}

func TestTextIsStorableEverywhere(t *testing.T) {
	if got := text("a\x00b\xffé"); got != "a\\x00b\uFFFDé" {
		t.Errorf("text = %q", got)
	}
}
