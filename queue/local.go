package queue

import "github.com/lanegate/lanegate/service"

// Local is the doorbell inside one process. The worker behind it serves all its
// lanes in one pass, so rings of all lanes merge into one token. Make it with
// NewLocal; its methods may be called from any goroutine.
type Local struct {
	// tokens holds at most one token. Ring sends, one worker receives, nobody
	// closes; full means that the worker is going to look anyway, and it looks
	// after whatever the dropped ring was about was committed.
	tokens chan struct{}
}

var _ service.Doorbell = (*Local)(nil)

// NewLocal returns a bell that has not been rung.
func NewLocal() *Local { return &Local{tokens: make(chan struct{}, 1)} }

// Ring implements service.Doorbell. It never blocks.
func (l *Local) Ring(string) { poke(l.tokens) }

// Rings implements service.Doorbell.
func (l *Local) Rings() <-chan struct{} { return l.tokens }

// poke leaves a token in c, which has room for one, unless there is one.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
