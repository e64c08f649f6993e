package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/api"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/service"
)

// Intake is a declared queue whose messages become jobs.
type Intake struct {
	Queue string `yaml:"queue"` // name or URL
	// Name for people; the queue's own when left out.
	Name string `yaml:"name"`
	// As is "submission": each body is one, as POST /jobs takes it. Or Class is the
	// class of all jobs, with the bodies as their payloads.
	As    string `yaml:"as"`
	Class string `yaml:"class"`
	// Body, with Class, is "json" (the default) or "text", which becomes a JSON string.
	Body string `yaml:"body"`
	// Key is where the idempotency key is: "attribute:NAME" or "field:/pointer"; the
	// message's id when left out.
	Key string `yaml:"key"`
	// Classes that submissions may name; all when left out.
	Classes []string `yaml:"classes"`
}

// name is what metrics, logs and jobs call it.
func (i Intake) name() string {
	if i.Name != "" {
		return i.Name
	}
	return lanegate.QueueName(i.Queue)
}

const asSubmission = "submission"

// longestRetention is for how long SQS keeps a message at most.
const longestRetention = 14 * 24 * time.Hour

func (c *Config) checkIntake(f *faults) {
	names := map[string]int{}
	for i, in := range c.Intake {
		key := fmt.Sprintf("intake[%d]", i)
		bad := func(field, format string, args ...any) {
			f.add(c.sourceOf(key+field), key+field, format, args...)
		}
		if in.Queue == "" {
			bad(".queue", "is required: the name of a queue, or its URL")
		} else if fault := lanegate.CheckQueue(in.Queue); fault != "" {
			bad(".queue", "%s", fault)
		}
		if in.Name != "" && !lanegate.ValidSlug(in.Name) {
			bad(".name", "%s", badName)
		}
		if first, dup := names[in.name()]; dup && in.Queue != "" {
			bad("", "is called %s, as intake[%d] is already; give one of them a name of its own", in.name(), first)
		} else {
			names[in.name()] = i
		}
		c.checkIntakeForm(in, bad)
	}
	if len(c.Intake) > 0 && c.Retention.Jobs < longestRetention {
		c.warn("retention.jobs (from %s) is less than the 14 days for which SQS may keep a message: one that comes again after its job was removed runs again", c.from("retention.jobs"))
	}
}

// checkIntakeForm judges how messages become jobs.
func (c *Config) checkIntakeForm(in Intake, bad func(field, format string, args ...any)) {
	switch {
	case in.As != "" && in.As != asSubmission:
		bad(".as", "must be %q, not %q; for a fixed class leave it out and give class", asSubmission, in.As)
	case (in.As == "") == (in.Class == ""):
		bad("", "needs either as: submission, where each body is one as POST /jobs takes it, or class: NAME, where the bodies are the payloads")
	case in.Class != "" && !lanegate.ValidSlug(in.Class):
		bad(".class", "%s", badName)
	case in.Class != "" && in.Classes != nil:
		bad(".classes", "is for as: submission; this queue's class is %s", in.Class)
	case in.Class == "" && in.Body != "":
		bad(".body", "is for class; a submission is JSON")
	}
	if in.Body != "" && in.Body != "json" && in.Body != "text" {
		bad(".body", "must be \"json\" or \"text\", not %q", in.Body)
	}
	for i, id := range in.Classes {
		if !lanegate.ValidSlug(id) {
			bad(fmt.Sprintf(".classes[%d]", i), "%s", badName)
		}
	}
	if in.Classes != nil && len(in.Classes) == 0 {
		bad(".classes", "is empty, which permits nothing; leave the key out to permit all")
	}
	if in.Key != "" {
		if _, err := service.ParseKeySource(in.Key); err != nil {
			bad(".key", "%v", err)
		}
	}
}

// rule is how the service makes jobs of the queue's messages.
func (i Intake) rule(maxDepth int) service.Intake {
	r := service.Intake{
		Name: i.name(), Class: i.Class, Text: i.Body == "text", Classes: i.Classes,
		Decode: func(body []byte) (service.Submission, error) { return api.ReadSubmission(body, maxDepth) },
	}
	if i.Key != "" {
		r.Key, _ = service.ParseKeySource(i.Key) // checked by Load
	}
	return r
}

// openIntake opens the configured queues, if there are any.
func (a *App) openIntake(ctx context.Context, cfg Config) error {
	if len(cfg.Intake) == 0 {
		return nil
	}
	o := queue.IntakeOptions{
		SQSEndpoint: cfg.sqsEndpoint(), Ready: a.svc.Ping, Log: a.log, Registerer: a.registry,
		Wait: cfg.SQS.Wait, Visibility: cfg.SQS.Visibility,
	}
	for _, i := range cfg.Intake {
		rule := i.rule(cfg.Limits.Depth)
		o.Queues = append(o.Queues, queue.IntakeQueue{
			Queue: i.Queue, Name: i.name(),
			Take: func(ctx context.Context, messages []service.Arrival) ([]service.Taken, error) {
				return a.svc.TakeIn(ctx, rule, messages)
			},
		})
	}
	in, err := queue.OpenIntake(ctx, o)
	if err != nil {
		return fmt.Errorf("intake: %w", err)
	}
	a.intake = in
	a.closers.push("sqs intake", in.Close)
	return nil
}

// takeIn receives messages until ctx ends.
func (a *App) takeIn(ctx context.Context) {
	if a.intake != nil {
		a.intake.Run(ctx)
	}
}

// intakePart is always well, as the doorbell's: a queue that is missing would
// otherwise take every replica out of service.
func (h *health) intakePart() api.Part {
	p := api.Part{Name: "intake", OK: true, Detail: lanegate.Count(len(h.app.config().Intake), "queue")}
	problems := h.app.intake.Problems()
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		p.Detail += fmt.Sprintf("; %s: %s", name, problems[name])
	}
	return p
}

// intakeQueues are the queues by name and URL, as they are declared.
func (c *Config) intakeQueues() []string {
	var all []string
	for _, i := range c.Intake {
		all = append(all, i.Queue)
	}
	return all
}
