package queue

import (
	"context"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
)

// lanesEvery is how often the lanes are read again.
const lanesEvery = 30 * time.Second

var prefixForm = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)

// CheckPrefix says whether SQS takes queue names that begin so.
func CheckPrefix(p string) error {
	if len(p) > maxPrefix || !prefixForm.MatchString(p) {
		return fmt.Errorf("the queue prefix %q must be at most %d letters, digits, - and _", p, maxPrefix)
	}
	return nil
}

// NameFor is the queue of a lane: its own setting, a name or a URL, else prefix
// and name, with the dots that SQS doesn't take as underscores.
func NameFor(l lanegate.Lane, prefix string) string {
	if l.Queue != "" {
		return l.Queue
	}
	return prefix + strings.ReplaceAll(l.Name, ".", "_")
}

// laneQueue is one lane's queue. Its keeper finds it; the relay and the receiver
// use it and tell when it is lost.
type laneQueue struct {
	lane, name string
	lost       chan struct{}      // holds one token: the keeper must find it again
	stop       context.CancelFunc // ends its loops; owned by laneLoop

	mu       sync.Mutex
	url      string            // "" while it isn't found; guarded by mu
	missing  bool              // it was looked for and is not there; guarded by mu
	worked   bool              // a message went through since it was found; guarded by mu
	problems map[string]string // by what fails; guarded by mu
	heard    time.Time         // of the last message, or when the queue became ours; guarded by mu
	noSend   time.Time         // sends are refused: not tried before; guarded by mu
}

func newLaneQueue(l lanegate.Lane, prefix string) *laneQueue {
	return &laneQueue{lane: l.Name, name: NameFor(l, prefix), lost: make(chan struct{}, 1), problems: map[string]string{}, heard: time.Now()}
}

// hears notes that messages came.
func (q *laneQueue) hears() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.heard = time.Now()
}

// unheard is for how long none has come.
func (q *laneQueue) unheard() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return time.Since(q.heard)
}

// address is the queue's URL, "" while it isn't known; missing says that it was
// looked for and is not there.
func (q *laneQueue) address() (url string, missing bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.url, q.missing
}

func (q *laneQueue) found(url string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.url, q.missing, q.worked = url, false, false
}

// gone marks the queue as missing.
func (q *laneQueue) gone() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.url, q.missing = "", true
}

func (q *laneQueue) hasWorked() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.worked
}

func (q *laneQueue) problem() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	var all []string
	for _, p := range q.problems {
		all = append(all, p)
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// What can fail about a lane's queue, as keys of problems and of the fault log.
const (
	aboutQueue   = "queue"
	aboutSend    = "send"
	aboutReceive = "receive"
)

// queueFailed notes and logs what fails about a queue, and starts the search for
// one that is missing.
func (s *SQS) queueFailed(ctx context.Context, q *laneQueue, about string, err error) sqsFault {
	f := sortSQS(err)
	if f == faultMissing {
		about = aboutQueue // one fault, however it is noticed
		q.gone()
		poke(q.lost)
	}
	q.mu.Lock()
	q.problems[about] = about + ": " + f.says()
	q.mu.Unlock()
	s.m.up.WithLabelValues(q.lane).Set(0)
	s.faults.failed(ctx, about+" "+q.lane, "sqs queue fails",
		slog.String("lane", q.lane), slog.String("queue", q.name), slog.String("about", about), slog.String("meaning", f.says()), slog.Any("err", err))
	return f
}

// queueWorks notes that a message could be sent or asked for.
func (s *SQS) queueWorks(ctx context.Context, q *laneQueue, about string) {
	q.mu.Lock()
	q.worked = true
	q.mu.Unlock()
	s.noProblem(q, aboutQueue)
	s.noProblem(q, about)
	for _, a := range []string{aboutQueue, about} {
		s.faults.works(ctx, a+" "+q.lane, "sqs queue works again", slog.String("lane", q.lane), slog.String("queue", q.name), slog.String("about", a))
	}
}

func (s *SQS) noProblem(q *laneQueue, about string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.problems, about)
	if len(q.problems) == 0 {
		s.m.up.WithLabelValues(q.lane).Set(1)
	}
}

// laneLoop keeps the set of lanes and their loops, and waits for these at the end.
func (s *SQS) laneLoop(ctx context.Context) {
	var loops sync.WaitGroup
	defer loops.Wait()
	for _, q := range s.allQueues() {
		s.startLane(ctx, &loops, q)
	}
	for sleep(ctx, lanesEvery) {
		lanes, err := s.o.Lanes(ctx)
		if err != nil {
			if ctx.Err() == nil {
				s.faults.failed(ctx, "lanes", "reading the lanes failed", slog.Any("err", err))
			}
			continue
		}
		s.faults.works(ctx, "lanes", "reading the lanes works again")
		for _, q := range s.changeLanes(lanes) {
			s.o.Log.InfoContext(ctx, "sqs doorbell of a lane", "lane", q.lane, "queue", q.name)
			s.startLane(ctx, &loops, q)
		}
	}
}

func (s *SQS) startLane(ctx context.Context, loops *sync.WaitGroup, q *laneQueue) {
	ctx, q.stop = context.WithCancel(ctx)
	loops.Go(func() { s.keepLoop(ctx, q) })
	if s.serves(q.lane) {
		receiving, stop := context.WithCancel(ctx)
		unhook := context.AfterFunc(s.receiving, stop)
		loops.Go(func() {
			defer stop()
			defer unhook()
			s.receiveLoop(receiving, q)
		})
	}
}

// changeLanes brings the set in line with lanes and returns what is new in it; a
// lane with another queue is new.
func (s *SQS) changeLanes(lanes []lanegate.Lane) (added []*laneQueue) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := map[string]bool{}
	for _, l := range lanes {
		left[l.Name] = true
		q := newLaneQueue(l, s.o.Prefix)
		if old := s.queues[l.Name]; old != nil {
			if old.name == q.name {
				continue
			}
			old.stop()
		}
		s.queues[l.Name] = q
		s.m.lane(l.Name)
		added = append(added, q)
	}
	for name, q := range s.queues {
		if !left[name] {
			q.stop()
			delete(s.queues, name)
			s.m.forget(name)
		}
	}
	return added
}

// keepLoop finds the queue, and finds it again whenever it is lost, slowly. It
// never makes one: where a queue is missing, a person has to say what is wrong.
func (s *SQS) keepLoop(ctx context.Context, q *laneQueue) {
	again := retry{Backoff: s.o.Backoff}
	missed, seen := false, false
	for ctx.Err() == nil {
		url, err := s.find(ctx, q)
		if err != nil {
			if f := s.queueFailed(ctx, q, aboutQueue, err); f == faultDenied || f == faultIdentity || f == faultInvalid {
				q.gone()
			}
			missed = true
			sleep(ctx, again.next())
			continue
		}
		q.found(url)
		if !seen {
			seen = s.see(ctx, q)
		}
		if missed { // nothing was sent for what came in meanwhile
			s.ringLane(ctx, q)
		}
		if !s.serves(q.lane) { // a message may not go through for long
			s.noProblem(q, aboutQueue)
		}
		select {
		case <-ctx.Done():
			return
		case <-q.lost:
		}
		missed = true
		if q.hasWorked() {
			again.reset()
		}
		sleep(ctx, again.next())
	}
}

// find asks SQS for the queue's URL.
func (s *SQS) find(ctx context.Context, q *laneQueue) (url string, err error) {
	return s.calls.find(ctx, q.name)
}

// see notes in the database that the lane's queue exists, which may make the lane
// available; false when ctx ended first.
func (s *SQS) see(ctx context.Context, q *laneQueue) bool {
	again := retry{Backoff: s.o.Backoff}
	for {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		err := s.o.Bells.LaneQueueSeen(call, q.lane)
		cancel()
		if err == nil {
			s.faults.works(ctx, "seen "+q.lane, "noting a lane's queue works again", slog.String("lane", q.lane))
			s.Local.Ring(q.lane)
			return true
		}
		if ctx.Err() == nil {
			s.faults.failed(ctx, "seen "+q.lane, "noting a lane's queue failed", slog.String("lane", q.lane), slog.Any("err", err))
		}
		if !sleep(ctx, again.next()) {
			return false
		}
	}
}

// ringLane rings for what waits in a lane, here and elsewhere.
func (s *SQS) ringLane(ctx context.Context, q *laneQueue) {
	call, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := s.o.Bells.RingLane(call, q.lane); err != nil && ctx.Err() == nil {
		s.faults.failed(ctx, "ring "+q.lane, "ringing a lane again failed", slog.String("lane", q.lane), slog.Any("err", err))
	} else {
		s.faults.works(ctx, "ring "+q.lane, "ringing a lane again works again", slog.String("lane", q.lane))
	}
	s.Ring(q.lane)
}
