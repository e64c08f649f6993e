package service

import (
	"context"
	"fmt"
	"strings"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// help says what a person can do for the classes that are or will be late.
func (s *Service) help(ctx context.Context, in admission.Input, worried []string, list []Freshness) error {
	standings, err := s.Standings(ctx, worried)
	if err != nil {
		return err
	}
	classes := map[string]lanegate.Class{}
	for _, c := range in.Classes {
		classes[c.ID] = c
	}
	for i := range list {
		if fr := &list[i]; fr.Status != Fresh {
			fr.Help = helpFor(*fr, classes[fr.Class], standings[fr.Class])
		}
	}
	return nil
}

func helpFor(fr Freshness, c lanegate.Class, st Standing) []Help {
	var list []Help
	add := func(action, command, format string, args ...any) {
		list = append(list, Help{Action: action, Sentence: fmt.Sprintf(format, args...), Command: command})
	}
	if c.Paused {
		add("resume", "", "%s is paused and starts nothing: POST /job-classes/%s/resume.", c.ID, c.ID)
	}
	if len(fr.Running) > 0 {
		return list
	}
	if len(fr.Queued) == 0 {
		add("submit", "lanegate submit "+c.ID, "Nothing is queued or running: submit a job, and look at the scheduler that should have.")
		return list
	}
	before, running := 0, []InTheWay{}
	for _, w := range fr.InTheWay {
		before += w.Queued
		if len(w.Running) > 0 {
			running = append(running, w)
		}
	}
	if before > 0 {
		add("run_next", "", "%s before it: POST /jobs/%s/run-next lets it go first when the lane is free.", plural(before, "queued job"), fr.Queued[0])
	}
	if len(running) == 0 {
		return list
	}
	if c.Lane == lanegate.LaneSerial {
		if st.Latest != nil && st.Latest.Verdict == lanegate.VerdictPassed && st.Copies > 0 {
			add("promote", "lanegate promote "+c.ID, "It has passed verification: promoted, it does not wait for serial.")
		} else {
			add("verify", verifyBeside(c.ID, running), "So that it need not wait for %s again, verify it beside that, and promote it.", running[0].Class)
		}
	}
	add("cancel", "", "If it can't wait: POST /jobs/%s/cancel ends what runs of %s.", running[0].Running[0], running[0].Class)
	return list
}

// verifyBeside is the command that verifies a class beside those that it waits for.
func verifyBeside(class string, running []InTheWay) string {
	const most = 3
	words := []string{"lanegate verify", class}
	for _, w := range running[:min(most, len(running))] {
		if w.Class != class {
			words = append(words, "--alongside "+w.Class)
		}
	}
	return strings.Join(words, " ") + " --copies 1"
}
