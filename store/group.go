package store

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/lanegate/lanegate"
)

// Bounds of what shares one commit, so that the first item doesn't wait for a long
// tail: items, and jobs of batches, of which the last may go beyond.
const (
	maxGroup     = 512
	maxGroupJobs = 2000
)

// States of an item. Whoever moves it away from pending decides: the writer takes
// it, or its caller gives it up.
const (
	itemPending int32 = iota
	itemTaken
	itemDropped
)

// item is one change that shares a commit with others.
type item struct {
	// What the group looks at before it runs the item, to lock and to do together
	// with what others want: submissions, or an outcome.
	submits []submission
	end     *ending
	// run makes the change, without what is done already, and keeps its answer; it
	// may run again when the transaction of the group has to be repeated.
	run func(t *tx) error

	state    atomic.Int32
	err      error         // written by the writer before done is closed
	done     chan struct{} // closed by the writer; nil when nobody waits
	answered bool          // the writer's: done is closed
}

// answer lets the item's caller go on.
func (it *item) answer() {
	if !it.answered && it.done != nil {
		close(it.done)
	}
	it.answered = true
}

// group is group commit: one writer goroutine puts everything that came in while
// the last commit ran into the next transaction. There is no timer: an item that
// comes alone is committed alone, at once. Each answer comes after its own commit.
type group struct {
	s     *Store
	queue chan *item

	mu     sync.RWMutex // held shared while handing in, so that close is last
	closed bool
	ended  chan struct{}
}

func startGroup(s *Store, pending int) *group {
	g := &group{s: s, queue: make(chan *item, pending), ended: make(chan struct{})}
	go g.write()
	return g
}

// close refuses new items and waits for those already handed in.
func (g *group) close() {
	g.mu.Lock()
	if !g.closed {
		g.closed = true
		close(g.queue)
	}
	g.mu.Unlock()
	<-g.ended
}

// do hands it in and waits for its commit. When ctx ends before the writer has
// taken the item, the item is dropped and the answer is ctx's error; later the
// answer is lanegate.ErrOutcomeUnknown, as the commit goes on.
func (g *group) do(ctx context.Context, it *item) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	it.done = make(chan struct{})
	if err := g.hand(it); err != nil {
		return err
	}
	select {
	case <-it.done:
		return it.err
	case <-ctx.Done():
	}
	if it.state.CompareAndSwap(itemPending, itemDropped) {
		return ctx.Err()
	}
	select {
	case <-it.done: // both were ready: the answer is known after all
		return it.err
	default:
		return lanegate.ErrOutcomeUnknown.Because(ctx.Err())
	}
}

func (g *group) hand(it *item) error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		return lanegate.ErrUnavailable.Because(errors.New("the store is closed"))
	}
	select {
	case g.queue <- it:
		return nil
	default:
		return lanegate.ErrOverloaded
	}
}

// write is the writer goroutine; it ends when the queue is closed and empty.
func (g *group) write() {
	defer close(g.ended)
	for first := range g.queue {
		runtime.Gosched() // whoever is about to hand in, as its run ended with the first one's, shares its commit
		items := g.gather(first)
		if len(items) == 0 {
			continue
		}
		if err := g.s.guarded(context.Background(), func() error { return g.commit(items) }); err != nil {
			for _, it := range items {
				if !it.answered {
					it.err = err
				}
			}
		}
		for _, it := range items {
			it.answer()
		}
	}
}

// gather takes what waits in the queue, in the order it came, without the items
// whose callers have left.
func (g *group) gather(first *item) []*item {
	var items []*item
	jobs := 0
	take := func(it *item) {
		if it.state.CompareAndSwap(itemPending, itemTaken) {
			items = append(items, it)
			jobs += len(it.submits)
		}
	}
	take(first)
	for len(items) < maxGroup && jobs < maxGroupJobs {
		select {
		case it, ok := <-g.queue:
			if !ok {
				return items
			}
			take(it)
		default:
			return items
		}
	}
	return items
}

// commit makes the changes of the items: in one statement what the engine can so,
// and the others in one transaction. An item that fails fails alone. An error of
// commit is the answer to all that have none yet.
func (g *group) commit(items []*item) error {
	ctx := context.Background()
	if atOnce := g.s.d.atOnce; atOnce != nil {
		if err := atOnce(g, items); err != nil {
			return err
		}
		var rest []*item
		for _, it := range items {
			if it.made() {
				it.answer() // it is durable, whatever the others wait for
			}
			if !it.answered {
				rest = append(rest, it)
			}
		}
		if items = rest; len(items) == 0 {
			return nil
		}
	}
	return g.s.retry(ctx, func() error {
		err := g.s.once(ctx, g.s.write, func(t *tx) error { return g.run(t, items, (*tx).together) })
		if _, ok := errors.AsType[*togetherError](err); ok {
			g.s.log.WarnContext(ctx, "a group's changes are made one by one", "items", len(items), "err", err)
			err = g.s.once(ctx, g.s.write, func(t *tx) error { return g.run(t, items, nil) })
		}
		if errors.Is(err, lanegate.ErrOutcomeUnknown) {
			return lanegate.ErrOutcomeUnknown.Because(err)
		}
		return g.s.mapped(ctx, err)
	}, "group commit")
}

// run makes the changes of all items; those that together makes need no more.
func (g *group) run(t *tx, items []*item, together func(*tx, []*item) error) error {
	for _, it := range items {
		it.reset()
	}
	if err := g.begin(t, items); err != nil {
		return err
	}
	t.successes = &[]success{}
	if together != nil {
		if err := together(t, items); err != nil {
			return err
		}
	}
	for _, it := range items {
		if it.made() {
			continue
		}
		noted := len(*t.successes)
		err := t.savepoint("item", func() error { return it.run(t) })
		if errors.Is(err, errTxLost) {
			return err
		}
		if err != nil {
			*t.successes = (*t.successes)[:noted]
		}
		it.err = g.s.mapped(context.Background(), err)
		if faultConflict.is(it.err) || g.s.spent(it.err) {
			return it.err // the whole group gives way and runs again, or can't run here
		}
		if err != nil && it.begun() {
			return &togetherError{it.err} // its savepoint does not hold what was made together
		}
	}
	return t.noteSuccesses(*t.successes)
}

// begin is t.begin, behind the locks of what the items will touch where transactions
// run side by side.
func (g *group) begin(t *tx, items []*item) error {
	if g.s.d.beginGroup == nil {
		return t.begin(sqlReadAdmission)
	}
	if err := g.s.d.beginGroup(t, items); err != nil {
		return fmt.Errorf("begin a group: %w", err)
	}
	return nil
}

// reset forgets the answers of an earlier try.
func (it *item) reset() {
	it.err = nil
	for i := range it.submits {
		it.submits[i].made = false
	}
	if it.end != nil {
		it.end.made = false
	}
}

// made says whether nothing of the item is left to do.
func (it *item) made() bool {
	if it.end != nil {
		return it.end.made
	}
	return len(it.submits) > 0 && !slices.ContainsFunc(it.submits, func(s submission) bool { return !s.made })
}

// begun says whether some of the item was made together with others.
func (it *item) begun() bool {
	return slices.ContainsFunc(it.submits, func(s submission) bool { return s.made })
}

// guarded runs fn and turns a panic into an internal error, logged with its stack.
func (s *Store) guarded(ctx context.Context, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.ErrorContext(ctx, "panic in a transaction", "panic", p, "stack", string(debug.Stack()))
			err = &lanegate.Error{
				Kind: lanegate.KindInternal, Code: "internal",
				Message: "an internal fault; nothing was changed.", Err: fmt.Errorf("panic: %v", p),
			}
		}
	}()
	return fn()
}
