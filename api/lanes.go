package api

import (
	"fmt"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// widthSetting is "auto" or a whole number.
type widthSetting int

// MarshalJSON implements json.Marshaler.
func (s widthSetting) MarshalJSON() ([]byte, error) {
	if s == lanegate.WidthAuto {
		return []byte(`"auto"`), nil
	}
	return fmt.Appendf(nil, "%d", int(s)), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *widthSetting) UnmarshalJSON(b []byte) error {
	if string(b) == `"auto"` {
		*s = lanegate.WidthAuto
		return nil
	}
	var n int
	if err := json.Unmarshal(b, &n); err != nil || n < 1 || jsontext.Value(b).Kind() != '0' {
		return fmt.Errorf("must be \"auto\" or a whole number of at least 1")
	}
	*s = widthSetting(n)
	return nil
}

// laneRequest is what can be set of a lane.
type laneRequest struct {
	Width           *widthSetting `json:"width,omitempty" swaggertype:"string" example:"auto"`
	AllowOvercommit bool          `json:"allow_overcommit,omitempty"`
	Order           string        `json:"order,omitempty" enums:"fifo,fair"`
	Queue           string        `json:"queue,omitempty"`
	WhenUnavailable string        `json:"when_unavailable,omitempty" enums:"serial,wait"`
}

// laneResponse is a lane with what goes on in it.
type laneResponse struct {
	Name            string             `json:"name" example:"parallel"`
	Width           int                `json:"width" example:"2"`
	WidthSetting    widthSetting       `json:"width_setting" swaggertype:"string" example:"auto"`
	Arithmetic      arithmeticResponse `json:"arithmetic"`
	AllowOvercommit bool               `json:"allow_overcommit"`
	Order           string             `json:"order" enums:"fifo,fair"`
	Queue           string             `json:"queue,omitempty"`
	WhenUnavailable string             `json:"when_unavailable" enums:"serial,wait"`
	Paused          bool               `json:"paused"`
	Available       bool               `json:"available"`
	ManagedBy       string             `json:"managed_by" enums:"api,file"`
	InFlight        int                `json:"in_flight"`
	Running         []runningResponse  `json:"running"`
	Queued          int                `json:"queued"`
	NotDue          int                `json:"not_due"`
	OldestWait      lanegate.Duration  `json:"oldest_wait" swaggertype:"string" example:"3m20s"`
	// EmptyAt is when all that is due in the lane or runs in it is expected to have
	// ended: now when nothing is, null when nobody can say; EmptyReason says so, or why.
	EmptyAt     *expectedResponse `json:"empty_at"`
	EmptyReason string            `json:"empty_reason,omitempty"`
}

// runningResponse is an attempt in flight.
type runningResponse struct {
	Job       string    `json:"job"`
	Class     string    `json:"class"`
	StartedAt time.Time `json:"started_at" format:"date-time"`
}

// arithmeticResponse shows where a width comes from.
type arithmeticResponse struct {
	Width         int           `json:"width" example:"2"`
	Sums          []sumResponse `json:"sums"`
	Sentence      string        `json:"sentence" example:"(15 − 5 − 0) / 5 = 2 by db"`
	Overcommitted bool          `json:"overcommitted"`
}

// sumResponse is floor((capacity − reserve − others) / units) for one resource.
type sumResponse struct {
	Resource string `json:"resource" example:"db"`
	Capacity int    `json:"capacity" example:"15"`
	Reserve  int    `json:"reserve" example:"5"`
	Others   int    `json:"others" example:"0"`
	Units    int    `json:"units" example:"5"`
	Result   int    `json:"result" example:"2"`
}

func newArithmetic(w admission.Width) arithmeticResponse {
	out := arithmeticResponse{Width: w.Auto, Sums: []sumResponse{}, Sentence: w.Sentence, Overcommitted: w.Overcommitted}
	for _, s := range w.Sums {
		out.Sums = append(out.Sums, sumResponse{s.Resource, s.Capacity, s.Reserve, s.Others, s.Units, s.Result})
	}
	return out
}

// newLaneResponse shows a lane to c; the runs of classes that a restricted token
// is not for are counted, but not named.
func newLaneResponse(v service.LaneView, c caller) laneResponse {
	out := laneResponse{
		Name: v.Name, Width: v.Width.InForce, WidthSetting: widthSetting(v.WidthSetting), Arithmetic: newArithmetic(v.Width),
		AllowOvercommit: v.AllowOvercommit, Order: string(v.Order), Queue: v.Queue, WhenUnavailable: string(v.WhenUnavailable),
		Paused: v.Paused, Available: v.Available, ManagedBy: string(v.ManagedBy), InFlight: v.InFlight,
		Running: []runningResponse{}, Queued: v.Queued, NotDue: v.NotDue, OldestWait: lanegate.Duration(v.OldestWait.Round(time.Second)),
		EmptyAt: newExpected(v.Empty), EmptyReason: v.Empty.Why,
	}
	for _, r := range v.Running {
		if c.mayUse(r.Class) == nil {
			out.Running = append(out.Running, runningResponse{r.Job, r.Class, r.StartedAt})
		}
	}
	return out
}

// listLanes lists all lanes.
//
//	@Summary	List lanes
//	@ID			list-lanes
//	@Tags		lanes
//	@Produce	json
//	@Success	200	{object}	page[laneResponse]
//	@Failure	400,401,403,503	{object}	problem
//	@Router		/lanes [get]
//	@Security	bearer
func (a *API) listLanes(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	lanes, err := a.svc.Lanes(r.Context())
	if err != nil {
		return err
	}
	out := page[laneResponse]{Items: []laneResponse{}}
	for _, l := range lanes {
		out.Items = append(out.Items, newLaneResponse(l, callerOf(r.Context())))
	}
	return encode(w, http.StatusOK, out)
}

// getLane shows a lane: its width with the arithmetic, and what runs and waits.
//
//	@Summary	Get a lane
//	@ID			get-lane
//	@Tags		lanes
//	@Produce	json
//	@Param		name	path		string	true	"Lane"
//	@Success	200		{object}	laneResponse
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/lanes/{name} [get]
//	@Security	bearer
func (a *API) getLane(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	return a.showLane(w, r, http.StatusOK)
}

func (a *API) showLane(w http.ResponseWriter, r *http.Request, status int) error {
	v, err := a.svc.Lane(r.Context(), chi.URLParam(r, "name"))
	if err != nil {
		return err
	}
	return encode(w, status, newLaneResponse(v, callerOf(r.Context())))
}

// putLane creates a lane or changes its settings.
//
//	@Summary		Create or change a lane
//	@Description	A width above what the resources allow is refused with the sum, unless allow_overcommit is set. serial can't be changed.
//	@ID				put-lane
//	@Tags			lanes
//	@Accept			json
//	@Produce		json
//	@Param			name	path		string		true	"Lane"
//	@Param			accept	query		string		false	"width: other lanes' widths may go down"
//	@Param			dry_run	query		string		false	"true: judge everything, change nothing"
//	@Param			reason	query		string		false	"For the history"
//	@Param			request	body		laneRequest	true	"Settings"
//	@Success		200		{object}	laneResponse
//	@Success		201		{object}	laneResponse
//	@Failure		400,401,403,409,413,415,422,503	{object}	problem
//	@Router			/lanes/{name} [put]
//	@Security		bearer
func (a *API) putLane(w http.ResponseWriter, r *http.Request) error {
	o, err := changeOptions(r, acceptsWidth)
	if err != nil {
		return err
	}
	req, err := decode[laneRequest](a, w, r, a.o.MaxPayload)
	if err != nil {
		return err
	}
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	l := lanegate.Lane{
		Name: chi.URLParam(r, "name"), AllowOvercommit: req.AllowOvercommit, Order: lanegate.Order(req.Order),
		Queue: req.Queue, WhenUnavailable: lanegate.WhenUnavailable(req.WhenUnavailable),
	}
	if req.Width != nil {
		l.WidthSetting = int(*req.Width)
	}
	if l.Order == "" { // as in the config file
		l.Order = lanegate.OrderFIFO
		if l.Name == lanegate.LaneParallel {
			l.Order = lanegate.OrderFair
		}
	}
	if l.WhenUnavailable == "" {
		l.WhenUnavailable = lanegate.FallbackSerial
	}
	created, err := a.svc.PutLane(r.Context(), l, o)
	if err != nil {
		return err
	}
	if o.DryRun {
		return encodeDryRun(w, o)
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		w.Header().Set("Location", "/lanes/"+l.Name)
	}
	return a.showLane(w, r, status)
}

// deleteLane removes a lane that no class is in.
//
//	@Summary	Delete a lane
//	@ID			delete-lane
//	@Tags		lanes
//	@Param		name	path	string	true	"Lane"
//	@Param		accept	query	string	false	"width: other lanes' widths may go down"
//	@Param		dry_run	query	string	false	"true: judge everything, change nothing"
//	@Param		reason	query	string	false	"For the history"
//	@Success	200	{object}	dryRunResponse
//	@Success	204
//	@Failure	400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router		/lanes/{name} [delete]
//	@Security	bearer
func (a *API) deleteLane(w http.ResponseWriter, r *http.Request) error {
	return a.change(w, r, func(r *http.Request, o service.ChangeOptions) (any, error) {
		return nil, a.svc.DeleteLane(r.Context(), chi.URLParam(r, "name"), o)
	}, acceptsWidth)
}

// pauseLane stops a lane from starting jobs.
//
//	@Summary	Pause a lane
//	@ID			pause-lane
//	@Tags		lanes
//	@Produce	json
//	@Param		name	path		string	true	"Lane"
//	@Param		dry_run	query		string	false	"true: judge everything, change nothing"
//	@Param		reason	query		string	false	"For the history"
//	@Success	200		{object}	laneResponse
//	@Failure	400,401,403,404,413,415,422,503	{object}	problem
//	@Router		/lanes/{name}/pause [post]
//	@Security	bearer
func (a *API) pauseLane(w http.ResponseWriter, r *http.Request) error {
	return a.change(w, r, func(r *http.Request, o service.ChangeOptions) (any, error) {
		if err := a.svc.PauseLane(r.Context(), chi.URLParam(r, "name"), o); err != nil {
			return nil, err
		}
		v, err := a.svc.Lane(r.Context(), chi.URLParam(r, "name"))
		return newLaneResponse(v, callerOf(r.Context())), err
	})
}

// resumeLane lets a paused lane start jobs again.
//
//	@Summary	Resume a lane
//	@ID			resume-lane
//	@Tags		lanes
//	@Produce	json
//	@Param		name	path		string	true	"Lane"
//	@Param		dry_run	query		string	false	"true: judge everything, change nothing"
//	@Param		reason	query		string	false	"For the history"
//	@Success	200		{object}	laneResponse
//	@Failure	400,401,403,404,413,415,422,503	{object}	problem
//	@Router		/lanes/{name}/resume [post]
//	@Security	bearer
func (a *API) resumeLane(w http.ResponseWriter, r *http.Request) error {
	return a.change(w, r, func(r *http.Request, o service.ChangeOptions) (any, error) {
		if err := a.svc.ResumeLane(r.Context(), chi.URLParam(r, "name"), o); err != nil {
			return nil, err
		}
		v, err := a.svc.Lane(r.Context(), chi.URLParam(r, "name"))
		return newLaneResponse(v, callerOf(r.Context())), err
	})
}
