package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/lanegate/lanegate/app"
)

type healthCmd struct {
	configFile
	kong.Plugins
	URL     string        `placeholder:"URL" help:"Ask this gateway instead of the one on the configured address."`
	Timeout time.Duration `default:"4s" placeholder:"4s" help:"How long to wait for the answer."`
	flags   settingFlags
}

func (c *healthCmd) define() { c.flags, c.Plugins = newSettingFlags("listen") }

// Help implements kong.HelpProvider.
func (healthCmd) Help() string {
	return `Prints what /healthz answers: each part and whether it is well. Exit 0 when all are, 1 when one is not or nobody answers.

Example, in a Dockerfile:

    HEALTHCHECK CMD ["/lanegate", "health"]`
}

// Run asks once.
func (c *healthCmd) Run(ctx context.Context, t terminal) error {
	base := strings.TrimRight(c.URL, "/")
	if base == "" {
		listen, err := app.ListenAddress(c.sources(t, c.flags))
		if err != nil {
			return err
		}
		base = "http://" + reachable(listen)
	}
	cl := &client{base: base, notef: t.notef, http: &http.Client{}}
	a, err := cl.once(ctx, http.MethodGet, "/healthz", nil, c.Timeout)
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", base, err)
	}
	t.printf("%s\n", strings.TrimSpace(string(a.body)))
	if a.status != http.StatusOK {
		return &codedError{exitError, errors.New("not well: status " + http.StatusText(a.status))}
	}
	return nil
}

// reachable turns an address to listen on into one to connect to: "all
// addresses" can be reached by loopback.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return listen
	}
	if addr, err := netip.ParseAddr(host); host == "" || (err == nil && addr.IsUnspecified()) {
		host = "127.0.0.1"
		if err == nil && addr.Is6() {
			host = "::1"
		}
	}
	return net.JoinHostPort(host, port)
}
