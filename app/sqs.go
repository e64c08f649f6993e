package app

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/worker/runner"
)

// endpoint is how all parts of this process reach SQS.
func (c *Config) sqsEndpoint() queue.SQSEndpoint {
	return queue.SQSEndpoint{Region: c.SQS.Region, URL: c.SQS.Endpoint, AllowHTTP: c.SQS.AllowHTTP}
}

// usesSQS names what the configuration wants SQS for, beside the doorbell.
func (c *Config) usesSQS() []string {
	var uses []string
	for _, id := range slices.Sorted(maps.Keys(c.Classes)) {
		if c.Classes[id].Run.Kind == lanegate.RunSQS {
			uses = append(uses, "class "+id)
		}
	}
	if c.DefaultTarget != nil && c.DefaultTarget.Run.Kind == lanegate.RunSQS {
		uses = append(uses, "default_target")
	}
	return uses
}

// buildSQSTargets makes this process one that runs classes of kind sqs, if it knows
// how to reach SQS. Where it does not, that is no fault: another one may.
func (a *App) buildSQSTargets(ctx context.Context, cfg Config) {
	if cfg.NoWorkers {
		return
	}
	sender, err := queue.OpenSender(ctx, queue.SenderOptions{SQSEndpoint: cfg.sqsEndpoint(), Registerer: a.registry})
	if err != nil {
		if uses := cfg.usesSQS(); len(uses) > 0 {
			a.log.WarnContext(ctx, "this process runs no classes of kind sqs: it does not know how to reach SQS", "wanted_by", strings.Join(uses, ", "), "err", err)
		}
		return
	}
	a.runners.sqs = runner.NewSQS(runner.SQSOptions{Sender: sender, PublicURL: cfg.PublicURL, Logger: a.log})
	if uses := cfg.usesSQS(); len(uses) > 0 {
		a.log.InfoContext(ctx, "sqs targets", "endpoint", sender.Endpoint, "region", sender.Region, "wanted_by", strings.Join(uses, ", "))
	}
}

// offers are what this process's worker says it can run.
func (r *runners) offers() map[string]string {
	offers := r.catalogue.Digests()
	if r.sqs != nil {
		offers = maps.Clone(offers)
		offers[admission.SQSTargets] = ""
	}
	return offers
}
