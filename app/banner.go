package app

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// maxBannerClasses bounds the list of classes at start.
const maxBannerClasses = 40

// banner writes, for people, what this process is about to do.
func (a *App) banner(ctx context.Context, w io.Writer) error {
	lanes, err := a.svc.Lanes(ctx)
	if err != nil {
		return err
	}
	classes, next, err := a.svc.Classes(ctx, "", maxBannerClasses)
	if err != nil {
		return err
	}
	c := a.config()
	var b strings.Builder
	base := "http://" + a.Addr()
	fmt.Fprintf(&b, "lanegate %s\n", a.opts.Version)
	fmt.Fprintf(&b, "  listens on  %s   API docs: %s/docs\n", base, base)
	fmt.Fprintf(&b, "  data        %s\n", dataLine(c))
	if c.File != "" {
		fmt.Fprintf(&b, "  config      %s\n", c.File)
	} else {
		b.WriteString("  config      no file (--config FILE): classes come by the API only\n")
	}
	fmt.Fprintf(&b, "  access      %s\n", authLine(c))
	b.WriteString("\n")
	writeLanes(&b, lanes)
	b.WriteString("\n")
	writeClasses(&b, classes, next != "")
	for _, warning := range c.Warnings {
		fmt.Fprintf(&b, "\nwarning: %s\n", warning)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

func dataLine(c *Config) string {
	line := c.ShownDatabase()
	if !c.Postgres() {
		line += " (SQLite)"
	}
	line += "   doorbell: " + c.Doorbell
	if c.NoWorkers {
		line += "   no workers: this process runs no jobs"
	}
	return line
}

func authLine(c *Config) string {
	switch {
	case len(c.Tokens) > 0:
		return lanegate.Count(len(c.Tokens), "token")
	case isLoopback(c.Listen):
		return "no tokens: everybody on this machine may do everything, nobody else can connect"
	}
	return "NO TOKENS, and other machines can connect: everybody may do everything (--insecure-no-auth)"
}

func writeLanes(b *strings.Builder, lanes []service.LaneView) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  lane\twidth\tbecause")
	for _, l := range lanes {
		because := l.Width.Sentence
		switch {
		case l.Name == lanegate.LaneSerial:
			because = "one after the other; every class starts out here"
		case l.Width.Overcommitted:
			because = "MORE THAN THE RESOURCES ALLOW: " + because
		}
		if l.Paused {
			because = "PAUSED; " + because
		}
		fmt.Fprintf(t, "  %s\t%d\t%s\n", l.Name, l.Width.InForce, because)
	}
	t.Flush() // into a strings.Builder, which never fails
}

func writeClasses(b *strings.Builder, classes []lanegate.Class, more bool) {
	if len(classes) == 0 {
		b.WriteString("  no job classes yet: declare them in the config file, or PUT /job-classes/NAME\n")
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  class\tlane\truns")
	for _, c := range classes {
		target, _, _ := strings.Cut(c.Run.URL, "?") // a query may hold a secret
		runs := string(c.Run.Kind) + " " + c.Run.Command + target + c.Run.Queue
		if c.Paused {
			runs += "   PAUSED"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\n", c.ID, c.Lane, runs)
	}
	t.Flush()
	if more {
		b.WriteString("  … and more: GET /job-classes\n")
	}
}
