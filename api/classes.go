package api

import (
	"net/http"
	"reflect"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// classDocument is a class as it is shown and as PUT takes it: the declared
// fields, and read-only ones that may be sent back unchanged.
type classDocument struct {
	ID string `json:"id,omitempty" example:"pos-sales"`
	lanegate.ClassSpec
	// Paused: accepts jobs, starts none. A PUT without it leaves the class as it is.
	Paused      *bool      `json:"paused,omitempty"`
	Lane        string     `json:"lane,omitempty" example:"serial"`
	MaxInFlight int        `json:"max_in_flight,omitzero" example:"1"`
	ManagedBy   string     `json:"managed_by,omitempty" enums:"api,file"`
	Fingerprint string     `json:"fingerprint,omitempty"`
	CreatedAt   *time.Time `json:"created_at,omitempty" format:"date-time"`
	UpdatedAt   *time.Time `json:"updated_at,omitempty" format:"date-time"`
	// Standing says why the class is in its lane and what is proven of it; shown for
	// one class, and not looked at when it is sent back.
	Standing *standingResponse `json:"standing,omitempty"`
}

func newClassDocument(c lanegate.Class) classDocument {
	return classDocument{
		ID: c.ID, ClassSpec: c.ClassSpec, Paused: &c.Paused, Lane: c.Lane, MaxInFlight: c.MaxInFlight, ManagedBy: string(c.ManagedBy),
		Fingerprint: c.Fingerprint, CreatedAt: &c.CreatedAt, UpdatedAt: &c.UpdatedAt,
	}
}

// listClasses lists job classes by id.
//
//	@Summary	List job classes
//	@ID			list-classes
//	@Tags		job classes
//	@Produce	json
//	@Param		limit	query	int		false	"1 to 500, default 50"
//	@Param		cursor	query	string	false	"next_cursor of the page before"
//	@Success	200	{object}	page[classDocument]
//	@Failure	400,401,403,503	{object}	problem
//	@Router		/job-classes [get]
//	@Security	bearer
func (a *API) listClasses(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	p := query(r)
	limit, after := p.limit(), openCursor(p, lanegate.ValidSlug)
	if err := p.done(); err != nil {
		return err
	}
	out := page[classDocument]{Items: []classDocument{}}
	for more := true; more; { // a restricted token sees a part: go on until the page is full
		list, next, err := a.svc.Classes(r.Context(), after, maxLimit)
		if err != nil {
			return err
		}
		for _, c := range list {
			if callerOf(r.Context()).mayUse(c.ID) != nil {
				continue
			}
			if len(out.Items) == limit {
				out.NextCursor = sealCursor(out.Items[limit-1].ID)
				return encode(w, http.StatusOK, out)
			}
			out.Items = append(out.Items, newClassDocument(c))
		}
		after, more = next, next != ""
	}
	return encode(w, http.StatusOK, out)
}

// getClass shows a job class.
//
//	@Summary	Get a job class
//	@ID			get-class
//	@Tags		job classes
//	@Produce	json
//	@Param		id	path		string	true	"Class id"
//	@Success	200	{object}	classDocument
//	@Failure	400,401,403,404,503	{object}	problem
//	@Router		/job-classes/{id} [get]
//	@Security	bearer
func (a *API) getClass(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if err := query(r).done(); err != nil {
		return err
	}
	c, err := a.svc.Class(r.Context(), chi.URLParam(r, "id"))
	if err != nil {
		return err
	}
	standing, err := a.svc.Standing(r.Context(), c.ID)
	if err != nil {
		return err
	}
	doc := newClassDocument(c)
	doc.Standing = newStanding(standing)
	return encode(w, http.StatusOK, doc)
}

// createClass registers a class that must not exist yet; it starts in serial.
//
//	@Summary	Create a job class
//	@ID			create-class
//	@Tags		job classes
//	@Accept		json
//	@Produce	json
//	@Param		accept	query		string			false	"width: a lane's width may go down"
//	@Param		demote	query		string			false	"true: a promoted class may go back to serial"
//	@Param		dry_run	query		string			false	"true: judge everything, change nothing"
//	@Param		reason	query		string			false	"For the history"
//	@Param		request	body		classDocument	true	"Class; id is required"
//	@Success	201		{object}	classDocument
//	@Failure	400,401,403,409,413,415,422,503	{object}	problem
//	@Router		/job-classes [post]
//	@Security	bearer
func (a *API) createClass(w http.ResponseWriter, r *http.Request) error {
	doc, o, err := a.readClass(w, r)
	if err != nil {
		return err
	}
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	if doc.ID == "" {
		return fieldProblem("invalid_fields", "/id", "is required: the class's name, e.g. \"pos-sales\"")
	}
	if err := callerOf(r.Context()).mayUse(doc.ID); err != nil {
		return err
	}
	o.New = true
	return a.storeClass(w, r, doc.ID, doc, o)
}

// putClass creates a class or replaces what is declared of it.
//
//	@Summary		Create or replace a job class
//	@Description	Lane and max_in_flight change only by promotion and demotion; read-only fields may be sent back as they are. With updated_at a class that was changed since is not overwritten. Without paused it stays paused, or not.
//	@ID				put-class
//	@Tags			job classes
//	@Accept			json
//	@Produce		json
//	@Param			id		path		string			true	"Class id"
//	@Param			accept	query		string			false	"width: a lane's width may go down"
//	@Param			demote	query		string			false	"true: a promoted class may go back to serial"
//	@Param			dry_run	query		string			false	"true: judge everything, change nothing"
//	@Param			reason	query		string			false	"For the history"
//	@Param			request	body		classDocument	true	"Class"
//	@Success		200		{object}	classDocument
//	@Success		201		{object}	classDocument
//	@Failure		400,401,403,409,413,415,422,503	{object}	problem
//	@Router			/job-classes/{id} [put]
//	@Security		bearer
func (a *API) putClass(w http.ResponseWriter, r *http.Request) error {
	doc, o, err := a.readClass(w, r)
	if err != nil {
		return err
	}
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	return a.storeClass(w, r, chi.URLParam(r, "id"), doc, o)
}

func (a *API) readClass(w http.ResponseWriter, r *http.Request) (doc classDocument, o service.ChangeOptions, err error) {
	if o, err = changeOptions(r, acceptsWidth, acceptsDemote); err != nil {
		return doc, o, err
	}
	doc, err = decode[classDocument](a, w, r, a.o.MaxPayload)
	doc.ClassSpec = completeBackoff(doc.ClassSpec)
	return doc, o, err
}

func (a *API) storeClass(w http.ResponseWriter, r *http.Request, id string, doc classDocument, o service.ChangeOptions) error {
	o.Check = func(old lanegate.Class) error { return lanegate.Invalid(doc.changedReadOnly(newClassDocument(old))) }
	if o.KeepPaused = doc.Paused == nil; !o.KeepPaused {
		doc.ClassSpec.Paused = *doc.Paused
	}
	c, created, err := a.svc.PutClass(r.Context(), id, doc.ClassSpec, o)
	if err != nil {
		return err
	}
	if o.DryRun {
		return encodeDryRun(w, o)
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
		w.Header().Set("Location", "/job-classes/"+id)
	}
	return encode(w, status, newClassDocument(c))
}

// changedReadOnly names the read-only fields that are given and differ.
func (d classDocument) changedReadOnly(old classDocument) []lanegate.FieldError {
	var errs []lanegate.FieldError
	check := func(pointer string, got, want any, detail string) {
		g := reflect.ValueOf(got)
		if g.IsZero() || reflect.DeepEqual(got, want) {
			return
		}
		errs = append(errs, lanegate.FieldError{Pointer: pointer, Detail: "is read-only here" + detail})
	}
	check("/id", d.ID, old.ID, " and must be the id in the path")
	check("/lane", d.Lane, old.Lane, "; a class changes its lane by promotion or demotion only")
	check("/max_in_flight", d.MaxInFlight, old.MaxInFlight, "; it changes by promotion or demotion only")
	check("/managed_by", d.ManagedBy, old.ManagedBy, "")
	check("/fingerprint", d.Fingerprint, old.Fingerprint, "; it follows from the run and the units")
	if d.CreatedAt != nil && (old.CreatedAt == nil || !d.CreatedAt.Equal(*old.CreatedAt)) {
		check("/created_at", true, false, "")
	}
	if d.UpdatedAt != nil && (old.UpdatedAt == nil || !d.UpdatedAt.Equal(*old.UpdatedAt)) {
		check("/updated_at", true, false, "; the class was changed since you read it")
	}
	return errs
}

// patchClass edits a class by a JSON merge patch (RFC 7396).
//
//	@Summary	Edit a job class
//	@ID			patch-class
//	@Tags		job classes
//	@Accept		json
//	@Produce	json
//	@Param		id		path		string			true	"Class id"
//	@Param		accept	query		string			false	"width: a lane's width may go down"
//	@Param		demote	query		string			false	"true: a promoted class may go back to serial"
//	@Param		dry_run	query		string			false	"true: judge everything, change nothing"
//	@Param		reason	query		string			false	"For the history"
//	@Param		request	body		object			true	"Merge patch over the declared fields; null removes one"
//	@Success	200		{object}	classDocument
//	@Failure	400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router		/job-classes/{id} [patch]
//	@Security	bearer
func (a *API) patchClass(w http.ResponseWriter, r *http.Request) error {
	o, err := changeOptions(r, acceptsWidth, acceptsDemote)
	if err != nil {
		return err
	}
	body, _, err := a.readBody(w, r, a.o.MaxPayload)
	if err != nil {
		return err
	}
	var patch map[string]jsontext.Value
	if err := decodeBytes(body, &patch, a.o.MaxDepth); err != nil {
		return err
	}
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	c, err := a.svc.PatchClass(r.Context(), chi.URLParam(r, "id"), func(spec lanegate.ClassSpec) (lanegate.ClassSpec, error) {
		return mergeSpec(spec, body)
	}, o)
	if err != nil {
		return err
	}
	if o.DryRun {
		return encodeDryRun(w, o)
	}
	return encode(w, http.StatusOK, newClassDocument(c))
}

// mergeSpec applies a merge patch to a spec. Naming a read-only field is refused
// like any unknown one, with a sentence of its own.
func mergeSpec(spec lanegate.ClassSpec, patch []byte) (lanegate.ClassSpec, error) {
	var out lanegate.ClassSpec
	text, err := json.Marshal(spec)
	if err != nil {
		return out, err
	}
	var doc, changes any
	if err := json.Unmarshal(text, &doc); err != nil {
		return out, err
	}
	if err := json.Unmarshal(patch, &changes); err != nil {
		return out, decodeError(err, new(lanegate.ClassSpec))
	}
	for _, name := range []string{"id", "lane", "max_in_flight", "managed_by", "fingerprint", "created_at", "updated_at", "standing"} {
		if _, ok := changes.(map[string]any)[name]; ok {
			return out, fieldProblem("read_only_field", "/"+name, "is read-only here")
		}
	}
	merged, err := json.Marshal(mergePatch(doc, changes), json.Deterministic(true))
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(merged, &out, decodeOptions); err != nil {
		return out, decodeError(err, new(lanegate.ClassSpec))
	}
	return completeBackoff(out), nil
}

// completeBackoff fills in the half of a backoff that was left out.
func completeBackoff(spec lanegate.ClassSpec) lanegate.ClassSpec {
	if spec.Backoff != nil {
		b := spec.Backoff.Complete()
		spec.Backoff = &b
	}
	return spec
}

// mergePatch is the algorithm of RFC 7396, section 2.
func mergePatch(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	result, ok := target.(map[string]any)
	if !ok {
		result = map[string]any{}
	}
	for name, value := range changes {
		if value == nil {
			delete(result, name)
		} else {
			result[name] = mergePatch(result[name], value)
		}
	}
	return result
}

// deleteClass removes a class without queued or running jobs.
//
//	@Summary	Delete a job class
//	@ID			delete-class
//	@Tags		job classes
//	@Param		id		path	string	true	"Class id"
//	@Param		accept	query	string	false	"width: a lane's width may go down"
//	@Param		dry_run	query	string	false	"true: judge everything, change nothing"
//	@Param		reason	query	string	false	"For the history"
//	@Success	200	{object}	dryRunResponse
//	@Success	204
//	@Failure	400,401,403,404,409,413,415,422,503	{object}	problem
//	@Router		/job-classes/{id} [delete]
//	@Security	bearer
func (a *API) deleteClass(w http.ResponseWriter, r *http.Request) error {
	return a.change(w, r, func(r *http.Request, o service.ChangeOptions) (any, error) {
		return nil, a.svc.DeleteClass(r.Context(), chi.URLParam(r, "id"), o)
	}, acceptsWidth)
}

// pauseClass makes a class accept jobs but start none.
//
//	@Summary	Pause a job class
//	@ID			pause-class
//	@Tags		job classes
//	@Produce	json
//	@Param		id		path		string	true	"Class id"
//	@Param		dry_run	query		string	false	"true: judge everything, change nothing"
//	@Param		reason	query		string	false	"For the history"
//	@Success	200		{object}	classDocument
//	@Failure	400,401,403,404,413,415,422,503	{object}	problem
//	@Router		/job-classes/{id}/pause [post]
//	@Security	bearer
func (a *API) pauseClass(w http.ResponseWriter, r *http.Request) error {
	return a.change(w, r, func(r *http.Request, o service.ChangeOptions) (any, error) {
		c, err := a.svc.PauseClass(r.Context(), chi.URLParam(r, "id"), o)
		return newClassDocument(c), err
	})
}

// resumeClass lets a paused class start jobs again.
//
//	@Summary	Resume a job class
//	@ID			resume-class
//	@Tags		job classes
//	@Produce	json
//	@Param		id		path		string	true	"Class id"
//	@Param		dry_run	query		string	false	"true: judge everything, change nothing"
//	@Param		reason	query		string	false	"For the history"
//	@Success	200		{object}	classDocument
//	@Failure	400,401,403,404,413,415,422,503	{object}	problem
//	@Router		/job-classes/{id}/resume [post]
//	@Security	bearer
func (a *API) resumeClass(w http.ResponseWriter, r *http.Request) error {
	return a.change(w, r, func(r *http.Request, o service.ChangeOptions) (any, error) {
		c, err := a.svc.ResumeClass(r.Context(), chi.URLParam(r, "id"), o)
		return newClassDocument(c), err
	})
}
