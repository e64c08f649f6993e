package service_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

func TestNewIDIsAUUIDOfItsTime(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	id := service.NewID()
	u, err := uuid.Parse(id)
	if err != nil || u.String() != id || u.Version() != 7 || u.Variant() != uuid.RFC4122 || !lanegate.ValidID(id) {
		t.Fatalf("NewID() = %q (%v), want a UUIDv7 in canonical form", id, err)
	}
	// Others may have pushed the count ahead of the clock, by microseconds.
	if sec, nsec := u.Time().UnixTime(); time.Unix(sec, nsec).Before(before) || time.Unix(sec, nsec).After(time.Now().Add(time.Second)) {
		t.Errorf("its time is %v, now it is %v", time.Unix(sec, nsec), before)
	}
}

// Ids ascend also where more are made than the clock has ticks, and by many at once.
func TestNewIDsAscend(t *testing.T) {
	var wg sync.WaitGroup
	made := make([][]string, 8)
	for i := range made {
		wg.Go(func() {
			for range 5000 {
				made[i] = append(made[i], service.NewID())
			}
		})
	}
	wg.Wait()
	for _, ids := range made {
		if !slices.IsSorted(ids) {
			t.Error("the ids of one goroutine don't ascend")
		}
	}
	all := slices.Sorted(slices.Values(slices.Concat(made...)))
	if n := len(slices.Compact(all)); n != 8*5000 {
		t.Errorf("%d different ids of %d", n, 8*5000)
	}
}
