package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/verification"
)

// troubleIn fills in which phrases of trouble a run's output has, for a run that
// may have run beside others: outside serial, or in a verification run. An
// ordinary run that succeeded is not searched. What the outcome belongs to is
// read from the database, so that no restart makes it forgotten.
func (s *Service) troubleIn(ctx context.Context, f lanegate.Fence, e lanegate.Ending) (lanegate.Ending, error) {
	succeeded := e.Outcome == lanegate.Succeeded
	if succeeded && !s.trials.mayBeOpen.Load() {
		return e, nil
	}
	attempts, err := s.store.Attempts(ctx, f.Job)
	if err != nil {
		if errors.Is(err, lanegate.ErrJobNotFound) {
			return e, nil // the outcome will be refused as late
		}
		return e, fmt.Errorf("read attempt %d of job %s: %w", f.Number, f.Job, err)
	}
	i := slices.IndexFunc(attempts, func(a lanegate.Attempt) bool { return a.Number == f.Number })
	if i < 0 {
		return e, nil
	}
	a := attempts[i]
	if a.Verification == "" && (succeeded || a.Lane == lanegate.LaneSerial) {
		return e, nil
	}
	m, err := s.matcherOf(ctx, a.Class)
	if err != nil {
		return e, err
	}
	e.Trouble = m.Find(e.Output, e.Error)
	return e, nil
}

// matcherOf is the matcher of a class; one that was deleted has the built-in
// phrases. Expressions stored by another version that can't be read any more
// are left out rather than hide the others.
func (s *Service) matcherOf(ctx context.Context, class string) (*verification.Matcher, error) {
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return nil, err
	}
	c, err := cfg.findClass(class)
	if err != nil {
		return verification.NewMatcher(nil, nil)
	}
	m, err := verification.NewMatcher(c.Phrases, c.IgnorePhrases)
	if err != nil {
		s.log.ErrorContext(ctx, "the phrases of a class can't be used; the built-in ones are", "class", class, "err", err)
		return verification.NewMatcher(nil, nil)
	}
	return m, nil
}

// PhraseTrial asks what phrases would have found in a class's past output.
type PhraseTrial struct {
	// Expressions to try, with the class's ignored phrases in force; nil means the
	// ones it has now, built-in ones included.
	Expressions []string
	// Last is how many of the latest attempts are searched, 1 to 500; 0 means 50.
	Last int
}

// PhraseHit is a past attempt in which a phrase was found.
type PhraseHit struct {
	Job     string
	Attempt int
	EndedAt time.Time
	Outcome lanegate.Outcome
	Matches []lanegate.PhraseMatch
}

// Limits of TryPhrases.
const (
	defaultTried = 50
	maxTried     = 500
)

// TryPhrases searches what was kept of a class's past output, the latest attempts
// first. searched is how many attempts it looked at, those without a hit
// included. ErrClassNotFound, or a 422 that names the wrong expression.
func (s *Service) TryPhrases(ctx context.Context, class string, t PhraseTrial) (hits []PhraseHit, searched int, err error) {
	c, err := s.Class(ctx, class)
	if err != nil {
		return nil, 0, err
	}
	faults := verification.CheckExpressions("/expressions", t.Expressions)
	if t.Last < 0 || t.Last > maxTried {
		faults = append(faults, lanegate.FieldError{Pointer: "/last", Detail: fmt.Sprintf("must be a whole number from 1 to %d", maxTried)})
	}
	if err := lanegate.Invalid(faults); err != nil {
		return nil, 0, err
	}
	if t.Last == 0 {
		t.Last = defaultTried
	}
	var m *verification.Matcher
	if t.Expressions == nil {
		m, err = verification.NewMatcher(c.Phrases, c.IgnorePhrases)
	} else {
		m, err = verification.NewTrialMatcher(t.Expressions, c.IgnorePhrases)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("phrases of class %s: %w", class, err)
	}
	f := JobFilter{Classes: []string{class}, Verification: true, Limit: 100}
	for searched < t.Last {
		jobs, next, err := s.store.Jobs(ctx, f)
		if err != nil {
			return nil, 0, err
		}
		for _, job := range jobs {
			n, found, err := s.searchJob(ctx, m, job, t.Last-searched)
			if err != nil {
				return nil, 0, err
			}
			searched += n
			hits = append(hits, found...)
		}
		if next == "" {
			break
		}
		f.Before = next
	}
	return hits, searched, nil
}

// searchJob looks at up to limit finished attempts of one job, the last first.
func (s *Service) searchJob(ctx context.Context, m *verification.Matcher, job lanegate.Job, limit int) (searched int, hits []PhraseHit, err error) {
	if job.Attempts == 0 || limit <= 0 {
		return 0, nil, nil
	}
	attempts, err := s.store.Attempts(ctx, job.ID)
	if errors.Is(err, lanegate.ErrJobNotFound) {
		return 0, nil, nil // pruned since it was listed
	}
	if err != nil {
		return 0, nil, err
	}
	for i := len(attempts) - 1; i >= 0 && searched < limit; i-- {
		a := attempts[i]
		if a.EndedAt == nil {
			continue
		}
		out, err := s.store.Output(ctx, job.ID, a.Number)
		if err != nil && lanegate.KindOf(err) != lanegate.KindNotFound {
			return searched, hits, err
		}
		searched++
		if found := m.Find(out, a.Error); found != nil {
			hits = append(hits, PhraseHit{Job: job.ID, Attempt: a.Number, EndedAt: *a.EndedAt, Outcome: a.Outcome, Matches: found})
		}
	}
	return searched, hits, nil
}
