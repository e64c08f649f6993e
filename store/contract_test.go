package store

import (
	"testing"

	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/store/storetest"
)

func TestStoreSQLite(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) service.Store { return newStore(t, Options{}) })
}
