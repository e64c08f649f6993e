package main

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/app"
	"github.com/lanegate/lanegate/queue"
	"github.com/lanegate/lanegate/store"
)

// Exit codes of queues, beside the shared ones.
const (
	exitQueuesRefused  = 3
	exitQueuesNoAnswer = 4
)

type queuesCmd struct {
	Create queuesCreateCmd `cmd:"" help:"Make the queues of all lanes, and mend those that are wrong."`
	Check  queuesCheckCmd  `cmd:"" help:"Say what is missing or wrong, including permissions."`
}

func (c *queuesCmd) define() {
	c.Create.define()
	c.Check.define()
}

// queueFlags are what both subcommands take.
type queueFlags struct {
	configFile
	Prefix    string   `help:"Prefix of the queue of a lane that names none, instead of sqs.prefix." placeholder:"TEXT"`
	Region    string   `help:"AWS region, instead of sqs.region." placeholder:"NAME"`
	Endpoint  string   `help:"SQS endpoint, instead of sqs.endpoint." placeholder:"URL"`
	AllowHTTP bool     `name:"allow-http" help:"Allow an endpoint without TLS, for a test server, as sqs.allow_http."`
	Lane      []string `help:"A lane that neither the file nor the database lists, and its queue if it isn't named after it. May be repeated." placeholder:"LANE[=QUEUE]"`
	kong.Plugins
	flags settingFlags
}

func (f *queueFlags) define() { f.flags, f.Plugins = newSettingFlags("database") }

const queuesHelp = `The lanes are those built in, those of the config file and those in its database, which may be in use meanwhile; --lane adds others.
What the file and LANEGATE_SQS_* don't say (region, endpoint) and the credentials are searched as every AWS program does: environment, shared files, container, instance.

Exit codes: 0 all is well, 1 something is missing or wrong, 2 wrong usage or configuration, 3 AWS refuses this identity, 4 no answer.`

type queuesCreateCmd struct {
	queueFlags
	DeadLetter bool `help:"Give each queue a dead-letter queue, named after it with -dead, that keeps messages for 14 days."`
}

// Help implements kong.HelpProvider.
func (queuesCreateCmd) Help() string {
	return "Doing it again changes nothing. Settings of a queue that the doorbell can live with stay as they are.\n\n" + queuesHelp
}

// Run makes what is missing.
func (c *queuesCreateCmd) Run(ctx context.Context, t terminal) error {
	return c.with(ctx, t, func(a *queue.Admin, lanes []lanegate.Lane) []queue.Report {
		return a.Create(ctx, lanes, c.DeadLetter)
	})
}

type queuesCheckCmd struct {
	queueFlags
	ReadOnly bool `help:"Only look at the queues: send no test bell, so permissions to send, receive and delete stay untried."`
}

// Help implements kong.HelpProvider.
func (queuesCheckCmd) Help() string {
	return "Sends one bell to each queue, receives it and deletes it: a worker may wake for nothing, which is harmless. Run it with the gateway's own identity.\n\n" + queuesHelp
}

// Run prints what it finds.
func (c *queuesCheckCmd) Run(ctx context.Context, t terminal) error {
	return c.with(ctx, t, func(a *queue.Admin, lanes []lanegate.Lane) []queue.Report {
		return a.Check(ctx, lanes, !c.ReadOnly)
	})
}

// with finds the lanes, lets do report on them and prints that.
func (f *queueFlags) with(ctx context.Context, t terminal, do func(*queue.Admin, []lanegate.Lane) []queue.Report) error {
	cfg, err := app.Load(f.sources(t, f.flags))
	if err != nil {
		return err
	}
	lanes, err := f.lanes(ctx, t, cfg)
	if err != nil {
		return err
	}
	admin, err := queue.OpenAdmin(ctx, queue.AdminOptions{
		SQSEndpoint: queue.SQSEndpoint{
			Region: cmp.Or(f.Region, cfg.SQS.Region), URL: cmp.Or(f.Endpoint, cfg.SQS.Endpoint), AllowHTTP: f.AllowHTTP || cfg.SQS.AllowHTTP,
		},
		Prefix: cmp.Or(f.Prefix, cfg.SQS.Prefix),
	})
	if err != nil {
		return usagef("%w", err)
	}
	t.printf("endpoint %s, region %s\n", admin.Endpoint, admin.Region)
	worst := queue.LevelOK
	for _, r := range do(admin, lanes) {
		worst = max(worst, r.Worst())
		writeReport(t, r)
	}
	if code := queuesExit(worst); code != exitOK {
		return &codedError{code: code}
	}
	return nil
}

// lanes are all lanes by name; a flag wins over the file, which wins over the database.
func (f *queueFlags) lanes(ctx context.Context, t terminal, cfg app.Config) ([]lanegate.Lane, error) {
	byName := map[string]lanegate.Lane{}
	add := func(lanes []lanegate.Lane) {
		for _, l := range lanes {
			byName[l.Name] = l
		}
	}
	add([]lanegate.Lane{{Name: lanegate.LaneSerial}, {Name: lanegate.LaneParallel}})
	stored, err := store.ReadLanes(ctx, cfg.Database)
	if err != nil {
		t.notef("lanegate: lanes that were made over the API are left out: %v\n", err)
	}
	add(stored)
	add(cfg.FileConfig().Lanes) // what serve will write into the database at its next start
	for _, text := range f.Lane {
		name, queueName, _ := strings.Cut(text, "=")
		if !lanegate.ValidSlug(name) {
			return nil, usagef("--lane %s: %q is not a lane's name ([a-z0-9][a-z0-9._-]{0,62})", text, name)
		}
		add([]lanegate.Lane{{Name: name, Queue: queueName}})
	}
	lanes := make([]lanegate.Lane, 0, len(byName))
	for _, l := range byName {
		lanes = append(lanes, l)
	}
	slices.SortFunc(lanes, func(a, b lanegate.Lane) int { return strings.Compare(a.Name, b.Name) })
	return lanes, nil
}

func writeReport(t terminal, r queue.Report) {
	if len(r.Findings) == 0 {
		t.printf("%s: %s: ok\n", r.Lane, r.Queue)
		return
	}
	for _, f := range r.Findings {
		level := map[queue.Level]string{
			queue.LevelOK: "", queue.LevelNote: "note: ", queue.LevelWrong: "WRONG: ", queue.LevelRefused: "REFUSED: ", queue.LevelNoAnswer: "NO ANSWER: ",
		}[f.Level]
		t.printf("%s: %s: %s%s\n", r.Lane, r.Queue, level, f.Text)
	}
}

func queuesExit(worst queue.Level) int {
	switch worst {
	case queue.LevelOK, queue.LevelNote:
		return exitOK
	case queue.LevelRefused:
		return exitQueuesRefused
	case queue.LevelNoAnswer:
		return exitQueuesNoAnswer
	default:
		return exitError
	}
}
