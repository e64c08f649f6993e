package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

// Limits of agents' questions.
const (
	maxGrantsBody = 1 << 20
	maxGrantsWait = 30 * time.Second
	maxAgentSlots = 10_000
	maxHostText   = 255
)

// grantsRequest is an agent's question for work; it says what the agent is.
type grantsRequest struct {
	// Worker is the agent's identity: new for each start of its process, e.g. a UUID.
	Worker string `json:"worker" example:"01997e2a-5b1c-7c41-8a3e-0d5a3f0c9a11" validate:"required"`
	Host   string `json:"host,omitempty" example:"batch-7"`
	PID    int    `json:"pid,omitempty"`
	// Lanes that it serves; left out: all. Only lanes that are named become available by an agent.
	Lanes []string `json:"lanes,omitempty"`
	// Slots is how many runs outside serial it can have at once; serial has a slot of its own.
	Slots int `json:"slots" example:"4"`
	// Commands maps each command it can run to a digest of its definition, any text of up to 64 characters.
	Commands map[string]string `json:"commands"`
	// Free is how many slots outside serial are free now, serial_free whether serial's own is.
	Free       int  `json:"free" example:"4"`
	SerialFree bool `json:"serial_free"`
	// Wait is how long to wait for work, at most 30s.
	Wait string `json:"wait,omitempty" example:"30s"`
	// Peek only waits until there is work, and takes none.
	Peek bool `json:"peek,omitempty"`
	// Draining: it finishes what it has and takes nothing more.
	Draining bool `json:"draining,omitempty"`
}

// grantsResponse has the runs that the agent has to start now.
type grantsResponse struct {
	Grants []grantResponse `json:"grants"`
	// Work: with peek, there is work to ask for.
	Work bool `json:"work,omitzero"`
	// LeaseSeconds after the last beat that was sent and answered, nothing of the agent's may run any more.
	LeaseSeconds float64 `json:"lease_seconds" example:"60"`
	// NextDueSeconds is how soon a waiting job becomes due; left out when none is known.
	NextDueSeconds *float64 `json:"next_due_seconds,omitempty"`
}

// grantResponse is one attempt to run.
type grantResponse struct {
	Job         string `json:"job"`
	Attempt     int    `json:"attempt" example:"1"`
	Token       string `json:"token"`
	Class       string `json:"class" example:"heavy"`
	Command     string `json:"command" example:"heavy"`
	Lane        string `json:"lane" example:"serial"`
	LogicalDate string `json:"logical_date,omitempty"`
	// TimeoutSeconds is the run's time limit; left out: none.
	TimeoutSeconds float64 `json:"timeout_seconds,omitzero"`
	// Payload is the JSON text, byte for byte, as a string.
	Payload string `json:"payload" example:"{\"date\": \"2026-11-28\"}"`
}

// workerRequest names an agent.
type workerRequest struct {
	Worker string `json:"worker" validate:"required"`
}

// beatResponse lists what the gateway knows as the agent's.
type beatResponse struct {
	// Attempts that are not among them must be stopped; those that the agent never
	// got are to be completed as interrupted.
	Attempts     []heldResponse `json:"attempts"`
	LeaseSeconds float64        `json:"lease_seconds" example:"60"`
}

// heldResponse is one attempt of the agent's.
type heldResponse struct {
	Job             string `json:"job"`
	Attempt         int    `json:"attempt"`
	Token           string `json:"token"`
	CancelRequested bool   `json:"cancel_requested"`
}

// grants registers an agent, or what has changed about it, and answers with work.
//
//	@Summary		Ask for work
//	@Description	For agents. Registers the worker, counts as a beat (but for a peek), and answers with runs to start, at once or as soon as there are some within "wait". 409 worker_not_live: this identity is dead, or not this token's; stop its runs and start again under a new one.
//	@ID				ask-grants
//	@Tags			agents
//	@Accept			json
//	@Produce		json
//	@Param			request	body		grantsRequest	true	"What the agent is and has free"
//	@Success		200		{object}	grantsResponse
//	@Failure		400,401,403,408,409,413,415,422,429,503	{object}	problem
//	@Router			/grants [post]
//	@Security		bearer
func (a *API) grants(w http.ResponseWriter, r *http.Request) error {
	if err := query(r).done(); err != nil {
		return err
	}
	req, err := decode[grantsRequest](a, w, r, maxGrantsBody)
	if err != nil {
		return err
	}
	ask, err := req.ask(callerOf(r.Context()))
	if err != nil {
		return err
	}
	a.setDeadlines(w, r, ask.Wait+handlerTimeout)
	r, cancel := timed(r, ask.Wait+handlerTimeout)
	defer cancel()
	got, err := a.svc.Grants(r.Context(), ask)
	if err != nil {
		return err
	}
	out := grantsResponse{Grants: []grantResponse{}, Work: got.Work, LeaseSeconds: got.Lease.Seconds()}
	if got.NextDue >= 0 {
		next := got.NextDue.Seconds()
		out.NextDueSeconds = &next
	}
	for _, g := range got.Grants {
		out.Grants = append(out.Grants, grantResponse{
			Job: g.Job.ID, Attempt: g.Attempt.Number, Token: g.Attempt.Token, Class: g.Job.Class, Command: g.Class.Run.Command,
			Lane: g.Attempt.Lane, LogicalDate: g.Job.LogicalDate, TimeoutSeconds: g.Class.Timeout.Std().Seconds(), Payload: string(g.Payload),
		})
	}
	return encode(w, http.StatusOK, out)
}

// ask checks what the agent says of itself.
func (q grantsRequest) ask(c caller) (service.AgentAsk, error) {
	var errs []lanegate.FieldError
	bad := func(pointer, format string, args ...any) {
		errs = append(errs, lanegate.FieldError{Pointer: pointer, Detail: fmt.Sprintf(format, args...)})
	}
	if !lanegate.ValidSlug(q.Worker) {
		bad("/worker", "must match [a-z0-9][a-z0-9._-]{0,62}; a UUID does")
	}
	if len(q.Host) > maxHostText {
		bad("/host", "must be at most %d bytes", maxHostText)
	}
	if q.Slots < 0 || q.Slots > maxAgentSlots {
		bad("/slots", "must be a whole number from 0 to %d", maxAgentSlots)
	}
	if q.Free < 0 || q.Free > q.Slots {
		bad("/free", "must be a whole number from 0 to slots")
	}
	for _, name := range q.Lanes {
		if !lanegate.ValidSlug(name) {
			bad("/lanes", "%q is not a lane's name", name)
		}
	}
	here := admission.OnTheSpot("")
	for name, digest := range q.Commands {
		if !lanegate.ValidSlug(strings.TrimPrefix(name, here)) {
			bad("/commands", "%q is not a command's name", name)
		}
		if digest == "" || len(digest) > 64 {
			bad("/commands/"+name, "must be a digest of 1 to 64 characters")
		}
	}
	wait := time.Duration(0)
	if q.Wait != "" {
		var err error
		if wait, err = lanegate.ParseDuration(q.Wait); err != nil {
			bad("/wait", "%v", err)
		} else if wait > maxGrantsWait {
			bad("/wait", "must be at most %s", maxGrantsWait)
		}
	}
	if err := lanegate.Invalid(errs); err != nil {
		return service.AgentAsk{}, err
	}
	if err := c.mayOffer(q.Commands); err != nil {
		return service.AgentAsk{}, err
	}
	return service.AgentAsk{
		Worker: service.WorkerInfo{
			ID: q.Worker, Host: q.Host, PID: q.PID, Lanes: q.Lanes, Slots: q.Slots, Commands: q.Commands, Draining: q.Draining, Agent: c.Name,
		},
		Free: q.Free, SerialFree: q.SerialFree, Wait: wait, Peek: q.Peek,
	}, nil
}

// mayOffer keeps a token that is restricted to some classes from getting the jobs
// of others: several classes may share a command, so it can only run its own
// classes' jobs on the spot.
func (c caller) mayOffer(commands map[string]string) error {
	if len(c.Classes) == 0 {
		return nil
	}
	for name := range commands {
		class, onTheSpot := strings.CutPrefix(name, admission.OnTheSpot(""))
		if !onTheSpot || !slices.Contains(c.Classes, class) {
			return errForbidden.With("token %q is restricted to the classes %s; it can run jobs of these on the spot (lanegate run), but not offer the command %q.", c.Name, strings.Join(c.Classes, ", "), name)
		}
	}
	return nil
}

// beatGrants says that an agent lives, and lists what is known as its.
//
//	@Summary		Say that an agent lives
//	@Description	For agents: at least every sixth part of the lease. Cancels come in the answer. 409 worker_not_live: stop all runs, start again under a new identity.
//	@ID				beat-grants
//	@Tags			agents
//	@Accept			json
//	@Produce		json
//	@Param			request	body		workerRequest	true	"Which agent"
//	@Success		200		{object}	beatResponse
//	@Failure		400,401,403,408,409,413,415,422,429,503	{object}	problem
//	@Router			/grants/heartbeat [post]
//	@Security		bearer
func (a *API) beatGrants(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	worker, err := a.workerOf(w, r)
	if err != nil {
		return err
	}
	held, lease, err := a.svc.AgentBeat(r.Context(), callerOf(r.Context()).Name, worker)
	if err != nil {
		return err
	}
	out := beatResponse{Attempts: []heldResponse{}, LeaseSeconds: lease.Seconds()}
	for _, h := range held {
		out.Attempts = append(out.Attempts, heldResponse{Job: h.Fence.Job, Attempt: h.Fence.Number, Token: h.Fence.Token, CancelRequested: h.CancelRequested})
	}
	return encode(w, http.StatusOK, out)
}

// leaveGrants ends an agent.
//
//	@Summary		Say that an agent ends
//	@Description	For agents, after the last run. Attempts it still has are lost; queued jobs that only it may run are cancelled. An agent that is gone may leave again.
//	@ID				leave-grants
//	@Tags			agents
//	@Accept			json
//	@Param			request	body	workerRequest	true	"Which agent"
//	@Success		204
//	@Failure		400,401,403,408,413,415,422,429,503	{object}	problem
//	@Router			/grants/leave [post]
//	@Security		bearer
func (a *API) leaveGrants(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	worker, err := a.workerOf(w, r)
	if err != nil {
		return err
	}
	if err := a.svc.AgentLeave(r.Context(), callerOf(r.Context()).Name, worker); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// workerOf reads a request that names an agent and nothing else.
func (a *API) workerOf(w http.ResponseWriter, r *http.Request) (string, error) {
	if err := query(r).done(); err != nil {
		return "", err
	}
	req, err := decode[workerRequest](a, w, r, maxHeartbeatBody)
	return req.Worker, err
}
