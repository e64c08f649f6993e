package api

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// jobResponse is a job as clients see it.
type jobResponse struct {
	ID             string     `json:"id" example:"0193779e-66ac-7c2b-8f4e-3a5f0a1b2c3d"`
	Class          string     `json:"class" example:"pos-sales"`
	State          string     `json:"state" enums:"queued,running,succeeded,failed,cancelled,skipped"`
	Reason         string     `json:"reason,omitempty"`
	Client         string     `json:"client" example:"cron"`
	IdempotencyKey string     `json:"idempotency_key,omitempty"`
	LogicalDate    string     `json:"logical_date,omitempty"`
	Worker         string     `json:"worker,omitempty"`
	SubmittedAt    time.Time  `json:"submitted_at" format:"date-time"`
	RunAt          *time.Time `json:"run_at,omitempty" format:"date-time"`
	ReadyAt        time.Time  `json:"ready_at" format:"date-time"`
	StartedAt      *time.Time `json:"started_at,omitempty" format:"date-time"`
	FinishedAt     *time.Time `json:"finished_at,omitempty" format:"date-time"`
	// Verification is the verification run that made the job up.
	Verification string            `json:"verification,omitempty"`
	Attempts     int               `json:"attempts"`
	Failures     int               `json:"failures"`
	Place        placeResponse     `json:"place,omitzero"`
	Route        *lanegate.Route   `json:"route,omitempty"`
	WaitingOn    []waitingResponse `json:"waiting_on,omitzero"`
	Ahead        *aheadResponse    `json:"ahead,omitempty"`
	// ExpectedStart of a queued job is null when nobody can say; ExpectedReason then
	// says why. It is left out of the answer to a submission.
	ExpectedStart  *expectedResponse `json:"expected_start,omitzero"`
	ExpectedReason string            `json:"expected_start_reason,omitempty"`
	BlockedBy      string            `json:"blocked_by,omitempty"`
	CancelRequest  bool              `json:"cancel_requested,omitzero"`
	Payload        jsontext.Value    `json:"payload,omitzero" swaggertype:"object"`
	Result         jsontext.Value    `json:"result,omitzero" swaggertype:"object"`
	Links          jobLinks          `json:"links" swaggertype:"object,string"`
}

// placeResponse is a job's position in its class's line.
type placeResponse struct {
	At time.Time `json:"at" format:"date-time"`
	ID string    `json:"id"`
	// First is when a person moved the job before all others.
	First *time.Time `json:"first_at,omitempty" format:"date-time"`
}

// waitingResponse is one reason for a wait and the jobs that hold what is needed.
type waitingResponse struct {
	Reason string     `json:"reason" example:"resource:db"`
	Jobs   []string   `json:"jobs"`
	Until  *time.Time `json:"until,omitempty" format:"date-time"`
}

// aheadResponse counts the jobs that stand before this one in its lane, and names
// the first 20.
type aheadResponse struct {
	// Count goes up to 2000. AtLeast is true when more stand there, and is left out
	// otherwise: the count is exact then. What waits in the whole lane is in GET /lanes.
	Count   int      `json:"count" maximum:"2000"`
	AtLeast bool     `json:"at_least,omitzero"`
	First   []string `json:"first"`
}

func newJobResponse(v service.JobView) jobResponse {
	j := v.Job
	r := jobResponse{
		ID: j.ID, Class: j.Class, State: string(j.State), Reason: j.Reason, Client: j.Client,
		IdempotencyKey: j.Key, LogicalDate: j.LogicalDate, Worker: j.Worker, SubmittedAt: j.SubmittedAt, RunAt: j.RunAt, ReadyAt: j.ReadyAt,
		StartedAt: j.StartedAt, FinishedAt: j.FinishedAt, Attempts: j.Attempts, Failures: j.Failures, Route: j.Route,
		Verification: j.Verification, BlockedBy: j.BlockedBy, CancelRequest: j.CancelRequested,
		Payload: jsontext.Value(v.Payload), Result: jsontext.Value(v.Result),
		Links: jobLinks(j.ID),
	}
	if j.State != lanegate.StateQueued {
		return r
	}
	r.Place = placeResponse{At: j.PlaceAt, ID: j.PlaceID, First: j.FirstAt}
	r.Route = nil // a queued job has no lane of its own; where it would start now is in Waiting
	if w := v.Waiting; w != nil {
		if w.Route.Lane != "" {
			r.Route = &w.Route
		}
		r.WaitingOn = []waitingResponse{}
		for _, on := range w.On {
			r.WaitingOn = append(r.WaitingOn, waitingResponse{Reason: on.Reason, Jobs: on.Jobs, Until: on.Until})
		}
		r.Ahead = &aheadResponse{Count: w.Ahead.Count, AtLeast: w.Ahead.AtLeast, First: w.Ahead.First}
		r.ExpectedStart, r.ExpectedReason = newExpected(w.Expected), w.Expected.Why
	}
	return r
}
