package service

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
)

// Nights of a comparison: how many there are before a promotion at most, how many
// after it, and how many with runs are needed on each side.
const (
	nightsBefore = 7
	nightsAfter  = 30
	nightsNeeded = 3
)

// PromotionComparison is what a promotion has changed, by the run log.
type PromotionComparison struct {
	Class, Lane string
	PromotedAt  time.Time
	Actor       string
	// Enough says whether both sides have enough nights with runs of the class; Why
	// says what is missing.
	Enough        bool
	Why           string
	Before, After PromotionSide
	// OthersBefore and OthersAfter are all other classes' runs, nil but for the latest promotion.
	OthersBefore, OthersAfter *PromotionSide
}

// PromotionSide is the runs before or after a promotion.
type PromotionSide struct {
	From, To time.Time
	// Nights counts the nights (noon to noon, UTC) in which a run ended.
	Nights   int
	Runs     int
	Failures int
	// Waits from due to start; Durations of good runs.
	Waits, Durations Quantiles
}

// Promotions compares, for each class outside serial that was promoted, the nights
// since its last promotion with the 7 before it. An empty list means that no class
// is outside serial by a promotion. Experiments and imported rows are left out.
// Errors are as those of Advice.
func (s *Service) Promotions(ctx context.Context) ([]PromotionComparison, error) {
	v, _, err := s.memo.get(ctx, "promotions", AdviceAge, func(ctx context.Context) (any, error) { return s.promotions(ctx) })
	if err != nil {
		return nil, err
	}
	return v.([]PromotionComparison), nil
}

func (s *Service) promotions(ctx context.Context) ([]PromotionComparison, error) {
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, c := range cfg.Classes {
		if c.Lane != lanegate.LaneSerial {
			ids = append(ids, c.ID)
		}
	}
	list := []PromotionComparison{}
	if len(ids) == 0 {
		return list, nil
	}
	facts, now, err := s.store.ClassFacts(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, c := range cfg.Classes {
		if because := facts[c.ID].Because; c.Lane != lanegate.LaneSerial && because.Event == eventPromoted {
			list = append(list, PromotionComparison{Class: c.ID, Lane: c.Lane, PromotedAt: because.At, Actor: because.Actor})
		}
	}
	if len(list) == 0 {
		return list, nil
	}
	slices.SortStableFunc(list, func(a, b PromotionComparison) int { return b.PromotedAt.Compare(a.PromotedAt) })
	return list, s.compare(ctx, list, now)
}

// side gathers the runs of one side.
type side struct {
	from, to    time.Time
	nights      map[int64]bool
	runs, bad   int
	waits, good []time.Duration
}

func newSide(from, to time.Time) *side { return &side{from: from, to: to, nights: map[int64]bool{}} }

// noon is the offset of a night's beginning.
const noon = 12 * 60 * 60

func (d *side) add(r lanegate.RunRecord) {
	if r.EndedAt.Before(d.from) || !r.EndedAt.Before(d.to) {
		return
	}
	d.runs++
	d.nights[(r.EndedAt.Unix()-noon)/(24*60*60)] = true
	switch r.Outcome {
	case lanegate.Succeeded:
		d.good = append(d.good, r.Duration)
	case lanegate.Failed, lanegate.TimedOut, lanegate.Lost:
		d.bad++
	}
	if r.ReadyAt != nil {
		d.waits = append(d.waits, max(0, r.StartedAt.Sub(*r.ReadyAt)))
	}
}

func (d *side) sum() PromotionSide {
	return PromotionSide{From: d.from, To: d.to, Nights: len(d.nights), Runs: d.runs, Failures: d.bad, Waits: QuantilesOf(d.waits), Durations: QuantilesOf(d.good)}
}

// compare fills the sides of all promotions in one reading of the log.
func (s *Service) compare(ctx context.Context, list []PromotionComparison, now time.Time) error {
	type sides struct{ before, after *side }
	mine := map[string]sides{}
	from := now
	for _, p := range list {
		begin, end := p.PromotedAt.Add(-nightsBefore*24*time.Hour), p.PromotedAt.Add(nightsAfter*24*time.Hour)
		if end.After(now) {
			end = now.Add(time.Second)
		}
		mine[p.Class] = sides{newSide(begin, p.PromotedAt), newSide(p.PromotedAt, end)}
		if begin.Before(from) {
			from = begin
		}
	}
	latest := mine[list[0].Class]
	others := sides{newSide(latest.before.from, latest.before.to), newSide(latest.after.from, latest.after.to)}
	rows := 0
	err := s.store.RunLog(ctx, "", from, now.Add(time.Second), func(r lanegate.RunRecord) error {
		if r.Verification != "" {
			return nil
		}
		if rows++; rows > 5*MaxAdviceRuns {
			return lanegate.ErrUnavailable.With("the run log has too many runs since the first promotion to compare them all.")
		}
		if m, ok := mine[r.Class]; ok {
			m.before.add(r)
			m.after.add(r)
		}
		if r.Class != list[0].Class {
			others.before.add(r)
			others.after.add(r)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range list {
		p := &list[i]
		p.Before, p.After = mine[p.Class].before.sum(), mine[p.Class].after.sum()
		p.Enough, p.Why = enoughNights(p.Before.Nights, p.After.Nights)
	}
	before, after := others.before.sum(), others.after.sum()
	list[0].OthersBefore, list[0].OthersAfter = &before, &after
	return nil
}

func enoughNights(before, after int) (bool, string) {
	switch {
	case before < nightsNeeded:
		return false, fmt.Sprintf("only %s before the promotion had runs; %d are needed for a comparison", plural(before, "night"), nightsNeeded)
	case after < nightsNeeded:
		return false, fmt.Sprintf("only %s since the promotion had runs; %d are needed for a comparison", plural(after, "night"), nightsNeeded)
	}
	return true, ""
}
