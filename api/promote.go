package api

import (
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// promoteRequest asks to move a class out of serial.
type promoteRequest struct {
	// VerificationRun is the proof; by default the class's latest that passed.
	VerificationRun string `json:"verification_run,omitempty"`
	Lane            string `json:"lane,omitempty" example:"parallel"`
	// MaxInFlight is by default, and at most, the proven number of copies.
	MaxInFlight int    `json:"max_in_flight,omitempty" example:"2"`
	Reason      string `json:"reason,omitempty"`
	// Also names further classes to be promoted in the same way, all or none.
	Also []string `json:"also,omitempty"`
}

// demoteRequest asks to move a class back to serial.
type demoteRequest struct {
	Reason string `json:"reason,omitempty"`
}

// promotionResponse shows the classes as they are now, or would be, and what follows.
type promotionResponse struct {
	Classes []classDocument `json:"classes"`
	// Changed is false when the classes were there already.
	Changed      bool                 `json:"changed"`
	Consequences consequencesResponse `json:"consequences"`
}

func newPromotion(p service.Promotion) promotionResponse {
	out := promotionResponse{Classes: []classDocument{}, Changed: p.Changed, Consequences: newConsequences(p.Consequences)}
	for _, c := range p.Classes {
		out.Classes = append(out.Classes, newClassDocument(c))
	}
	return out
}

// promoteClass moves a class to a lane on the ground of a verification run.
//
//	@Summary		Promote a job class
//	@Description	Needs a passed verification run of the class as it is now. The refusal lists every unmet condition.
//	@ID				promote-class
//	@Tags			verification
//	@Accept			json
//	@Produce		json
//	@Param			id		path		string			true	"Class id"
//	@Param			accept	query		string			false	"width: lanes' widths may go down"
//	@Param			dry_run	query		string			false	"true: judge everything, change nothing"
//	@Param			reason	query		string			false	"For the history; or in the body"
//	@Param			request	body		promoteRequest	true	"Promotion"
//	@Success		200		{object}	promotionResponse
//	@Failure		400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router			/job-classes/{id}/promote [patch]
//	@Security		bearer
func (a *API) promoteClass(w http.ResponseWriter, r *http.Request) error {
	o, err := changeOptions(r, acceptsWidth)
	if err != nil {
		return err
	}
	req, err := decode[promoteRequest](a, w, r, a.o.MaxPayload)
	if err != nil {
		return err
	}
	if req.MaxInFlight < 0 {
		return fieldProblem("invalid_fields", "/max_in_flight", "must be a whole number of at least 1")
	}
	if o.Reason, err = oneReason(o.Reason, req.Reason); err != nil {
		return err
	}
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	for _, class := range req.Also {
		if err := callerOf(r.Context()).mayUse(class); err != nil {
			return err
		}
	}
	p, err := a.svc.Promote(r.Context(), append([]string{chi.URLParam(r, "id")}, req.Also...), service.PromoteOptions{
		ChangeOptions: o, Verification: req.VerificationRun, Lane: req.Lane, MaxInFlight: req.MaxInFlight,
	})
	if err != nil {
		return err
	}
	return encode(w, http.StatusOK, newPromotion(p))
}

// promoteClassPost is promoteClass for clients that can't send PATCH.
//
//	@Summary	Promote a job class
//	@ID			promote-class-post
//	@Tags		verification
//	@Accept		json
//	@Produce	json
//	@Param		id		path		string			true	"Class id"
//	@Param		accept	query		string			false	"width: lanes' widths may go down"
//	@Param		dry_run	query		string			false	"true: judge everything, change nothing"
//	@Param		reason	query		string			false	"For the history; or in the body"
//	@Param		request	body		promoteRequest	true	"Promotion"
//	@Success	200		{object}	promotionResponse
//	@Failure	400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router		/job-classes/{id}/promote [post]
//	@Security	bearer
func (a *API) promoteClassPost(w http.ResponseWriter, r *http.Request) error {
	return a.promoteClass(w, r)
}

// demoteClass moves a class back to serial; it always works. Runs that are under
// way end where they are.
//
//	@Summary	Demote a job class
//	@ID			demote-class
//	@Tags		verification
//	@Accept		json
//	@Produce	json
//	@Param		id		path		string			true	"Class id"
//	@Param		dry_run	query		string			false	"true: show what follows, change nothing"
//	@Param		reason	query		string			false	"For the history; or in the body"
//	@Param		request	body		demoteRequest	false	"Demotion"
//	@Success	200		{object}	promotionResponse
//	@Failure	400,401,403,404,413,415,422,503	{object}	problem
//	@Router		/job-classes/{id}/demote [patch]
//	@Security	bearer
func (a *API) demoteClass(w http.ResponseWriter, r *http.Request) error {
	o, err := changeOptions(r)
	if err != nil {
		return err
	}
	if r.ContentLength != 0 {
		req, err := decode[demoteRequest](a, w, r, a.o.MaxPayload)
		if err != nil {
			return err
		}
		if o.Reason, err = oneReason(o.Reason, req.Reason); err != nil {
			return err
		}
	}
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	p, err := a.svc.Demote(r.Context(), chi.URLParam(r, "id"), o)
	if err != nil {
		return err
	}
	return encode(w, http.StatusOK, newPromotion(p))
}

// demoteClassPost is demoteClass for clients that can't send PATCH.
//
//	@Summary	Demote a job class
//	@ID			demote-class-post
//	@Tags		verification
//	@Accept		json
//	@Produce	json
//	@Param		id		path		string			true	"Class id"
//	@Param		dry_run	query		string			false	"true: show what follows, change nothing"
//	@Param		reason	query		string			false	"For the history; or in the body"
//	@Param		request	body		demoteRequest	false	"Demotion"
//	@Success	200		{object}	promotionResponse
//	@Failure	400,401,403,404,413,415,422,503	{object}	problem
//	@Router		/job-classes/{id}/demote [post]
//	@Security	bearer
func (a *API) demoteClassPost(w http.ResponseWriter, r *http.Request) error {
	return a.demoteClass(w, r)
}

// oneReason takes the reason from the query or the body, not two different ones.
func oneReason(fromQuery, fromBody string) (string, error) {
	switch {
	case len(fromBody) > 1000:
		return "", fieldProblem("invalid_fields", "/reason", "must be at most 1000 bytes")
	case fromQuery != "" && fromBody != "" && fromQuery != fromBody:
		return "", fieldProblem("invalid_fields", "/reason", "differs from ?reason=; give one")
	case fromBody != "":
		return fromBody, nil
	}
	return fromQuery, nil
}

// standingResponse says why a class is in the lane it is in.
type standingResponse struct {
	Because  string         `json:"because,omitempty" example:"promoted"`
	At       *time.Time     `json:"at,omitempty" format:"date-time"`
	Actor    string         `json:"actor,omitempty"`
	Reason   string         `json:"reason,omitempty"`
	Evidence map[string]any `json:"evidence,omitempty"`
	// ProvenCopies and ProvenBeside are what proofs of the present fingerprint say;
	// 0 without any.
	ProvenCopies   int      `json:"proven_copies"`
	ProvenBeside   []string `json:"proven_beside"`
	UnprovenBeside []string `json:"unproven_beside"`
	// LatestRun is the latest conclusive verification run of the present fingerprint.
	LatestRun     string   `json:"latest_verification_run,omitempty"`
	LatestVerdict string   `json:"latest_verdict,omitempty" enums:"passed,failed"`
	Warnings      []string `json:"warnings"`
}

func newStanding(s service.Standing) *standingResponse {
	out := &standingResponse{
		Because: s.Because.Event, Actor: s.Because.Actor, Reason: s.Because.Reason, Evidence: s.Because.Evidence,
		ProvenCopies: s.Copies, ProvenBeside: orEmpty(s.Beside), UnprovenBeside: orEmpty(s.UnprovenBeside), Warnings: orEmpty(s.Warnings),
	}
	if !s.Because.At.IsZero() {
		out.At = &s.Because.At
	}
	if s.Latest != nil {
		out.LatestRun, out.LatestVerdict = s.Latest.Verification, string(s.Latest.Verdict)
	}
	return out
}

// phrasesRequest tries expressions over what a class printed before.
type phrasesRequest struct {
	// Expressions are tried instead of the class's present ones, beside the built-in ones.
	Expressions []string `json:"expressions,omitempty"`
	// Last is how many of the newest runs are searched, 1 to 500, default 50.
	Last int `json:"last,omitempty"`
}

// phrasesResponse lists the runs in which something was found.
type phrasesResponse struct {
	Searched int                 `json:"searched"` // runs
	Hits     []phraseHitResponse `json:"hits"`
}

// phraseHitResponse is one run with what was found in it.
type phraseHitResponse struct {
	Job     string                 `json:"job"`
	Attempt int                    `json:"attempt"`
	EndedAt time.Time              `json:"ended_at" format:"date-time"`
	Outcome string                 `json:"outcome"`
	Matches []lanegate.PhraseMatch `json:"matches"`
}

// tryPhrases searches past output for phrases of trouble.
//
//	@Summary	Try phrases of trouble over past output
//	@ID			try-phrases
//	@Tags		verification
//	@Accept		json
//	@Produce	json
//	@Param		id		path		string			true	"Class id"
//	@Param		request	body		phrasesRequest	true	"What to try"
//	@Success	200		{object}	phrasesResponse
//	@Failure	400,401,403,404,413,415,422,503	{object}	problem
//	@Router		/job-classes/{id}/phrases [post]
//	@Security	bearer
func (a *API) tryPhrases(w http.ResponseWriter, r *http.Request) error {
	if err := query(r).done(); err != nil {
		return err
	}
	req, err := decode[phrasesRequest](a, w, r, a.o.MaxPayload)
	if err != nil {
		return err
	}
	if req.Last < 0 || req.Last > maxLimit {
		return fieldProblem("invalid_fields", "/last", "must be a whole number from 1 to 500")
	}
	if req.Last == 0 {
		req.Last = defaultLimit
	}
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	hits, searched, err := a.svc.TryPhrases(r.Context(), chi.URLParam(r, "id"), service.PhraseTrial{Expressions: req.Expressions, Last: req.Last})
	if err != nil {
		return err
	}
	out := phrasesResponse{Searched: searched, Hits: []phraseHitResponse{}}
	for _, h := range hits {
		out.Hits = append(out.Hits, phraseHitResponse{h.Job, h.Attempt, h.EndedAt, string(h.Outcome), h.Matches})
	}
	return encode(w, http.StatusOK, out)
}
