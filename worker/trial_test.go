package worker

import (
	"context"
	"testing"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/runner"
)

// panicking is a runner with a fault in it.
type panicking struct{}

func (panicking) Run(context.Context, runner.Job, runner.Lease) lanegate.Ending { panic("a fault") }

// A fault of the gateway says nothing about the data that a check was to judge.
func TestCheckPanics(t *testing.T) {
	w, _ := newTestWorker(newFakeBackend(), func(o *Options) { o.Exec, o.HTTP = panicking{}, panicking{} })
	for _, kind := range []lanegate.RunKind{lanegate.RunExec, lanegate.RunHTTP} {
		e := w.Check(t.Context(), lanegate.Verification{ID: "v"}, 1, lanegate.Run{Kind: kind}, nil)
		if e.Outcome != lanegate.Interrupted || e.ExitCode != nil || e.Error == "" {
			t.Errorf("%s: %+v", kind, e)
		}
	}
}
