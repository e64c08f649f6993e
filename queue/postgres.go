package queue

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/lanegate/lanegate/service"
)

// Notifier is PostgreSQL's NOTIFY and LISTEN, as store lends them.
type Notifier interface {
	// Notify sends payload, less than 8,000 bytes, to all who listen.
	Notify(ctx context.Context, channel, payload string) error
	// Listen calls heard for each payload and connected each time listening begins,
	// at first and after a lost connection; it returns when ctx ends, or when it is refused.
	Listen(ctx context.Context, channel string, heard func(payload string), connected func()) error
}

// PostgresOptions configure a Postgres. Notifier and Log are required.
type PostgresOptions struct {
	Notifier Notifier
	Log      *slog.Logger
	// Channel that all replicas on the database share. Default "lanegate_bells".
	Channel string
	// Backoff of failed notifications.
	Backoff Backoff
}

const (
	// notifySpace is the least time between two notifications: what is rung
	// meanwhile shares the next one.
	notifySpace = 50 * time.Millisecond
	// notifyEnd bounds the notification of what was rung just before a stop.
	notifyEnd = 2 * time.Second
	// notifyLanes keeps a notification below the 8,000 bytes that it may have.
	notifyLanes = 100
)

// Postgres is the doorbell between replicas on one PostgreSQL database. A ring
// wakes this process's worker at once and the others by a notification.
// Notifications that get lost with a connection are made up for by a ring when
// there is a new one.
type Postgres struct {
	*Local
	opts   PostgresOptions
	faults *faultLog
	id     string        // tells own notifications from others'
	send   chan struct{} // holds one token: there are lanes to notify of

	mu    sync.Mutex
	lanes map[string]bool // rung and not notified of yet; guarded by mu
}

var _ service.Doorbell = (*Postgres)(nil)

// NewPostgres returns a bell that is silent to others until Run. It panics on
// missing parts, which is a wiring mistake.
func NewPostgres(o PostgresOptions) *Postgres {
	if o.Notifier == nil || o.Log == nil {
		panic("queue: NewPostgres: Notifier and Log are required")
	}
	if o.Channel == "" {
		o.Channel = "lanegate_bells"
	}
	o.Backoff.setDefaults()
	return &Postgres{
		Local: NewLocal(), opts: o, faults: newFaultLog(o.Log), id: rand.Text(),
		send: make(chan struct{}, 1), lanes: map[string]bool{},
	}
}

func (b *Backoff) setDefaults() {
	if b.Base <= 0 {
		b.Base = time.Second
	}
	if b.Max <= 0 {
		b.Max = 30 * time.Second
	}
}

// Ring implements service.Doorbell.
func (p *Postgres) Ring(lane string) {
	p.Local.Ring(lane)
	p.mu.Lock()
	p.lanes[lane] = true
	p.mu.Unlock()
	poke(p.send)
}

// notification is the payload. What can't be read rings, too: it is for us.
type notification struct {
	Version int      `json:"v"`
	From    string   `json:"from"`
	Lanes   []string `json:"lanes"`
}

// Run notifies and listens until ctx ends; then it notifies of what was rung
// last and returns. It may be called once.
func (p *Postgres) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { p.notifyLoop(ctx) })
	loops.Go(func() { p.listenLoop(ctx) })
	loops.Wait()
}

func (p *Postgres) notifyLoop(ctx context.Context) {
	again := retry{Backoff: p.opts.Backoff}
	for {
		select {
		case <-ctx.Done():
			p.notifyLast(ctx)
			return
		case <-p.send:
		}
		wait := notifySpace
		if err := p.notify(ctx); err != nil && ctx.Err() == nil {
			p.faults.failed(ctx, "notify", "notifying other replicas failed; trying again", slog.Any("err", err))
			wait = again.next()
			poke(p.send)
		} else if err == nil {
			p.faults.works(ctx, "notify", "notifying other replicas works again")
			again.reset()
		}
		sleep(ctx, wait)
	}
}

// notifyLast sends what was rung just before a stop; others look by themselves soon.
func (p *Postgres) notifyLast(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), notifyEnd)
	defer cancel()
	_ = p.notify(ctx)
}

// notify sends what was rung; what could not be sent stays for the next time.
func (p *Postgres) notify(ctx context.Context) error {
	n := notification{Version: 1, From: p.id}
	p.mu.Lock()
	for lane := range p.lanes {
		if len(n.Lanes) == notifyLanes {
			poke(p.send)
			break
		}
		n.Lanes = append(n.Lanes, lane)
		delete(p.lanes, lane)
	}
	p.mu.Unlock()
	if len(n.Lanes) == 0 {
		return nil
	}
	payload, err := json.Marshal(n)
	if err == nil {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err = p.opts.Notifier.Notify(call, p.opts.Channel, string(payload))
	}
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, lane := range n.Lanes {
			p.lanes[lane] = true
		}
	}
	return err
}

func (p *Postgres) listenLoop(ctx context.Context) {
	again := retry{Backoff: p.opts.Backoff}
	for ctx.Err() == nil {
		err := p.opts.Notifier.Listen(ctx, p.opts.Channel, p.heard, func() {
			again.reset()
			p.faults.works(ctx, "listen", "listening to other replicas works again")
			p.Local.Ring("") // for what was sent while nobody listened
		})
		if ctx.Err() != nil {
			return
		}
		p.faults.failed(ctx, "listen", "listening to other replicas failed; trying again", slog.Any("err", err))
		sleep(ctx, again.next())
	}
}

func (p *Postgres) heard(payload string) {
	var n notification
	if err := json.Unmarshal([]byte(payload), &n); err == nil && n.From == p.id {
		return // this process was woken when it rang
	}
	p.Local.Ring("")
}
