package api

import (
	"bytes"
	"net/http"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// What a caller may accept of a change, as query parameters.
const (
	acceptsWidth  = "accept" // accept=width
	acceptsDemote = "demote" // demote=true
)

// changeOptions reads what a change may do and who makes it. accepts are the
// consequences that this change can have and that may be accepted.
func changeOptions(r *http.Request, accepts ...string) (service.ChangeOptions, error) {
	p := query(r)
	o := service.ChangeOptions{
		Actor: callerOf(r.Context()).Name, Reason: p.str("reason"),
		DryRun: p.flag("dry_run", "true"), Report: &service.Consequences{},
	}
	for _, name := range accepts {
		switch name {
		case acceptsWidth:
			o.AcceptWidth = p.flag(name, "width")
		case acceptsDemote:
			o.Demote = p.flag(name, "true")
		}
	}
	if len(o.Reason) > 1000 {
		p.bad("reason", "must be at most 1000 bytes")
	}
	return o, p.done()
}

// dryRunResponse says what would follow from a change that was only tried.
type dryRunResponse struct {
	DryRun       bool                 `json:"dry_run" example:"true"`
	Consequences consequencesResponse `json:"consequences"`
}

// consequencesResponse is what follows from a change.
type consequencesResponse struct {
	// Widths lists the lanes whose width in force changes; 0 is a lane that does not exist.
	Widths []widthChangeResponse `json:"widths"`
	// UnprovenBeside maps a class outside serial to classes that come beside it
	// although they were never proven together.
	UnprovenBeside map[string][]string `json:"unproven_beside,omitempty"`
	// Demotes lists classes that go back to serial.
	Demotes  []string `json:"demotes,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
	// Needs are the query parameters without which the change itself would be refused;
	// in the answer to a dry run.
	Needs []string `json:"needs,omitempty" example:"demote=true,accept=width"`
}

// widthChangeResponse is a lane's width before and after.
type widthChangeResponse struct {
	Lane   string `json:"lane" example:"parallel"`
	Before int    `json:"before" example:"3"`
	After  int    `json:"after" example:"2"`
}

func newConsequences(c service.Consequences) consequencesResponse {
	out := consequencesResponse{Widths: []widthChangeResponse{}, UnprovenBeside: c.UnprovenBeside, Demotes: c.Demotes, Warnings: c.Warnings, Needs: c.Needs}
	for _, w := range c.Widths {
		out.Widths = append(out.Widths, widthChangeResponse(w))
	}
	return out
}

// encodeDryRun answers a change that was judged and not made.
func encodeDryRun(w http.ResponseWriter, o service.ChangeOptions) error {
	return encode(w, http.StatusOK, dryRunResponse{DryRun: true, Consequences: newConsequences(*o.Report)})
}

// noBody refuses what a call without a body would otherwise ignore; an empty
// object, which some clients always send, says nothing and is taken.
func (a *API) noBody(w http.ResponseWriter, r *http.Request) error {
	if r.ContentLength == 0 {
		return nil
	}
	body, _, err := a.readBody(w, r, maxIgnored)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	var nothing map[string]jsontext.Value
	if err := checkObject(body, a.o.MaxDepth); err != nil {
		return err
	}
	if err := json.Unmarshal(body, &nothing); err != nil {
		return decodeError(err, &nothing)
	}
	if len(nothing) > 0 {
		return &lanegate.Error{
			Kind: lanegate.KindInvalid, Code: "body_not_taken",
			Message: "this call takes no body; nothing was changed. A reason for the history goes into the query where the call keeps one: ?reason=…",
		}
	}
	return nil
}

// maxIgnored bounds the body of a call that takes none.
const maxIgnored = 4 << 10

// change runs a bodiless change, see changeOptions; a nil answer is 204.
func (a *API) change(w http.ResponseWriter, r *http.Request, do func(*http.Request, service.ChangeOptions) (any, error), accepts ...string) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	o, err := changeOptions(r, accepts...)
	if err != nil {
		return err
	}
	if err := a.noBody(w, r); err != nil {
		return err
	}
	v, err := do(r, o)
	if err != nil {
		return err
	}
	if o.DryRun {
		return encodeDryRun(w, o)
	}
	if v == nil {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	return encode(w, http.StatusOK, v)
}
