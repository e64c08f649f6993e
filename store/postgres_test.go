//go:build linux

package store

import (
	"context"
	"log/slog"
	"os"
	"testing"

	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/pgtest"
	"github.com/lanegate/lanegate/store/storetest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Run(m)) }

// migratePG makes the template of all test databases.
func migratePG(ctx context.Context, url string) error {
	s, err := Open(ctx, Options{Path: url, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	return s.Close()
}

// newPG is a store on a PostgreSQL database of the test's own.
func newPG(tb testing.TB, o Options) *Store {
	tb.Helper()
	server, name := pgtest.Database(tb, migratePG)
	o.Path = server.URL(name)
	return newStore(tb, o)
}

func TestStorePostgres(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) service.Store { return newPG(t, Options{}) })
}

func newTestLog() *slog.Logger { return slog.New(slog.DiscardHandler) }
