//go:build linux

package store

import (
	"path/filepath"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgtest"
)

func TestReadLanesBesideAnOpenStore(t *testing.T) {
	t.Parallel()
	server, name := pgtest.Database(t, migratePG)
	for _, path := range []string{filepath.Join(t.TempDir(), "x.db"), server.URL(name)} {
		s := newStore(t, Options{Path: path})
		long := lanegate.Lane{Name: "long", WidthSetting: 1, Order: lanegate.OrderFIFO, Queue: "theirs", WhenUnavailable: lanegate.FallbackSerial, ManagedBy: lanegate.ManagedByAPI, CreatedAt: s.opts.Now(), UpdatedAt: s.opts.Now()}
		if err := s.Change(t.Context(), func(tx service.ConfigTx) error { return tx.SaveLane(long) }); err != nil {
			t.Fatal(err)
		}
		lanes, err := ReadLanes(t.Context(), path)
		if err != nil || len(lanes) != 3 || lanes[0].Name != "long" || lanes[0].Queue != "theirs" {
			t.Errorf("lanes %+v, error %v", lanes, err)
		}
	}
}

func TestReadLanesWithoutADatabase(t *testing.T) {
	file := filepath.Join(t.TempDir(), "none.db")
	for range 2 { // the first makes no file
		if lanes, err := ReadLanes(t.Context(), file); err != nil || lanes != nil {
			t.Errorf("lanes %+v, error %v", lanes, err)
		}
	}
	if _, err := ReadLanes(t.Context(), "postgres://u:secret@localhost:1/d?sslmode=disable"); err == nil {
		t.Error("no error without a server")
	}
}
