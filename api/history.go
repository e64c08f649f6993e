package api

import (
	"bytes"
	"net/http"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// historyResponse is one entry of a class's history.
type historyResponse struct {
	ID       int64          `json:"id"`
	At       time.Time      `json:"at" format:"date-time"`
	Event    string         `json:"event" example:"demoted"`
	Actor    string         `json:"actor" example:"cron"`
	Reason   string         `json:"reason,omitempty"`
	Evidence map[string]any `json:"evidence,omitempty"`
}

// classHistory lists who changed what, when and why, newest first.
//
//	@Summary	A job class's history
//	@ID			class-history
//	@Tags		job classes
//	@Produce	json
//	@Param		id		path	string	true	"Class id"
//	@Param		limit	query	int		false	"1 to 500, default 50"
//	@Param		cursor	query	string	false	"next_cursor of the page before"
//	@Success	200	{object}	page[historyResponse]
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/job-classes/{id}/history [get]
//	@Security	bearer
func (a *API) classHistory(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	p := query(r)
	limit := p.limit()
	var before int64
	openCursor(p, func(s string) (ok bool) {
		var err error
		before, err = strconv.ParseInt(s, 10, 64)
		return err == nil && before > 0
	})
	if err := p.done(); err != nil {
		return err
	}
	events, err := a.svc.History(r.Context(), chi.URLParam(r, "id"), before, limit+1)
	if err != nil {
		return err
	}
	out := page[historyResponse]{Items: []historyResponse{}}
	for i, e := range events {
		if i == limit {
			out.NextCursor = sealCursor(strconv.FormatInt(events[i-1].ID, 10))
			break
		}
		out.Items = append(out.Items, historyResponse{ID: e.ID, At: e.At, Event: e.Event, Actor: e.Actor, Reason: e.Reason, Evidence: e.Evidence})
	}
	return encode(w, http.StatusOK, out)
}

// quantilesResponse describes a set of durations.
type quantilesResponse struct {
	N   int               `json:"n"`
	P50 lanegate.Duration `json:"p50" swaggertype:"string" example:"12s"`
	P90 lanegate.Duration `json:"p90" swaggertype:"string" example:"20s"`
	P99 lanegate.Duration `json:"p99" swaggertype:"string" example:"40s"`
	Max lanegate.Duration `json:"max" swaggertype:"string" example:"1m"`
}

func newQuantiles(q service.Quantiles) quantilesResponse {
	return quantilesResponse{q.N, lanegate.Duration(q.P50), lanegate.Duration(q.P90), lanegate.Duration(q.P99), lanegate.Duration(q.Max)}
}

// statsResponse describes a class's runs within a window.
type statsResponse struct {
	Class            string            `json:"class"`
	From             time.Time         `json:"from" format:"date-time"`
	To               time.Time         `json:"to" format:"date-time"`
	Runs             int               `json:"runs"`
	Outcomes         map[string]int    `json:"outcomes"`
	Waits            quantilesResponse `json:"waits"`
	Durations        quantilesResponse `json:"durations"`
	FailingDurations quantilesResponse `json:"failing_durations"`
	LastSuccess      *time.Time        `json:"last_success,omitempty" format:"date-time"`
}

// Window of statistics.
const (
	defaultWindow = 7 * 24 * time.Hour
	maxWindow     = 366 * 24 * time.Hour
)

// classStats describes a class's waits and durations.
//
//	@Summary	A job class's statistics
//	@ID			class-stats
//	@Tags		job classes
//	@Produce	json
//	@Param		id		path		string	true	"Class id"
//	@Param		window	query		string	false	"Go duration or days (7d), default 7d"
//	@Success	200		{object}	statsResponse
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/job-classes/{id}/stats [get]
//	@Security	bearer
func (a *API) classStats(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	p := query(r)
	window := p.window("window")
	if err := p.done(); err != nil {
		return err
	}
	st, err := a.svc.Stats(r.Context(), chi.URLParam(r, "id"), window)
	if err != nil {
		return err
	}
	out := statsResponse{
		Class: st.Class, From: st.From, To: st.To, Runs: st.Runs, Outcomes: map[string]int{}, Waits: newQuantiles(st.Waits),
		Durations: newQuantiles(st.Durations), FailingDurations: newQuantiles(st.Failing), LastSuccess: st.LastSuccess,
	}
	for o, n := range st.Outcomes {
		out.Outcomes[string(o)] = n
	}
	return encode(w, http.StatusOK, out)
}

// window reads a span that people also give in days: "7d".
func (p *params) window(name string) time.Duration {
	v := p.str(name)
	if days, ok := bytes.CutSuffix([]byte(v), []byte("d")); ok {
		n, ok := wholeNumber(string(days))
		if !ok || n < 1 || n > 366 {
			p.bad(name, "must be 1d to 366d, or a Go duration such as 36h")
		}
		return time.Duration(n) * 24 * time.Hour
	}
	d := p.duration(name, defaultWindow, maxWindow)
	if d < lanegate.MinDuration {
		p.bad(name, "must be at least %s", lanegate.FormatDuration(lanegate.MinDuration))
	}
	return d
}
