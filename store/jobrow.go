package store

import "github.com/lanegate/lanegate"

// jobRow is the narrow row of a job. The columns of its Route are those of its last start.
type jobRow struct {
	ID              string         `db:"id"`
	Class           string         `db:"class"`
	Client          string         `db:"client"`
	Key             string         `db:"idempotency_key"`
	LogicalDate     string         `db:"logical_date"`
	RunAt           dbTime         `db:"run_at"`
	State           lanegate.State `db:"state"`
	Reason          string         `db:"reason"`
	SubmittedAt     dbTime         `db:"submitted_at"`
	ReadyAt         dbTime         `db:"ready_at"`
	Due             bool           `db:"due"`
	PlaceAt         dbTime         `db:"place_at"`
	PlaceID         string         `db:"place_id"`
	FirstAt         dbTime         `db:"first_at"`
	Attempts        int            `db:"attempts"`
	Failures        int            `db:"failures"`
	ExtraAttempts   int            `db:"extra_attempts"`
	Losses          int            `db:"losses"`
	Deferrals       int            `db:"deferrals"`
	Interruptions   int            `db:"interruptions"`
	BlockedBy       string         `db:"blocked_by"`
	CancelRequested bool           `db:"cancel_requested"`
	Verification    string         `db:"verification"`
	StartedAt       dbTime         `db:"started_at"`
	FinishedAt      dbTime         `db:"finished_at"`
	RouteLane       string         `db:"route_lane"`
	RouteReason     string         `db:"route_reason"`
	RouteWanted     string         `db:"route_wanted"`
	Worker          string         `db:"worker"`
}

const jobColumns = `id, class, client, idempotency_key, logical_date, run_at, state, reason, submitted_at, ready_at, due,
       place_at, place_id, first_at, attempts, failures, extra_attempts, losses, deferrals, interruptions,
       blocked_by, cancel_requested, verification, started_at, finished_at, route_lane, route_reason, route_wanted, worker`

func (r jobRow) job() lanegate.Job {
	j := lanegate.Job{
		ID: r.ID, Class: r.Class, Client: r.Client, Key: r.Key, LogicalDate: r.LogicalDate,
		RunAt: r.RunAt.ptr(), State: r.State, Reason: r.Reason,
		SubmittedAt: r.SubmittedAt.t, ReadyAt: r.ReadyAt.t,
		PlaceAt: r.PlaceAt.t, PlaceID: r.PlaceID, FirstAt: r.FirstAt.ptr(),
		Attempts: r.Attempts, Failures: r.Failures, ExtraAttempts: r.ExtraAttempts,
		Losses: r.Losses, Deferrals: r.Deferrals, Interruptions: r.Interruptions,
		BlockedBy: r.BlockedBy, CancelRequested: r.CancelRequested, Verification: r.Verification, Worker: r.Worker,
		StartedAt: r.StartedAt.ptr(), FinishedAt: r.FinishedAt.ptr(),
	}
	if r.RouteLane != "" {
		j.Route = &lanegate.Route{Lane: r.RouteLane, Reason: r.RouteReason, Wanted: r.RouteWanted}
	}
	return j
}

// move changes the state by the table of legal moves.
func (r *jobRow) move(e lanegate.Event) error {
	next, ok := lanegate.NextState(r.State, e)
	if !ok {
		return &faultError{kind: faultBug, text: "job " + r.ID + ": no move " + string(e) + " from " + string(r.State)}
	}
	r.State = next
	return nil
}

const (
	sqlGetJob = `
SELECT ` + jobColumns + `
  FROM jobs
 WHERE id = $1`
	sqlGetJobLocked = sqlGetJob + ` {{lock}}`

	sqlUpdateJob = `
UPDATE jobs SET state = $1, reason = $2, ready_at = $3, due = $4, place_at = $5, place_id = $6, first_at = $7,
       failures = $8, extra_attempts = $9, losses = $10, deferrals = $11, interruptions = $12,
       blocked_by = $13, cancel_requested = $14, finished_at = $15, ring_at = $16, rings = 0
 WHERE id = $17 AND state = $18 AND attempts = $19`
)

// lockJob reads a job under its lock; ErrJobNotFound.
func (t *tx) lockJob(id string) (jobRow, error) {
	var row jobRow
	found, err := t.get(&row, sqlGetJobLocked, id)
	if err == nil && !found {
		err = lanegate.ErrJobNotFound
	}
	return row, err
}

// updateJob writes what may change after the submission and outside an
// admission, if the job still is in state from and has had no attempt since.
func (t *tx) updateJob(r jobRow, from lanegate.State) error {
	return t.one(sqlUpdateJob, nil, t.updateArgs(r, from)...)
}

// updateArgs are the arguments of sqlUpdateJob.
func (t *tx) updateArgs(r jobRow, from lanegate.State) []any {
	return []any{r.State, text(r.Reason), r.ReadyAt, r.Due, r.PlaceAt, r.PlaceID, r.FirstAt,
		r.Failures, r.ExtraAttempts, r.Losses, r.Deferrals, r.Interruptions,
		r.BlockedBy, r.CancelRequested, r.FinishedAt, t.ringAt(r), r.ID, from, r.Attempts}
}

// requeue puts the job back in its line at its place; it stands aside until ready.
func (t *tx) requeue(r *jobRow, ready dbTime) {
	r.ReadyAt, r.FinishedAt = ready, dbTime{}
	r.Due = !ready.t.After(t.at)
}
