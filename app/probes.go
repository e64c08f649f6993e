package app

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/lanegate/lanegate/store/pgprobe"
	"github.com/lanegate/lanegate/worker"
)

// probes are the resources' probes of this process. Runs that were started with
// an earlier set keep what it saw.
type probes struct {
	log *slog.Logger
	set atomic.Pointer[map[string]openProbe]
}

type openProbe struct {
	url   string
	probe *pgprobe.Probe
}

// replace opens the probes of these resources, by name, and closes those that are
// no longer wanted. An error leaves the present set as it is. One caller at a time.
func (p *probes) replace(resources map[string]Resource) error {
	var old map[string]openProbe
	if set := p.set.Load(); set != nil {
		old = *set
	}
	next := map[string]openProbe{}
	var fresh []*pgprobe.Probe
	for name, r := range resources {
		if r.Probe == "" {
			continue
		}
		if o, ok := old[name]; ok && o.url == r.Probe {
			next[name] = o
			continue
		}
		probe, err := pgprobe.Open(pgprobe.Options{Resource: name, URL: r.Probe, Log: p.log})
		if err != nil {
			return errors.Join(fmt.Errorf("resources.%s.probe: %w", name, err), closeAll(fresh))
		}
		fresh = append(fresh, probe)
		next[name] = openProbe{url: r.Probe, probe: probe}
	}
	p.set.Store(&next)
	var gone []*pgprobe.Probe
	for name, o := range old {
		if next[name].probe != o.probe {
			gone = append(gone, o.probe)
		}
	}
	if err := closeAll(gone); err != nil {
		p.log.Warn("closing a probe failed", "err", err)
	}
	return nil
}

func closeAll(list []*pgprobe.Probe) error {
	var errs []error
	for _, p := range list {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// all is what worker.Options.Probes wants.
func (p *probes) all() map[string]worker.Probe {
	set := p.set.Load()
	if set == nil {
		return nil
	}
	all := make(map[string]worker.Probe, len(*set))
	for name, o := range *set {
		all[name] = o.probe
	}
	return all
}

// close ends all of them.
func (p *probes) close() error { return p.replace(nil) }
