package service

import (
	"context"
	"maps"
	"time"
)

// lateEvent is one success that is missed: the class, when it was due by, and
// whether that time has come.
type lateEvent struct {
	class string
	due   time.Time
	late  bool
}

// watchFreshness announces each class that will be late, and each that is, once for
// each success that is missed, and keeps for the metrics what it found.
func (s *Service) watchFreshness(ctx context.Context, f *foresight) error {
	view, err := s.freshness(ctx, f, f.line.Input)
	if err != nil {
		return err
	}
	late, now := map[string]bool{}, map[lateEvent]bool{}
	for _, fr := range view.Classes {
		late[fr.Class] = fr.Status == ExpectedLate || fr.Status == Late
		if !late[fr.Class] {
			continue
		}
		e := lateEvent{fr.Class, fr.DueBy, fr.Status == Late}
		now[e] = true
		if !s.oracle.announce(e) {
			continue
		}
		var way []string
		for _, w := range fr.InTheWay {
			way = append(way, w.Class)
		}
		var help []string
		for _, h := range fr.Help {
			help = append(help, h.Action)
		}
		log := s.log.With("class", fr.Class, "lane", fr.Lane, "due_by", fr.DueBy, "in_the_way", way, "help", help, "text", fr.Sentence)
		if e.late {
			log.WarnContext(ctx, "class is late")
		} else {
			log.WarnContext(ctx, "class is expected to be late")
		}
	}
	s.oracle.settle(late, now)
	return nil
}

func (o *oracle) announce(e lateEvent) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := !o.said[e]
	o.said[e] = true
	return first
}

// settle keeps what was found, and forgets what was said of successes that are no
// longer missed: one that comes and goes around the limit is said once.
func (o *oracle) settle(late map[string]bool, now map[lateEvent]bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.late = late
	latest := map[string]time.Time{}
	for e := range now {
		latest[e.class] = e.due
	}
	maps.DeleteFunc(o.said, func(e lateEvent, _ bool) bool {
		due, missed := latest[e.class]
		_, known := late[e.class]
		return !known || missed && !due.Equal(e.due)
	})
}

// lateClasses is what was found last, nil before the first look.
func (o *oracle) lateClasses() map[string]bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.late
}
