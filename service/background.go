package service

import (
	"context"
	"sync"

	"github.com/lanegate/lanegate"
)

// background is what is computed for people who look, beside their requests. It is
// part of what keeps the results.
type background struct {
	ctx  context.Context // ends with the service
	stop context.CancelFunc
	wg   sync.WaitGroup
	// mu guards what the results are kept in, and is held by whoever begins.
	mu sync.Mutex
}

func (b *background) open() { b.ctx, b.stop = context.WithCancel(context.Background()) }

// close ends what is being computed and waits for it.
func (b *background) close() {
	func() {
		b.mu.Lock() // whoever has passed the look at ctx is counted by then
		defer b.mu.Unlock()
		b.stop()
	}()
	b.wg.Wait()
}

// begin runs compute beside its caller, which holds mu, unless the service ends.
func (b *background) begin(compute func()) error {
	if err := b.ctx.Err(); err != nil {
		return lanegate.ErrUnavailable.Because(err)
	}
	b.wg.Go(compute)
	return nil
}
