package service

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lanegate/lanegate"
)

// The end of the service ends what is being computed, and waits for it; afterwards
// nothing is begun.
func TestBackgroundEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b background
		b.open()
		over := false
		if err := b.begin(func() {
			<-b.ctx.Done()
			<-time.After(time.Second) // it takes a moment to give up
			over = true
		}); err != nil {
			t.Fatal(err)
		}
		b.close()
		if !over {
			t.Error("what was under way goes on")
		}
		if err := b.begin(func() {}); !errors.Is(err, lanegate.ErrUnavailable) {
			t.Errorf("begun after the end: %v", err)
		}
	})
}
