package store

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// A head that is blocked for a moment costs the database nothing; one that stays so is
// written down with the time since when, and the next start of the process counts on.
func TestBlockedHeadsAreWrittenWhenTheyStay(t *testing.T) {
	clock := newClock()
	path := filepath.Join(t.TempDir(), "lanegate.db")
	open := func() *Store { return newStore(t, Options{Path: path, Now: clock.Now, StarveAfter: 10 * time.Minute}) }
	s := open()
	addWide(t, s, 2, 2)
	mustRegister(t, s, "w")
	pass := func() (granted int) {
		t.Helper()
		res, err := s.Admit(t.Context(), service.Ask{Worker: "w", Free: 2})
		if err != nil {
			t.Fatal(err)
		}
		return len(res.Grants)
	}
	written := func() (n int) {
		t.Helper()
		if err := s.read.Get(&n, "SELECT count(*) FROM blocked_heads"); err != nil {
			t.Fatal(err)
		}
		return n
	}
	since := func() time.Time {
		t.Helper()
		in, err := s.Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range in.BlockedSince {
			return at
		}
		return time.Time{}
	}
	taken := lanegate.Units{"db": 4}
	if err := s.Change(t.Context(), func(tx service.ConfigTx) error {
		cfg, err := tx.Config()
		for _, c := range cfg.Classes {
			c.Units = taken // all there is
			err = tx.SaveClass(c)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if n := pass(); n != 0 {
		t.Fatalf("%d jobs started before there were any", n)
	}
	for _, class := range []string{"wide-00", "wide-01"} {
		if _, err := s.Submit(t.Context(), service.NewJob{ID: newID(t), Class: class, Client: "c", Payload: []byte(`{}`)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := pass(); n != 1 {
		t.Fatalf("%d jobs started, want one", n)
	}
	began := clock.Now()
	if n, at := written(), since(); n != 0 || !at.Equal(began) {
		t.Fatalf("%d heads written, blocked since %v; want none, and %v", n, at, began)
	}
	clock.advance(59 * time.Second)
	pass()
	if n, at := written(), since(); n != 0 || !at.Equal(began) {
		t.Fatalf("%d heads written, blocked since %v after 59 seconds; want none, and %v", n, at, began)
	}
	clock.advance(time.Second)
	pass()
	if n := written(); n != 1 {
		t.Fatalf("%d heads written after a minute, want one", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open()
	if at := since(); !at.Equal(began) {
		t.Errorf("blocked since %v for the next start, want %v", at, began)
	}
	pass()
	if n, at := written(), since(); n != 1 || !at.Equal(began) {
		t.Errorf("%d heads written, blocked since %v after its first pass; want one, and %v", n, at, began)
	}
}

// A process whose admissions are rare writes down what it finds at once: what it saw
// too long ago counts no more, as another one may have started the job meanwhile.
func TestBlockedHeadsOfRareAdmissions(t *testing.T) {
	var b blockedHeads
	now := newClock().Now()
	if b.set(map[string]time.Time{"a": now, "b": now}, now) {
		t.Error("the first admission came soon after another one")
	}
	if !b.set(map[string]time.Time{"a": now, "b": now}, now) {
		t.Error("the second admission did not come soon after the first")
	}
	earlier, later := now.Add(-time.Hour), now.Add(time.Hour)
	all := b.with(map[string]time.Time{"a": earlier, "b": later}, now.Add(blockedFor))
	if len(all) != 2 || !all["a"].Equal(earlier) || !all["b"].Equal(now) {
		t.Errorf("blocked %v, want the earlier time of each", all)
	}
	if all = b.with(map[string]time.Time{"a": later}, now.Add(blockedFor+1)); len(all) != 1 || !all["a"].Equal(later) {
		t.Errorf("blocked %v, want only what is written", all)
	}
	if b.set(nil, now.Add(blockedFor+1)) {
		t.Error("an admission long after another one is taken for one of many")
	}
}
