package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

type verificationRow struct {
	ID           string                                `db:"id"`
	State        lanegate.VerificationState            `db:"state"`
	Verdict      lanegate.Verdict                      `db:"verdict"`
	Plan         dbJSON[[]lanegate.Round]              `db:"plan"`
	Round        int                                   `db:"round"`
	Started      bool                                  `db:"round_started"`
	Owner        string                                `db:"owner"`
	Actor        string                                `db:"actor"`
	CreatedAt    dbTime                                `db:"created_at"`
	StartedAt    dbTime                                `db:"started_at"`
	HeldAt       dbTime                                `db:"held_at"`
	EndedAt      dbTime                                `db:"ended_at"`
	Spec         dbJSON[lanegate.VerificationSpec]     `db:"spec"`
	Payloads     dbJSON[payloadsOf]                    `db:"payloads"`
	Fingerprints dbJSON[map[string]string]             `db:"fingerprints"`
	Reasons      dbJSON[[]lanegate.VerificationReason] `db:"reasons"`
	Evidence     dbJSON[lanegate.Evidence]             `db:"evidence"`
}

// payloadsOf are the members' payloads, in the order of the members. Bytes are
// base64 in JSON, where a text would come back without its spaces.
type payloadsOf [][][]byte

const verificationColumns = `id, state, verdict, plan, round, round_started, owner, actor, created_at, started_at, held_at, ended_at,
       spec, payloads, fingerprints, reasons, evidence`

func (r verificationRow) verification() lanegate.Verification {
	v := lanegate.Verification{
		ID: r.ID, State: r.State, Verdict: r.Verdict, Spec: r.Spec.v, Plan: r.Plan.v, Round: r.Round, Started: r.Started,
		Owner: r.Owner, Actor: r.Actor, CreatedAt: r.CreatedAt.t, StartedAt: r.StartedAt.ptr(), HeldAt: r.HeldAt.ptr(),
		EndedAt: r.EndedAt.ptr(), Fingerprints: r.Fingerprints.v, Reasons: r.Reasons.v, Evidence: r.Evidence.v,
	}
	for i := range v.Spec.Members {
		if i >= len(r.Payloads.v) {
			break
		}
		for _, p := range r.Payloads.v[i] {
			v.Spec.Members[i].Payloads = append(v.Spec.Members[i].Payloads, json.RawMessage(p))
		}
	}
	return v
}

// splitPayloads takes the payloads out of a spec, which is not changed; they are
// nil when no member has any.
func splitPayloads(s lanegate.VerificationSpec) (lanegate.VerificationSpec, payloadsOf) {
	all, some := make(payloadsOf, len(s.Members)), false
	members := make([]lanegate.VerificationMember, len(s.Members))
	for i, m := range s.Members {
		for _, p := range m.Payloads {
			all[i], some = append(all[i], blob(p)), true
		}
		m.Payloads = nil
		members[i] = m
	}
	s.Members = members
	if !some {
		return s, nil
	}
	return s, all
}

const (
	sqlInsertVerification = `
INSERT INTO verification_runs (id, state, source, hold_serial, members, plan, actor, created_at, spec, payloads, fingerprints, evidence)
VALUES ($1, 'planned', $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`
	sqlInsertMember = `
INSERT INTO verification_members (verification, class, fingerprint)
VALUES ($1, $2, $3)`
	sqlGetVerification = `
SELECT ` + verificationColumns + `
  FROM verification_runs
 WHERE id = $1`
	// No run is changed by two at a time: not by one who read it before another did.
	sqlGetVerificationLocked = sqlGetVerification + ` {{lock}}`
	sqlListOpenVerifications = `
SELECT ` + verificationColumns + `
  FROM verification_runs
 WHERE ended_at IS NULL
 ORDER BY state <> 'running', created_at, id {{lock}}`
	sqlUpdateVerification = `
UPDATE verification_runs SET state = $1, verdict = $2, round = $3, round_started = $4, owner = $5, started_at = $6, held_at = $7,
       ended_at = $8, reasons = $9, evidence = $10
 WHERE id = $11`
	sqlSaveProof = `
UPDATE verification_members SET verdict = $1, copies = $2, beside = $3, ended_at = CASE WHEN verdict = $1 THEN ended_at ELSE $4 END
 WHERE verification = $5 AND class = $6`
	sqlForgetProofs = `
UPDATE verification_members SET verdict = '', copies = 0, beside = NULL, ended_at = NULL
 WHERE verification = $1 AND verdict <> ''`
)

// insertVerification adds a planned run and its members. A zero CreatedAt means now.
func (t *tx) insertVerification(v lanegate.Verification) error {
	spec, payloads := splitPayloads(v.Spec)
	classes := make([]string, len(spec.Members))
	for i, m := range spec.Members {
		classes[i] = m.Class
	}
	if err := t.one(sqlInsertVerification, nil, v.ID, spec.Source, spec.HoldSerial, dbJSON[[]string]{classes}, planOf(v), text(v.Actor),
		t.orNow(v.CreatedAt), dbJSON[lanegate.VerificationSpec]{spec}, dbJSON[payloadsOf]{payloads},
		fingerprintsOf(v), dbJSON[lanegate.Evidence]{v.Evidence}); err != nil {
		return err
	}
	for _, class := range classes {
		if err := t.one(sqlInsertMember, nil, v.ID, class, v.Fingerprints[class]); err != nil {
			return fmt.Errorf("member %s: %w", class, err)
		}
	}
	return nil
}

func planOf(v lanegate.Verification) dbJSON[[]lanegate.Round] {
	if v.Plan == nil {
		return dbJSON[[]lanegate.Round]{[]lanegate.Round{}}
	}
	return dbJSON[[]lanegate.Round]{v.Plan}
}

func fingerprintsOf(v lanegate.Verification) dbJSON[map[string]string] {
	if v.Fingerprints == nil {
		return dbJSON[map[string]string]{map[string]string{}}
	}
	return dbJSON[map[string]string]{v.Fingerprints}
}

// getVerification reads a run by sqlGetVerification, with or without a lock;
// ErrVerificationNotFound.
func (t *tx) getVerification(q, id string) (lanegate.Verification, error) {
	var row verificationRow
	found, err := t.get(&row, q, id)
	if err == nil && !found {
		err = lanegate.ErrVerificationNotFound
	}
	return row.verification(), err
}

// saveVerification writes what may change of a run, and its proofs. A run that is
// over stays in its state: anything else is ErrVerificationOver.
func (t *tx) saveVerification(v lanegate.Verification) error {
	old, err := t.getVerification(sqlGetVerificationLocked, v.ID)
	if err != nil {
		return err
	}
	if old.State.Final() && v.State != old.State {
		return lanegate.ErrVerificationOver
	}
	ended, given := dbTime{}, at(t.at)
	if v.State.Final() {
		ended = at(t.at)
		for _, known := range []*time.Time{v.EndedAt, old.EndedAt} {
			if known != nil {
				ended = at(*known)
				break
			}
		}
	}
	if !old.State.Final() {
		given = ended
	}
	if err := t.one(sqlUpdateVerification, nil, v.State, v.Verdict, v.Round, v.Started, v.Owner, atPtr(v.StartedAt), atPtr(v.HeldAt),
		ended, dbJSON[[]lanegate.VerificationReason]{v.Reasons}, dbJSON[lanegate.Evidence]{v.Evidence}, v.ID); err != nil {
		return err
	}
	return t.saveProofs(v, given)
}

// saveProofs makes the members' proofs what v says. A verdict that is new is
// given at that time: one that came later is newer than the proofs of other runs
// in between.
func (t *tx) saveProofs(v lanegate.Verification, given dbTime) error {
	proofs := v.Proofs()
	if proofs == nil {
		_, err := t.exec(sqlForgetProofs, v.ID)
		return err
	}
	for _, p := range proofs {
		if err := t.one(sqlSaveProof, nil, p.Verdict, p.Copies, dbJSON[[]string]{p.Beside}, given, v.ID, p.Class); err != nil {
			return fmt.Errorf("proof of %s: %w", p.Class, err)
		}
	}
	return nil
}

// proofs lists what conclusive runs say of some classes, one at least, newest first.
func (t *tx) proofs(classes ...string) ([]lanegate.Proof, error) {
	var p params
	q := `
SELECT verification, class, fingerprint, verdict, copies, beside, ended_at
  FROM verification_members
 WHERE class IN ` + list(&p, classes) + ` AND verdict <> ''
 ORDER BY ended_at DESC, verification DESC`
	var rows []struct {
		Verification string           `db:"verification"`
		Class        string           `db:"class"`
		Fingerprint  string           `db:"fingerprint"`
		Verdict      lanegate.Verdict `db:"verdict"`
		Copies       int              `db:"copies"`
		Beside       dbJSON[[]string] `db:"beside"`
		EndedAt      dbTime           `db:"ended_at"`
	}
	if err := t.all(&rows, q, p...); err != nil {
		return nil, err
	}
	var proofs []lanegate.Proof
	for _, r := range rows {
		proofs = append(proofs, lanegate.Proof{
			Verification: r.Verification, Class: r.Class, Fingerprint: r.Fingerprint, Verdict: r.Verdict,
			Copies: r.Copies, Beside: r.Beside.v, EndedAt: r.EndedAt.t,
		})
	}
	return proofs, nil
}

// InsertVerification implements service.ConfigTx. The run is planned, whatever v
// says of its state.
func (c *configTx) InsertVerification(v lanegate.Verification) error {
	return c.do("insert verification run "+v.ID, func(t *tx) error { return t.insertVerification(v) })
}

// Verification implements service.ConfigTx. Until the change is over nobody else
// writes the run.
func (c *configTx) Verification(id string) (v lanegate.Verification, err error) {
	err = c.do("read verification run "+id, func(t *tx) error {
		v, err = t.getVerification(sqlGetVerificationLocked, id)
		return err
	})
	return v, err
}

// OpenVerifications implements service.ConfigTx, with the same lock as Verification.
func (c *configTx) OpenVerifications() (open []lanegate.Verification, err error) {
	err = c.do("list open verification runs", func(t *tx) error {
		var rows []verificationRow
		if err := t.all(&rows, sqlListOpenVerifications); err != nil {
			return err
		}
		for _, r := range rows {
			open = append(open, r.verification())
		}
		return nil
	})
	return open, err
}

// SaveVerification implements service.ConfigTx. ErrVerificationNotFound;
// ErrVerificationOver when the run is over and v would give it another state.
func (c *configTx) SaveVerification(v lanegate.Verification) error {
	return c.do("save verification run "+v.ID, func(t *tx) error { return t.saveVerification(v) })
}

// Proofs implements service.ConfigTx.
func (c *configTx) Proofs(class string) (proofs []lanegate.Proof, err error) {
	err = c.do("list the proofs of "+class, func(t *tx) error {
		proofs, err = t.proofs(class)
		return err
	})
	return proofs, err
}

// Verification implements service.Store.
func (s *Store) Verification(ctx context.Context, id string) (v lanegate.Verification, err error) {
	err = s.inRead(ctx, "read verification run "+id, func(t *tx) error {
		v, err = t.getVerification(sqlGetVerification, id)
		return err
	})
	return v, err
}

// Proofs implements service.Store.
func (s *Store) Proofs(ctx context.Context, class string) (proofs []lanegate.Proof, err error) {
	err = s.inRead(ctx, "list the proofs of "+class, func(t *tx) error {
		proofs, err = t.proofs(class)
		return err
	})
	return proofs, err
}

// Verifications implements service.Store.
func (s *Store) Verifications(ctx context.Context, f service.VerificationFilter) ([]lanegate.Verification, error) {
	var rows []verificationRow
	err := s.inRead(ctx, "list verification runs", func(t *tx) error {
		q, args := listVerifications(f)
		return t.all(&rows, q, args...)
	})
	if err != nil {
		return nil, err
	}
	runs := make([]lanegate.Verification, len(rows))
	for i, r := range rows {
		runs[i] = r.verification()
	}
	return runs, nil
}

// listVerifications puts the statement for a filter together, from fixed parts.
func listVerifications(f service.VerificationFilter) (string, []any) {
	var p params
	where := []string{"1 = 1"}
	if f.Before != "" {
		where = append(where, "id < "+p.add(f.Before))
	}
	if f.Class != "" {
		where = append(where, "id IN (SELECT m.verification FROM verification_members AS m WHERE m.class = "+p.add(f.Class)+")")
	}
	if len(f.States) > 0 {
		where = append(where, "state IN "+list(&p, f.States))
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultLimit
	}
	return "SELECT " + verificationColumns + "\n  FROM verification_runs\n WHERE " + strings.Join(where, " AND ") +
		"\n ORDER BY id DESC\n LIMIT " + p.add(limit), p
}
