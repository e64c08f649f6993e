package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// resourceRequest is what can be set of a resource.
type resourceRequest struct {
	Capacity *int `json:"capacity" example:"15"`
	// Pool: classes that declare no units count as using 1 of it.
	Pool bool `json:"pool,omitempty"`
}

// resourceResponse is a resource with who holds it.
type resourceResponse struct {
	Name      string           `json:"name" example:"db"`
	Capacity  int              `json:"capacity" example:"15"`
	Pool      bool             `json:"pool"`
	InUse     int              `json:"in_use" example:"10"`
	Holders   []holderResponse `json:"holders"`
	ManagedBy string           `json:"managed_by" enums:"api,file"`
}

// holderResponse is an attempt that uses a resource.
type holderResponse struct {
	Job   string `json:"job"`
	Class string `json:"class"`
	Lane  string `json:"lane"`
	Units int    `json:"units"`
}

// newResourceResponse shows a resource to c; see newLaneResponse.
func newResourceResponse(v service.ResourceView, c caller) resourceResponse {
	out := resourceResponse{
		Name: v.Name, Capacity: v.Capacity, Pool: v.Pool, InUse: v.InUse, Holders: []holderResponse{}, ManagedBy: string(v.ManagedBy),
	}
	for _, h := range v.Holders {
		if c.mayUse(h.Class) == nil {
			out.Holders = append(out.Holders, holderResponse{h.Job, h.Class, h.Lane, h.Units})
		}
	}
	return out
}

// listResources lists all resources.
//
//	@Summary	List resources
//	@ID			list-resources
//	@Tags		resources
//	@Produce	json
//	@Success	200	{object}	page[resourceResponse]
//	@Failure	400,401,403,503	{object}	problem
//	@Router		/resources [get]
//	@Security	bearer
func (a *API) listResources(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	list, err := a.svc.Resources(r.Context())
	if err != nil {
		return err
	}
	out := page[resourceResponse]{Items: []resourceResponse{}}
	for _, v := range list {
		out.Items = append(out.Items, newResourceResponse(v, callerOf(r.Context())))
	}
	return encode(w, http.StatusOK, out)
}

// getResource shows a resource and the jobs that hold it.
//
//	@Summary	Get a resource
//	@ID			get-resource
//	@Tags		resources
//	@Produce	json
//	@Param		name	path		string	true	"Resource"
//	@Success	200		{object}	resourceResponse
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/resources/{name} [get]
//	@Security	bearer
func (a *API) getResource(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	return a.showResource(w, r, http.StatusOK)
}

func (a *API) showResource(w http.ResponseWriter, r *http.Request, status int) error {
	v, err := a.svc.Resource(r.Context(), chi.URLParam(r, "name"))
	if err != nil {
		return err
	}
	return encode(w, status, newResourceResponse(v, callerOf(r.Context())))
}

// putResource creates a resource or changes its capacity.
//
//	@Summary		Create or change a resource
//	@Description	A capacity below what runs now stops nothing; it only starts nothing.
//	@ID				put-resource
//	@Tags			resources
//	@Accept			json
//	@Produce		json
//	@Param			name	path		string			true	"Resource"
//	@Param			accept	query		string			false	"width: lanes' widths may go down"
//	@Param			dry_run	query		string			false	"true: judge everything, change nothing"
//	@Param			reason	query		string			false	"For the history"
//	@Param			request	body		resourceRequest	true	"Settings"
//	@Success		200		{object}	resourceResponse
//	@Success		201		{object}	resourceResponse
//	@Failure		400,401,403,409,413,415,422,503	{object}	problem
//	@Router			/resources/{name} [put]
//	@Security		bearer
func (a *API) putResource(w http.ResponseWriter, r *http.Request) error {
	o, err := changeOptions(r, acceptsWidth)
	if err != nil {
		return err
	}
	req, err := decode[resourceRequest](a, w, r, a.o.MaxPayload)
	if err != nil {
		return err
	}
	if req.Capacity == nil {
		return fieldProblem("invalid_fields", "/capacity", "is required: a whole number, e.g. 15")
	}
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	res := lanegate.Resource{Name: chi.URLParam(r, "name"), Capacity: *req.Capacity, Pool: req.Pool}
	created, err := a.svc.PutResource(r.Context(), res, o)
	if err != nil {
		return err
	}
	if o.DryRun {
		return encodeDryRun(w, o)
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		w.Header().Set("Location", "/resources/"+res.Name)
	}
	return a.showResource(w, r, status)
}

// deleteResource removes a resource that no class declares units of.
//
//	@Summary	Delete a resource
//	@ID			delete-resource
//	@Tags		resources
//	@Param		name	path	string	true	"Resource"
//	@Param		accept	query	string	false	"width: lanes' widths may go down"
//	@Param		dry_run	query	string	false	"true: judge everything, change nothing"
//	@Param		reason	query	string	false	"For the history"
//	@Success	200	{object}	dryRunResponse
//	@Success	204
//	@Failure	400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router		/resources/{name} [delete]
//	@Security	bearer
func (a *API) deleteResource(w http.ResponseWriter, r *http.Request) error {
	return a.change(w, r, func(r *http.Request, o service.ChangeOptions) (any, error) {
		return nil, a.svc.DeleteResource(r.Context(), chi.URLParam(r, "name"), o)
	}, acceptsWidth)
}
