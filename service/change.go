package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/verification"
)

// ChangeOptions say who changes something and which consequences are accepted.
type ChangeOptions struct {
	Actor  string
	Reason string
	// AcceptWidth: a lane's width in force may go down by this change.
	AcceptWidth bool
	// Demote: a promoted class whose fingerprint changes may go back to serial.
	Demote bool
	// New: PutClass creates a class; one that exists already is ErrClassExists.
	New bool
	// DryRun: everything is judged, and nothing is kept. What could be accepted is not
	// refused but listed among the report's needs.
	DryRun bool
	// Report, when not nil, is filled with what follows from the change.
	Report *Consequences
	// Check judges the class that PutClass is about to replace, as it stands while
	// nobody else can change it (a new one: in serial, with nothing declared). Its
	// error refuses the change; nil means no check.
	Check func(old lanegate.Class) error
	// KeepPaused: the spec given to PutClass says nothing about paused, which people
	// set and unset while the gateway runs; a class stays paused or not.
	KeepPaused bool
	// unattended: no person can be asked; consequences are applied, recorded and alarmed.
	unattended bool
}

// change runs fn under the admission row and judges what it does to the lanes'
// widths, see judgeWidths. The whole change stands or falls together; it is
// counted and logged once it stands. Whoever waits is woken afterwards, as any
// limit may have moved. The store may run fn more than once. A dry run goes the
// whole way and is then rolled back.
func (s *Service) change(ctx context.Context, o ChangeOptions, fn func(tx ConfigTx, cfg Config) error) error {
	var lanes []lanegate.Lane
	var classes []lanegate.Class
	var events []HistoryEvent
	err := s.store.Change(ctx, func(real ConfigTx) error {
		tx := &recordingTx{ConfigTx: real}
		before, err := tx.Config()
		if err != nil {
			return err
		}
		if err := fn(tx, before); err != nil {
			return err
		}
		after, err := tx.Config()
		if err != nil {
			return err
		}
		if o.Report != nil {
			if *o.Report, err = consequencesOf(tx, before, after); err != nil {
				return err
			}
		}
		widths, unasked, err := judgeWidths(before, after, o)
		if err != nil {
			return err
		}
		if o.DryRun && o.Report != nil {
			o.Report.Needs = needsOf(tx.events, unasked, o)
		}
		for _, e := range widths {
			if err := tx.AppendHistory(e); err != nil {
				return err
			}
		}
		if o.DryRun {
			return errDryRun
		}
		lanes, classes, events = after.Lanes, after.Classes, tx.events
		return nil
	})
	if o.DryRun && errors.Is(err, errDryRun) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range events {
		s.announce(ctx, e)
	}
	s.metrics.prime(classes, lanes)
	s.ringAll(lanes)
	return nil
}

// needsOf lists what the person who tries a change must accept to make it.
func needsOf(events []HistoryEvent, unasked bool, o ChangeOptions) []string {
	var needs []string
	if !o.Demote && slices.ContainsFunc(events, func(e HistoryEvent) bool {
		return e.Event == eventDemoted && e.Evidence["cause"] == CauseFingerprint
	}) {
		needs = append(needs, NeedsDemote)
	}
	if unasked {
		needs = append(needs, NeedsWidth)
	}
	return needs
}

// errDryRun ends the transaction of a dry run that would have gone through.
var errDryRun = errors.New("dry run: everything was judged, nothing is kept")

// Events of a history that are announced, too.
const (
	eventCreated         = "created"
	eventPromoted        = "promoted"
	eventDemoted         = "demoted"
	eventWidthLowered    = "width_lowered"
	eventWidthOvercommit = "width_overcommitted"
)

// Subjects of histories are these, with a name behind.
const (
	classSubject    = "class:"
	laneSubject     = "lane:"
	resourceSubject = "resource:"
)

// recordingTx remembers what a change wrote into the history, so that it can be
// announced once the change is committed.
type recordingTx struct {
	ConfigTx
	events []HistoryEvent
}

// AppendHistory implements ConfigTx.
func (t *recordingTx) AppendHistory(e HistoryEvent) error {
	if err := t.ConfigTx.AppendHistory(e); err != nil {
		return err
	}
	t.events = append(t.events, e)
	return nil
}

// announce counts and logs what somebody should hear of although nobody asked.
func (s *Service) announce(ctx context.Context, e HistoryEvent) {
	log := s.log.With("subject", e.Subject, "actor", e.Actor, "reason", e.Reason, "evidence", e.Evidence)
	class, ofClass := strings.CutPrefix(e.Subject, classSubject)
	switch {
	case e.Event == eventPromoted:
		log.InfoContext(ctx, "class promoted")
	case e.Event == eventDemoted:
		cause, _ := e.Evidence["cause"].(string)
		s.metrics.demoted(class, cause)
		if cause == CauseManual {
			log.InfoContext(ctx, "class demoted by a person")
		} else {
			log.WarnContext(ctx, "class demoted: its proof no longer holds")
		}
	case e.Event == eventWidthLowered:
		log.WarnContext(ctx, "lane width lowered")
	case e.Event == eventWidthOvercommit:
		log.WarnContext(ctx, "lane width is above what the resources allow")
	case ofClass && e.Actor == ActorFile && (e.Event == pausedEvent(true) || e.Event == pausedEvent(false)):
		log.WarnContext(ctx, "class paused or resumed by the config file", "event", e.Event)
	case e.Event == eventCreated && ofClass && e.Actor == ActorLanegate:
		log.WarnContext(ctx, "class created on its first submission; it runs in serial")
	}
}

// judgeWidths compares the lanes' widths before and after a change. A person is
// refused, and asked:
//
//   - ErrWidthOvercommit where an explicit width that this change sets is above
//     the arithmetic and the lane doesn't allow it;
//   - ErrWidthLowered, without AcceptWidth, where the width in force of a lane
//     goes down, or an explicit width comes to be above the arithmetic, because
//     of something else that changes.
//
// What was accepted, or can't be asked about, is returned for the lanes' history.
// A dry run refuses nothing that could be accepted: needs says that something
// was. A lane that is deleted or edited itself is what was asked for; one that no
// class is in any more bothers nobody.
func judgeWidths(before, after Config, o ChangeOptions) (events []HistoryEvent, needs bool, err error) {
	events, unasked, over := weighWidths(before, after, o)
	switch {
	case over != nil:
		return nil, false, overcommitted(*over)
	case len(unasked) > 0 && !o.DryRun:
		return nil, false, widthLowered(unasked)
	}
	return events, len(unasked) > 0, nil
}

// weighWidths is judgeWidths without the refusals: unasked has what a person must
// accept first, by lane, and over the width that can't be accepted at all.
func weighWidths(before, after Config, o ChangeOptions) (events []HistoryEvent, unasked []map[string]any, over *admission.Width) {
	wb := admission.Widths(before.Lanes, before.Classes, before.Resources)
	wa := admission.Widths(after.Lanes, after.Classes, after.Resources)
	for _, l := range after.Lanes {
		old, err := before.findLane(l.Name)
		set := err != nil || old.WidthSetting != l.WidthSetting || old.AllowOvercommit && !l.AllowOvercommit
		if w := wa[l.Name]; set && w.Overcommitted && !l.AllowOvercommit && !o.unattended {
			return nil, nil, &w
		}
		if !after.uses(l.Name) {
			continue
		}
		wasOver := wb[l.Name].Overcommitted && before.uses(l.Name)
		event, evidence := widthEvent(wb[l.Name], wa[l.Name], set, wasOver)
		if event == "" {
			continue
		}
		if !o.AcceptWidth && !o.unattended && !set && !(event == eventWidthOvercommit && l.AllowOvercommit) {
			unasked = append(unasked, maps.Clone(evidence))
			unasked[len(unasked)-1]["lane"] = l.Name
		}
		events = append(events, HistoryEvent{
			Subject: laneSubject + l.Name, Event: event, Actor: o.Actor, Reason: o.Reason, Evidence: evidence,
		})
	}
	return events, unasked, nil
}

// widthEvent is what a change did to one lane's width, "" when nothing worth a
// record. set says that the change set the width itself, wasOver that the lane
// was above the arithmetic before.
func widthEvent(before, after admission.Width, set, wasOver bool) (event string, evidence map[string]any) {
	switch {
	case after.Overcommitted && (set || !wasOver):
		return eventWidthOvercommit, map[string]any{"width": after.InForce, "arithmetic": after.Auto, "sum": after.Sentence}
	case after.InForce < before.InForce && !set:
		return eventWidthLowered, map[string]any{"before": before.InForce, "after": after.InForce}
	}
	return "", nil
}

func overcommitted(w admission.Width) error {
	return lanegate.ErrWidthOvercommit.Detail("lane", w.Lane).Detail("width", w.InForce).Detail("arithmetic", w.Auto).
		With("width %d of lane %s is above what the resources allow: %s. Choose at most %d, or set allow_overcommit.", w.InForce, w.Lane, w.Sentence, w.Auto)
}

// widthLowered is the refusal that names the lanes a person was not asked about.
func widthLowered(lanes []map[string]any) error {
	e := lanegate.ErrWidthLowered.Detail("lanes", lanes)
	first := lanes[0]
	if width, over := first["width"]; over {
		return e.With("this change would leave lane %s with width %d where the resources allow %d. Repeat with ?accept=width if that is meant.",
			first["lane"], width, first["arithmetic"])
	}
	return e.With("this change would lower the width in force of lane %s from %d to %d. Repeat with ?accept=width if that is meant.",
		first["lane"], first["before"], first["after"])
}

// uses says whether a class is in the lane.
func (c Config) uses(lane string) bool {
	return slices.ContainsFunc(c.Classes, func(k lanegate.Class) bool { return k.Lane == lane })
}

// findClass returns the class or lanegate.ErrClassNotFound.
func (c Config) findClass(id string) (lanegate.Class, error) {
	for _, k := range c.Classes {
		if k.ID == id {
			return k, nil
		}
	}
	return lanegate.Class{}, lanegate.ErrClassNotFound.With("there is no job class %q; GET /job-classes lists them.", id)
}

func (c Config) findLane(name string) (lanegate.Lane, error) {
	for _, l := range c.Lanes {
		if l.Name == name {
			return l, nil
		}
	}
	return lanegate.Lane{}, lanegate.ErrLaneNotFound.With("there is no lane %q; GET /lanes lists them.", name)
}

func (c Config) findResource(name string) (lanegate.Resource, error) {
	for _, r := range c.Resources {
		if r.Name == name {
			return r, nil
		}
	}
	return lanegate.Resource{}, lanegate.ErrResourceNotFound.With("there is no resource %q; GET /resources lists them.", name)
}

// faultsOf returns every reason why spec can't be taken.
func (c Config) faultsOf(spec lanegate.ClassSpec) []lanegate.FieldError {
	errs := append(spec.Validate(), c.unknownUnits(spec.Units)...)
	return append(errs, verification.CheckPhrases(spec)...)
}

// unknownUnits names the units whose resource does not exist.
func (c Config) unknownUnits(u lanegate.Units) []lanegate.FieldError {
	var errs []lanegate.FieldError
	for _, name := range slices.Sorted(maps.Keys(u)) {
		if _, err := c.findResource(name); err != nil {
			errs = append(errs, lanegate.FieldError{
				Pointer: "/units/" + name,
				Detail:  fmt.Sprintf("there is no resource %q; create it first with PUT /resources/%s", name, name),
			})
		}
	}
	return errs
}
