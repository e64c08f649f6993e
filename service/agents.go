package service

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// Agents are workers elsewhere that know the database only through these methods.
// Each belongs to the token that registered it, and answers to no other.

// AgentAsk is an agent's question for work; asking also registers it and beats.
type AgentAsk struct {
	// Worker has the agent's id, new per start, and what it serves and can run.
	// Worker.Agent is the name of its token.
	Worker     WorkerInfo
	Free       int
	SerialFree bool
	// Wait is how long to wait for work while there is none.
	Wait time.Duration
	// Peek only waits until there is work for the agent, and takes none.
	Peek bool
}

// AgentGrants is the answer to an AgentAsk.
type AgentGrants struct {
	Grants []Grant
	// Work: with Peek, there is work to ask for.
	Work bool
	// NextDue is how long until the next job becomes due, negative when unknown.
	NextDue time.Duration
	// Lease is how long the agent's beats may stand still before it is dead.
	Lease time.Duration
}

const (
	// agentPoll is how often a waiting question looks by itself.
	agentPoll = 15 * time.Second
	// agentGap spaces the looks of one waiting question, however much goes on.
	agentGap = 100 * time.Millisecond
)

// Grants answers an agent's question for work. ErrWorkerGone means that this
// identity is dead, or another token's: start again under a new one. When ctx ends
// first, nothing has started that is not in an answer.
func (s *Service) Grants(ctx context.Context, ask AgentAsk) (AgentGrants, error) {
	out := AgentGrants{NextDue: -1, Lease: s.opts.Lease}
	if err := s.agentIsHere(ctx, ask.Worker, !ask.Peek); err != nil {
		return out, err
	}
	deadline := time.Now().Add(ask.Wait)
	var due time.Time // when the next job becomes due, which a look doesn't tell
	for work := !ask.Peek; ; {
		wake := s.agents.wait() // before the look, so that no ring falls between
		var err error
		if !work {
			if work, err = s.workFor(ctx, ask.Worker); err != nil {
				return out, err
			}
		}
		if work && ask.Peek {
			out.Work = true
			return out, nil
		}
		if work {
			res, err := s.admit(ctx, Ask{Worker: ask.Worker.ID, Free: ask.Free, SerialFree: ask.SerialFree})
			out.Grants, out.NextDue = res.Grants, res.NextDue
			if err != nil || len(res.Grants) > 0 {
				return out, err
			}
			due = time.Time{}
			if res.NextDue >= 0 {
				due = time.Now().Add(res.NextDue)
			}
		}
		left := time.Until(deadline)
		if left <= 0 {
			return out, nil
		}
		wait := agentPoll
		if !due.IsZero() {
			wait = min(wait, max(agentGap, time.Until(due)))
		}
		if err := waitFor(ctx, wake, min(left, wait)); err != nil {
			return out, err
		}
		work = !due.IsZero() && time.Until(due) <= 0
	}
}

// waitFor returns when wake is closed or d is over, but not before agentGap unless d is
// less.
func waitFor(ctx context.Context, wake <-chan struct{}, d time.Duration) error {
	gap, timer := time.NewTimer(min(d, agentGap)), time.NewTimer(d)
	defer gap.Stop()
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-gap.C:
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-wake:
	case <-timer.C:
	}
	return nil
}

// workFor looks, without locks, whether admission would start something on the agent now.
func (s *Service) workFor(ctx context.Context, w WorkerInfo) (bool, error) {
	if err := s.learn(ctx, w, false); err != nil {
		return false, err
	}
	in, err := s.store.Snapshot(ctx)
	if err != nil {
		return false, err
	}
	in.Asking, in.NoWaits = w.ID, true
	return len(admission.Plan(in).Grants) > 0, nil
}

// agentIsHere makes the agent live, as it describes itself now.
func (s *Service) agentIsHere(ctx context.Context, w WorkerInfo, beat bool) error {
	old, err := s.agent(ctx, w.Agent, w.ID)
	switch {
	case errors.Is(err, errNoAgent):
		if err := s.RegisterWorker(ctx, w); err != nil {
			return err
		}
		return s.learn(ctx, w, true)
	case err != nil:
		return err
	}
	if !sameOffer(old, w) {
		if err := s.store.UpdateWorker(ctx, w); err != nil {
			return err
		}
		if err := s.learn(ctx, w, true); err != nil {
			return err
		}
	}
	if !beat {
		return nil
	}
	_, err = s.store.Beat(ctx, w.ID)
	return err
}

func sameOffer(a, b WorkerInfo) bool {
	return a.Slots == b.Slots && a.Draining == b.Draining && maps.Equal(a.Commands, b.Commands) &&
		(a.Lanes == nil) == (b.Lanes == nil) && slices.Equal(a.Lanes, b.Lanes)
}

// errNoAgent: no live worker has that id.
var errNoAgent = lanegate.ErrWorkerGone

// agent finds a live agent of a token; another's, and a gateway's own worker, is
// answered as if it were dead.
func (s *Service) agent(ctx context.Context, token, id string) (WorkerInfo, error) {
	live, err := s.store.LiveWorkers(ctx)
	if err != nil {
		return WorkerInfo{}, err
	}
	i := slices.IndexFunc(live, func(w WorkerInfo) bool { return w.ID == id })
	if i < 0 || live[i].Agent != token || token == "" {
		return WorkerInfo{}, errNoAgent
	}
	return live[i], nil
}

// AgentBeat counts the agent's beat up and returns the attempts the database knows
// as its. ErrWorkerGone.
func (s *Service) AgentBeat(ctx context.Context, token, worker string) (held []Held, lease time.Duration, err error) {
	if _, err := s.agent(ctx, token, worker); err != nil {
		return nil, 0, err
	}
	held, err = s.store.Beat(ctx, worker)
	return held, s.opts.Lease, err
}

// AgentLeave ends the agent after its last run. One that is gone may leave again.
func (s *Service) AgentLeave(ctx context.Context, token, worker string) error {
	if _, err := s.agent(ctx, token, worker); err != nil {
		if errors.Is(err, errNoAgent) {
			return nil
		}
		return err
	}
	return s.LeaveWorker(ctx, worker)
}

// agentDigest is what the agent says of the command of a class, false when it
// can't run it.
func agentDigest(w WorkerInfo, c lanegate.Class) (string, bool) {
	if c.Run.Kind != lanegate.RunAgent {
		return "", false
	}
	if d, ok := w.Commands[admission.OnTheSpot(c.ID)]; ok {
		return d, true
	}
	d, ok := w.Commands[c.Run.Command]
	return d, ok
}

// learn takes over what the agent says its commands are. With news, as it has just
// said so, the latest word counts: a definition that has changed changes the
// fingerprint of its classes, and so demotes a promoted one, loudly. Otherwise only
// classes are served whose command nobody has described yet.
func (s *Service) learn(ctx context.Context, w WorkerInfo, news bool) error {
	differs := func(c lanegate.Class) bool {
		d, ok := agentDigest(w, c)
		return ok && d != c.CommandDigest && (news || c.CommandDigest == "")
	}
	cfg, err := s.store.Config(ctx)
	if err != nil || !slices.ContainsFunc(cfg.Classes, differs) {
		return err
	}
	o := ChangeOptions{Actor: ActorLanegate, Reason: "command definition of agent " + w.Agent + " on " + w.Host, unattended: true}
	return s.change(ctx, o, func(tx ConfigTx, cfg Config) error {
		for _, c := range cfg.Classes {
			if !differs(c) {
				continue
			}
			digest, _ := agentDigest(w, c)
			if err := saveDigest(tx, c, digest, o); err != nil {
				return err
			}
		}
		return nil
	})
}

// onTheSpot checks that a submission names a worker that waits to run it: an agent
// of the same token, and a class of kind agent.
func (s *Service) onTheSpot(ctx context.Context, client string, sub Submission) error {
	fault := func(pointer, detail string) error {
		return lanegate.Invalid([]lanegate.FieldError{{Pointer: pointer, Detail: detail}})
	}
	w, err := s.agent(ctx, client, sub.Worker)
	if errors.Is(err, errNoAgent) {
		return fault("/worker", "is no live agent of this token; register it first with POST /grants")
	} else if err != nil {
		return err
	}
	cfg, err := s.store.Config(ctx)
	if err != nil {
		return err
	}
	c, err := cfg.findClass(sub.Class)
	if target := s.target.Load(); err != nil && target != nil && target.Run.Kind == lanegate.RunAgent {
		if err := s.createDefault(ctx, sub.Class); err != nil {
			return err
		}
		c.ID, c.Run = sub.Class, target.Run
	} else if err != nil {
		return lanegate.ErrUnknownClass.With("job class %q is not registered; nothing was enqueued. Register it with PUT /job-classes/%s {\"run\": {\"kind\": \"agent\", \"command\": %q}}, or configure a default_target of kind agent.", sub.Class, sub.Class, sub.Class)
	}
	if c.Run.Kind != lanegate.RunAgent {
		return fault("/class", "runs where the gateway is (kind "+string(c.Run.Kind)+"); only a class of kind agent can be run on the spot")
	}
	if _, ok := w.Commands[admission.OnTheSpot(c.ID)]; !ok {
		return fault("/worker", "has no command \""+admission.OnTheSpot(c.ID)+"\" to run it with")
	}
	return s.learn(ctx, w, true)
}

// agentWakes wakes all waiting questions of agents at once.
type agentWakes struct {
	mu sync.Mutex
	ch chan struct{} // guarded by mu; nil while nobody waits; closed by poke
}

func (a *agentWakes) wait() <-chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ch == nil {
		a.ch = make(chan struct{})
	}
	return a.ch
}

func (a *agentWakes) poke() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ch != nil {
		close(a.ch)
		a.ch = nil
	}
}

// ring wakes the workers of a lane, here and at the agents that wait here.
func (s *Service) ring(lane string) {
	s.bell.Ring(lane)
	s.agents.poke()
}
