package api

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
	"github.com/lanegate/lanegate/verification"
)

// memberRequest is one class of an experiment.
type memberRequest struct {
	Class string `json:"class" example:"pos-sales"`
	// Copies that run at once, default 2.
	Copies int `json:"copies,omitempty" example:"2"`
	// Payloads are used in turn, verbatim; with source "payloads" only.
	Payloads []jsontext.Value `json:"payloads,omitempty" swaggertype:"array,object"`
}

// verificationSettings are what both forms of a request share.
type verificationSettings struct {
	// Source: "queue" (default) starts jobs together that are due anyway; "payloads" makes some up.
	Source string `json:"source,omitempty" enums:"queue,payloads"`
	// Rounds: how often the plan that covers every pair is repeated; default 1 (queue) or 3 (payloads).
	Rounds   int             `json:"rounds,omitempty"`
	Criteria criteriaRequest `json:"criteria,omitzero"`
	// HoldSerial: false lets the serial line flow on; hold_reason must then say why. Default true.
	HoldSerial *bool             `json:"hold_serial,omitempty"`
	HoldReason string            `json:"hold_reason,omitempty"`
	MaxHold    lanegate.Duration `json:"max_hold,omitzero" swaggertype:"string" example:"15m"`
	// Check judges the data after each round: {"kind": "exec", "command": …} or {"kind": "http", "url": …}.
	Check  *lanegate.Run `json:"check,omitempty"`
	Reason string        `json:"reason,omitempty"`
	// ConfirmSerial: yes, although the class says why it must stay serial.
	ConfirmSerial bool `json:"confirm_serial,omitempty"`
}

// criteriaRequest says what passes; what is left out has its default.
type criteriaRequest struct {
	MaxSlowdown float64           `json:"max_slowdown,omitempty" example:"2"`
	SameResult  bool              `json:"same_result,omitempty"`
	MinOverlap  float64           `json:"min_overlap,omitempty" example:"0.5"`
	Window      lanegate.Duration `json:"window,omitzero" swaggertype:"string" example:"10m"`
}

// verificationRequest asks for an experiment with several classes.
type verificationRequest struct {
	Members []memberRequest `json:"members"`
	verificationSettings
}

// classVerificationRequest asks for an experiment with one class beside others.
type classVerificationRequest struct {
	Copies   int              `json:"copies,omitempty" example:"2"`
	Payloads []jsontext.Value `json:"payloads,omitempty" swaggertype:"array,object"`
	// Alongside names classes of which one copy runs beside.
	Alongside []string `json:"alongside,omitempty" example:"weather"`
	verificationSettings
}

const defaultCopies = 2

func (s verificationSettings) spec(members []memberRequest) lanegate.VerificationSpec {
	spec := lanegate.VerificationSpec{
		Source: lanegate.VerificationSource(s.Source), Rounds: s.Rounds,
		Criteria: lanegate.Criteria{
			MaxSlowdown: s.Criteria.MaxSlowdown, SameResult: s.Criteria.SameResult,
			MinOverlap: s.Criteria.MinOverlap, Window: s.Criteria.Window,
		},
		HoldSerial: s.HoldSerial == nil || *s.HoldSerial, HoldReason: s.HoldReason, MaxHold: s.MaxHold,
		Check: s.Check, Reason: s.Reason,
	}
	for _, m := range members {
		if m.Copies == 0 {
			m.Copies = defaultCopies
		}
		member := lanegate.VerificationMember{Class: m.Class, Copies: m.Copies}
		for _, p := range m.Payloads {
			member.Payloads = append(member.Payloads, json.RawMessage(p))
		}
		spec.Members = append(spec.Members, member)
	}
	return spec
}

// verificationResponse is a verification run with its evidence.
type verificationResponse struct {
	ID       string  `json:"id"`
	State    string  `json:"state" enums:"planned,running,done,aborted"`
	Verdict  *string `json:"verdict" enums:"passed,failed,inconclusive"`
	Sentence string  `json:"sentence"`
	// WaitingOn says why an open run or its next round has not started; only where
	// one run is shown.
	WaitingOn []waitingResponse         `json:"waiting_on,omitempty"`
	Spec      lanegate.VerificationSpec `json:"spec"`
	Plan      []lanegate.Round          `json:"plan"`
	Round     int                       `json:"round"` // rounds that are over
	Owner     string                    `json:"owner,omitempty"`
	Actor     string                    `json:"actor,omitempty"`
	CreatedAt *time.Time                `json:"created_at,omitempty" format:"date-time"`
	StartedAt *time.Time                `json:"started_at,omitempty" format:"date-time"`
	HeldAt    *time.Time                `json:"held_at,omitempty" format:"date-time"`
	EndedAt   *time.Time                `json:"ended_at,omitempty" format:"date-time"`
	// Fingerprints of the members when the run was asked for.
	Fingerprints map[string]string             `json:"fingerprints"`
	Reasons      []lanegate.VerificationReason `json:"reasons"`
	Evidence     lanegate.Evidence             `json:"evidence,omitzero"`
}

func newVerification(v lanegate.Verification) verificationResponse {
	out := verificationResponse{
		ID: v.ID, State: string(v.State), Sentence: verification.Words(v), Spec: v.Spec, Plan: v.Plan, Round: v.Round,
		Owner: v.Owner, Actor: v.Actor, StartedAt: v.StartedAt, HeldAt: v.HeldAt, EndedAt: v.EndedAt,
		Fingerprints: v.Fingerprints, Reasons: v.Reasons, Evidence: v.Evidence,
	}
	if v.Verdict != "" {
		verdict := string(v.Verdict)
		out.Verdict = &verdict
	}
	if !v.CreatedAt.IsZero() {
		out.CreatedAt = &v.CreatedAt
	}
	if out.Reasons == nil {
		out.Reasons = []lanegate.VerificationReason{}
	}
	return out
}

// createVerification starts an experiment.
//
//	@Summary		Ask for a verification run
//	@Description	Runs the members at the same time, on purpose, and records what happened. A plan that can't be carried out is refused with every reason at once.
//	@ID				create-verification-run
//	@Tags			verification
//	@Accept			json
//	@Produce		json
//	@Param			dry_run	query		string				false	"true: show the plan, start nothing"
//	@Param			request	body		verificationRequest	true	"Experiment"
//	@Success		200		{object}	verificationResponse
//	@Success		201		{object}	verificationResponse
//	@Failure		400,401,403,409,413,415,422,503	{object}	problem
//	@Router			/verification-runs [post]
//	@Security		bearer
func (a *API) createVerification(w http.ResponseWriter, r *http.Request) error {
	dry, err := dryRun(r)
	if err != nil {
		return err
	}
	req, err := decode[verificationRequest](a, w, r, a.o.MaxPayload)
	if err != nil {
		return err
	}
	return a.startVerification(w, r, req.verificationSettings, req.Members, dry)
}

// verifyClass is the short form of createVerification.
//
//	@Summary	Ask for a verification run of one class
//	@ID			verify-class
//	@Tags		verification
//	@Accept		json
//	@Produce	json
//	@Param		id		path		string						true	"Class id"
//	@Param		dry_run	query		string						false	"true: show the plan, start nothing"
//	@Param		request	body		classVerificationRequest	true	"Experiment"
//	@Success	200		{object}	verificationResponse
//	@Success	201		{object}	verificationResponse
//	@Failure	400,401,403,409,413,415,422,503	{object}	problem
//	@Router		/job-classes/{id}/verification-runs [post]
//	@Security	bearer
func (a *API) verifyClass(w http.ResponseWriter, r *http.Request) error {
	dry, err := dryRun(r)
	if err != nil {
		return err
	}
	req, err := decode[classVerificationRequest](a, w, r, a.o.MaxPayload)
	if err != nil {
		return err
	}
	members := []memberRequest{{Class: chi.URLParam(r, "id"), Copies: req.Copies, Payloads: req.Payloads}}
	for _, class := range req.Alongside {
		members = append(members, memberRequest{Class: class, Copies: 1})
	}
	return a.startVerification(w, r, req.verificationSettings, members, dry)
}

func dryRun(r *http.Request) (bool, error) {
	p := query(r)
	dry := p.flag("dry_run", "true")
	return dry, p.done()
}

func (a *API) startVerification(w http.ResponseWriter, r *http.Request, s verificationSettings, members []memberRequest, dry bool) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	c := callerOf(r.Context())
	for _, m := range members {
		if err := c.mayUse(m.Class); err != nil {
			return err
		}
	}
	v, err := a.svc.CreateVerification(r.Context(), s.spec(members), service.VerifyOptions{Actor: c.Name, DryRun: dry, ConfirmSerial: s.ConfirmSerial})
	if err != nil {
		return err
	}
	if dry {
		return encode(w, http.StatusOK, newVerification(v))
	}
	w.Header().Set("Location", "/verification-runs/"+v.ID)
	return encode(w, http.StatusCreated, newVerification(v))
}

// listVerifications lists verification runs, newest first, without their evidence.
//
//	@Summary	List verification runs
//	@ID			list-verification-runs
//	@Tags		verification
//	@Produce	json
//	@Param		class	query	string		false	"Runs with this class"
//	@Param		state	query	[]string	false	"planned, running, done, aborted"	collectionFormat(multi)
//	@Param		limit	query	int			false	"1 to 500, default 50"
//	@Param		cursor	query	string		false	"next_cursor of the page before"
//	@Success	200	{object}	page[verificationResponse]
//	@Failure	400,401,403,503	{object}	problem
//	@Router		/verification-runs [get]
//	@Security	bearer
func (a *API) listVerifications(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	p := query(r)
	f := service.VerificationFilter{Class: p.str("class"), Limit: p.limit(), Before: openCursor(p, lanegate.ValidID)}
	for _, s := range p.all("state") {
		state := lanegate.VerificationState(s)
		switch state {
		case lanegate.VerificationPlanned, lanegate.VerificationRunning, lanegate.VerificationDone, lanegate.VerificationAborted:
			f.States = append(f.States, state)
		default:
			p.bad("state", "must be planned, running, done or aborted")
		}
	}
	if err := p.done(); err != nil {
		return err
	}
	runs, next, err := a.svc.Verifications(r.Context(), f)
	if err != nil {
		return err
	}
	out := page[verificationResponse]{Items: []verificationResponse{}}
	for _, v := range runs {
		if a.maySee(r, v) != nil {
			continue
		}
		item := newVerification(v)
		item.Evidence = lanegate.Evidence{} // the sentence was made from it
		out.Items = append(out.Items, item)
	}
	if next != "" {
		out.NextCursor = sealCursor(next)
	}
	return encode(w, http.StatusOK, out)
}

// maySee keeps a restricted token away from runs with other classes.
func (a *API) maySee(r *http.Request, v lanegate.Verification) error {
	for _, m := range v.Spec.Members {
		if callerOf(r.Context()).mayUse(m.Class) != nil {
			return lanegate.ErrVerificationNotFound
		}
	}
	return nil
}

// getVerification shows a run with its evidence.
//
//	@Summary	Get a verification run
//	@ID			get-verification-run
//	@Tags		verification
//	@Produce	json
//	@Param		id	path		string	true	"Verification run"
//	@Success	200	{object}	verificationResponse
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/verification-runs/{id} [get]
//	@Security	bearer
func (a *API) getVerification(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	v, err := a.verification(r)
	if err != nil {
		return err
	}
	on, words, err := a.svc.VerificationWait(r.Context(), v)
	if err != nil {
		return err
	}
	out := newVerification(v)
	for _, w := range on {
		out.WaitingOn = append(out.WaitingOn, waitingResponse{Reason: w.Reason, Jobs: w.Jobs})
	}
	if words != "" {
		out.Sentence += " It waits: " + words + "."
	}
	return encode(w, http.StatusOK, out)
}

func (a *API) verification(r *http.Request) (lanegate.Verification, error) {
	id := chi.URLParam(r, "id")
	if !lanegate.ValidID(id) {
		return lanegate.Verification{}, lanegate.ErrVerificationNotFound.With("%q is not the id of a verification run; GET /verification-runs lists them.", id)
	}
	v, err := a.svc.Verification(r.Context(), id)
	if err != nil {
		return v, err
	}
	return v, a.maySee(r, v)
}

// abortVerification ends a run. Made-up runs are stopped; jobs of the queue run on.
//
//	@Summary	Abort a verification run
//	@ID			abort-verification-run
//	@Tags		verification
//	@Produce	json
//	@Param		id		path		string	true	"Verification run"
//	@Param		reason	query		string	false	"For the history"
//	@Success	200		{object}	verificationResponse
//	@Failure	400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router		/verification-runs/{id}/abort [post]
//	@Security	bearer
func (a *API) abortVerification(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	p := query(r)
	o := service.ChangeOptions{Actor: callerOf(r.Context()).Name, Reason: p.str("reason")}
	if len(o.Reason) > 1000 {
		p.bad("reason", "must be at most 1000 bytes")
	}
	if err := p.done(); err != nil {
		return err
	}
	if err := a.noBody(w, r); err != nil {
		return err
	}
	v, err := a.verification(r)
	if err != nil {
		return err
	}
	if v, err = a.svc.AbortVerification(r.Context(), v.ID, o); err != nil {
		return err
	}
	return encode(w, http.StatusOK, newVerification(v))
}

// proofResponse is what one conclusive run says of a class.
type proofResponse struct {
	VerificationRun string    `json:"verification_run"`
	Fingerprint     string    `json:"fingerprint"`
	Verdict         string    `json:"verdict" enums:"passed,failed"`
	Copies          int       `json:"copies"`
	Beside          []string  `json:"beside"`
	EndedAt         time.Time `json:"ended_at" format:"date-time"`
}

// proofsResponse sums up what is proven of a class as it is now, and lists every
// conclusive run, newest first.
type proofsResponse struct {
	Class       string          `json:"class"`
	Fingerprint string          `json:"fingerprint"`
	Copies      int             `json:"copies"`
	Beside      []string        `json:"beside"`
	Items       []proofResponse `json:"items"`
}

// classProofs lists what verification runs said of a class.
//
//	@Summary	A job class's proofs
//	@ID			class-proofs
//	@Tags		verification
//	@Produce	json
//	@Param		id	path		string	true	"Class id"
//	@Success	200	{object}	proofsResponse
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/job-classes/{id}/proofs [get]
//	@Security	bearer
func (a *API) classProofs(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	c, err := a.svc.Class(r.Context(), chi.URLParam(r, "id"))
	if err != nil {
		return err
	}
	proofs, err := a.svc.Proofs(r.Context(), c.ID)
	if err != nil {
		return err
	}
	st, err := a.svc.Standing(r.Context(), c.ID)
	if err != nil {
		return err
	}
	out := proofsResponse{Class: c.ID, Fingerprint: c.Fingerprint, Copies: st.Copies, Beside: orEmpty(st.Beside), Items: []proofResponse{}}
	for _, p := range proofs {
		out.Items = append(out.Items, proofResponse{
			VerificationRun: p.Verification, Fingerprint: p.Fingerprint, Verdict: string(p.Verdict),
			Copies: p.Copies, Beside: orEmpty(p.Beside), EndedAt: p.EndedAt,
		})
	}
	return encode(w, http.StatusOK, out)
}

func orEmpty[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}
