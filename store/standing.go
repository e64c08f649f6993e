package store

import (
	"context"
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// lastEvents reads, for each of some subjects, the newest event with one of the names.
func (t *tx) lastEvents(subjects, names []string) (map[string]service.HistoryEvent, error) {
	if len(subjects) == 0 || len(names) == 0 {
		return nil, nil
	}
	var p params
	var rows []historyRow
	q := "SELECT " + historyColumns + `
  FROM history
 WHERE id IN (SELECT max(h.id)
                FROM history AS h
               WHERE h.subject IN ` + list(&p, subjects) + ` AND h.event IN ` + list(&p, names) + `
               GROUP BY h.subject)`
	if err := t.all(&rows, q, p...); err != nil {
		return nil, fmt.Errorf("read the latest events: %w", err)
	}
	last := make(map[string]service.HistoryEvent, len(rows))
	for _, r := range rows {
		last[r.Subject] = r.event()
	}
	return last, nil
}

// LastEvent implements service.ConfigTx.
func (c *configTx) LastEvent(subject string, names ...string) (event service.HistoryEvent, err error) {
	err = c.do("read the latest event of "+subject, func(t *tx) error {
		last, err := t.lastEvents([]string{subject}, names)
		event = last[subject]
		return err
	})
	return event, err
}

// ClassFacts implements service.Store.
func (s *Store) ClassFacts(ctx context.Context, classes []string) (facts map[string]service.ClassFacts, now time.Time, err error) {
	err = s.inRead(ctx, "read where classes stand", func(t *tx) (err error) {
		now = t.at
		facts, err = t.classFacts(classes)
		return err
	})
	return facts, now, err
}

// classFacts reads them with one statement for each kind of fact.
func (t *tx) classFacts(classes []string) (map[string]service.ClassFacts, error) {
	facts := make(map[string]service.ClassFacts, len(classes))
	if len(classes) == 0 {
		return facts, nil
	}
	failures, err := t.failuresInRow(classes)
	if err != nil {
		return nil, err
	}
	for class, n := range failures { // it exists, with failures or without
		facts[class] = service.ClassFacts{Failures: n}
	}
	subjects := make([]string, len(classes))
	for i, class := range classes {
		subjects[i] = "class:" + class
	}
	events, err := t.lastEvents(subjects, service.StandingEvents)
	if err != nil {
		return nil, err
	}
	for i, class := range classes {
		if e, ok := events[subjects[i]]; ok {
			f := facts[class]
			f.Because = e
			facts[class] = f
		}
	}
	proofs, err := t.proofs(classes...)
	if err != nil {
		return nil, err
	}
	for _, p := range proofs {
		f := facts[p.Class]
		f.Proofs = append(f.Proofs, p)
		facts[p.Class] = f
	}
	return facts, nil
}

// failuresLooked is among how many of a class's latest runs failures are looked for:
// a log may hold a million that are none, such as imported ones.
const failuresLooked = 1000

// failuresInRow counts for each class that exists the ordinary runs that ended
// badly since its last success, up to service.FailuresCounted.
func (t *tx) failuresInRow(classes []string) (map[string]int, error) {
	var p params
	var rows []struct {
		Class string `db:"id"`
		N     int    `db:"n"`
	}
	q := `
SELECT c.id, (SELECT count(*)
                FROM (SELECT r.id
                        FROM (SELECT l.id, l.outcome, l.verification, l.source
                                FROM run_log AS l
                               WHERE l.class = c.id AND l.ended_at > coalesce(s.ended_at, ` + p.add(at(time.Unix(0, 0))) + `)
                               ORDER BY l.ended_at DESC, l.id DESC
                               LIMIT ` + p.add(failuresLooked) + `) AS r
                       WHERE r.outcome IN ` + list(&p, []lanegate.Outcome{lanegate.Failed, lanegate.TimedOut, lanegate.Lost}) + `
                         AND r.verification = '' AND r.source = 'own'
                       LIMIT ` + p.add(service.FailuresCounted) + `) AS bad) AS n
  FROM job_classes AS c
  LEFT JOIN class_successes AS s ON s.class = c.id
 WHERE c.id IN ` + list(&p, classes)
	if err := t.all(&rows, q, p...); err != nil {
		return nil, fmt.Errorf("count the failures in a row: %w", err)
	}
	failures := make(map[string]int, len(rows))
	for _, r := range rows {
		failures[r.Class] = r.N
	}
	return failures, nil
}
