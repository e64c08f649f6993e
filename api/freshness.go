package api

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/runlog"
	"github.com/lanegate/lanegate/service"
)

// expectedResponse is when something is expected: half of the played-out lines had
// it by p50, nine of ten by p90. It is null when nobody can say.
type expectedResponse struct {
	P50 time.Time `json:"p50" format:"date-time"`
	P90 time.Time `json:"p90" format:"date-time"`
}

// MarshalJSON implements json.Marshaler.
func (e *expectedResponse) MarshalJSON() ([]byte, error) {
	if e.P50.IsZero() {
		return []byte("null"), nil
	}
	type plain expectedResponse
	return json.Marshal((*plain)(e))
}

func newExpected(t runlog.Foretold) *expectedResponse {
	return &expectedResponse{P50: t.P50.UTC().Truncate(time.Millisecond), P90: t.P90.UTC().Truncate(time.Millisecond)}
}

// freshnessResponse is the answer of GET /freshness.
type freshnessResponse struct {
	Now time.Time `json:"now" format:"date-time"`
	// ForetoldAt is when the expectations were made, left out before the first.
	ForetoldAt *time.Time      `json:"foretold_at,omitempty" format:"date-time"`
	Items      []freshResponse `json:"items"`
}

// freshResponse is a class with fresh_within.
type freshResponse struct {
	Class       string            `json:"class" example:"pos-sales"`
	Status      string            `json:"status" enums:"late,expected_late,at_risk,fresh"`
	Sentence    string            `json:"sentence"`
	Lane        string            `json:"lane" example:"serial"`
	FreshWithin lanegate.Duration `json:"fresh_within" swaggertype:"string" example:"26h"`
	LastSuccess *time.Time        `json:"last_success,omitempty" format:"date-time"`
	// CountsFrom is what fresh_within counts from: the last success; while no run has
	// ended yet, when the first job was submitted (or due); otherwise, when the class was
	// registered or last changed.
	CountsFrom string             `json:"counts_from" enums:"last_success,first_submission,registration"`
	Since      time.Time          `json:"since" format:"date-time"`
	DueBy      time.Time          `json:"due_by" format:"date-time"`
	Running    []string           `json:"running"`
	Queued     []string           `json:"queued"`
	Finish     *expectedResponse  `json:"expected_finish"`
	Reason     string             `json:"expected_finish_reason,omitempty"`
	InTheWay   []inTheWayResponse `json:"in_the_way"`
	Help       []helpResponse     `json:"help"`
}

// inTheWayResponse is a class whose jobs go first.
type inTheWayResponse struct {
	Class   string     `json:"class" example:"heavy"`
	Running []string   `json:"running"`
	Since   *time.Time `json:"running_since,omitempty" format:"date-time"`
	// Queued jobs of it stand before the class's first in its lane.
	Queued int `json:"queued"`
}

// helpResponse is something that a person can do.
type helpResponse struct {
	Action   string `json:"action" enums:"submit,resume,run_next,promote,verify,cancel"`
	Sentence string `json:"sentence"`
	Command  string `json:"command,omitempty" example:"lanegate promote pos-sales"`
}

// getFreshness lists the classes that are late, or will be.
//
//	@Summary		List classes that are late or will be
//	@Description	Of the classes with fresh_within: those whose last success is too old, or whose next one is expected too late, with who is in the way and what would help. Expectations are made in the background, every few seconds while somebody looks.
//	@ID				get-freshness
//	@Tags			advice
//	@Produce		json
//	@Param			all	query		string	false	"true: list the fresh ones, too"
//	@Success		200	{object}	freshnessResponse
//	@Failure		400,401,403,503	{object}	problem
//	@Router			/freshness [get]
//	@Security		bearer
func (a *API) getFreshness(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	p := query(r)
	all := p.flag("all", "true")
	if err := p.done(); err != nil {
		return err
	}
	view, err := a.svc.Freshness(r.Context())
	if err != nil {
		return err
	}
	out := freshnessResponse{Now: view.Now, Items: []freshResponse{}}
	if !view.ForetoldAt.IsZero() {
		out.ForetoldAt = &view.ForetoldAt
	}
	for _, f := range view.Classes {
		if all || f.Status != service.Fresh {
			out.Items = append(out.Items, newFresh(f))
		}
	}
	return encode(w, http.StatusOK, out)
}

func newFresh(f service.Freshness) freshResponse {
	out := freshResponse{
		Class: f.Class, Status: string(f.Status), Sentence: f.Sentence, Lane: f.Lane, FreshWithin: lanegate.Duration(f.FreshWithin),
		LastSuccess: f.LastSuccess, CountsFrom: string(f.From), Since: f.Since, DueBy: f.DueBy, Running: f.Running, Queued: f.Queued, Finish: newExpected(f.Finish), Reason: f.Finish.Why,
		InTheWay: []inTheWayResponse{}, Help: []helpResponse{},
	}
	for _, w := range f.InTheWay {
		item := inTheWayResponse{Class: w.Class, Running: w.Running, Queued: w.Queued}
		if !w.Since.IsZero() {
			item.Since = &w.Since
		}
		out.InTheWay = append(out.InTheWay, item)
	}
	for _, h := range f.Help {
		out.Help = append(out.Help, helpResponse{h.Action, h.Sentence, h.Command})
	}
	return out
}
