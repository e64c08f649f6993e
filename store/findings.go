package store

import (
	"context"
	"fmt"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

const (
	sqlInsertFinding = `
INSERT INTO findings (job_id, attempt, class, lane, fingerprint, outcome, verification, units, trouble, measured, at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`
	sqlListFindings = `
SELECT id, job_id, attempt, class, lane, fingerprint, outcome, verification, units, trouble, measured, at
  FROM findings
 ORDER BY id
 LIMIT $1`
	sqlDeleteFinding = `
DELETE FROM findings
 WHERE id = $1`
)

// isFinding says whether an ended attempt is evidence of concurrency.
func isFinding(a attemptRow) bool {
	if a.Lane == lanegate.LaneSerial && a.Verification == "" {
		return false // it ran outside of any concurrency that lanegate allows
	}
	if len(a.Trouble.v) > 0 && *a.Outcome != lanegate.Succeeded {
		return true
	}
	for resource, n := range a.Measured.v {
		if n > a.Units.v[resource] {
			return true
		}
	}
	return false
}

// noteFinding keeps the evidence that an ended attempt leaves, if any.
func (t *tx) noteFinding(a attemptRow) error {
	if !isFinding(a) {
		return nil
	}
	if err := t.one(sqlInsertFinding, nil, a.Job, a.Number, a.Class, a.Lane, a.Fingerprint, *a.Outcome, a.Verification, a.Units,
		a.Trouble, a.Measured, at(t.at)); err != nil {
		return fmt.Errorf("note the finding of attempt %d of job %s: %w", a.Number, a.Job, err)
	}
	return nil
}

// Findings implements service.Store.
func (s *Store) Findings(ctx context.Context, limit int) ([]service.Finding, error) {
	if limit <= 0 {
		limit = defaultLimit
	}
	var rows []struct {
		ID           int64                          `db:"id"`
		Job          string                         `db:"job_id"`
		Attempt      int                            `db:"attempt"`
		Class        string                         `db:"class"`
		Lane         string                         `db:"lane"`
		Fingerprint  string                         `db:"fingerprint"`
		Outcome      lanegate.Outcome               `db:"outcome"`
		Verification string                         `db:"verification"`
		Units        dbJSON[lanegate.Units]         `db:"units"`
		Trouble      dbJSON[[]lanegate.PhraseMatch] `db:"trouble"`
		Measured     dbJSON[map[string]int]         `db:"measured"`
		At           dbTime                         `db:"at"`
	}
	err := s.inRead(ctx, "list the findings", func(t *tx) error { return t.all(&rows, sqlListFindings, limit) })
	if err != nil {
		return nil, err
	}
	findings := make([]service.Finding, len(rows))
	for i, r := range rows {
		findings[i] = service.Finding{
			ID: r.ID, Job: r.Job, Attempt: r.Attempt, Class: r.Class, Lane: r.Lane, Fingerprint: r.Fingerprint, Outcome: r.Outcome,
			Verification: r.Verification, Units: r.Units.v, Trouble: r.Trouble.v, Measured: r.Measured.v, At: r.At.t,
		}
	}
	return findings, nil
}

// DropFinding implements service.ConfigTx. One that is gone already is no error.
func (c *configTx) DropFinding(id int64) error {
	return c.do("drop a finding", func(t *tx) error {
		_, err := t.exec(sqlDeleteFinding, id)
		return err
	})
}
