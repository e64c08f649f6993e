package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/service"
)

// servedFor is how long a lane stays available after its last worker left.
const servedFor = 60 * time.Second

// configState is one version of classes, lanes and resources. It is shared and
// never written to after it was read. Lanes lack Available, which no version covers.
type configState struct {
	service.Config
	byID map[string]int // class → index in Classes
	// trials: a verification run may be open. When false there is none at this version.
	trials bool
}

func (c *configState) class(id string) (lanegate.Class, bool) {
	i, ok := c.byID[id]
	if !ok {
		return lanegate.Class{}, false
	}
	return c.Classes[i], true
}

// copied is a copy that callers may keep and change; values inside are shared.
func (c *configState) copied() service.Config {
	return service.Config{
		Version: c.Version, Classes: slices.Clone(c.Classes),
		Lanes: slices.Clone(c.Lanes), Resources: slices.Clone(c.Resources),
	}
}

type classRow struct {
	ID            string                     `db:"id"`
	Spec          dbJSON[lanegate.ClassSpec] `db:"spec"`
	Units         dbJSON[lanegate.Units]     `db:"units"`
	Lane          string                     `db:"lane"`
	MaxInFlight   int                        `db:"max_in_flight"`
	ManagedBy     lanegate.ManagedBy         `db:"managed_by"`
	CommandDigest string                     `db:"command_digest"`
	Fingerprint   string                     `db:"fingerprint"`
	CreatedAt     dbTime                     `db:"created_at"`
	UpdatedAt     dbTime                     `db:"updated_at"`
}

func (r classRow) class() lanegate.Class {
	c := lanegate.Class{
		ID: r.ID, ClassSpec: r.Spec.v, Lane: r.Lane, MaxInFlight: r.MaxInFlight, ManagedBy: r.ManagedBy,
		CommandDigest: r.CommandDigest, Fingerprint: r.Fingerprint, CreatedAt: r.CreatedAt.t, UpdatedAt: r.UpdatedAt.t,
	}
	c.Units = r.Units.v
	return c
}

type laneRow struct {
	Name            string                   `db:"name"`
	Width           int                      `db:"width"`
	AllowOvercommit bool                     `db:"allow_overcommit"`
	Ordering        lanegate.Order           `db:"ordering"`
	Queue           string                   `db:"queue"`
	Paused          bool                     `db:"paused"`
	WhenUnavailable lanegate.WhenUnavailable `db:"when_unavailable"`
	ManagedBy       lanegate.ManagedBy       `db:"managed_by"`
	CreatedAt       dbTime                   `db:"created_at"`
	UpdatedAt       dbTime                   `db:"updated_at"`
}

func (r laneRow) lane() lanegate.Lane {
	return lanegate.Lane{
		Name: r.Name, WidthSetting: r.Width, AllowOvercommit: r.AllowOvercommit, Order: r.Ordering,
		Queue: r.Queue, Paused: r.Paused, WhenUnavailable: r.WhenUnavailable, ManagedBy: r.ManagedBy,
		CreatedAt: r.CreatedAt.t, UpdatedAt: r.UpdatedAt.t,
	}
}

type resourceRow struct {
	Name      string             `db:"name"`
	Capacity  int                `db:"capacity"`
	Pool      bool               `db:"pool"`
	ManagedBy lanegate.ManagedBy `db:"managed_by"`
	CreatedAt dbTime             `db:"created_at"`
	UpdatedAt dbTime             `db:"updated_at"`
}

func (r resourceRow) resource() lanegate.Resource {
	return lanegate.Resource{
		Name: r.Name, Capacity: r.Capacity, Pool: r.Pool, ManagedBy: r.ManagedBy,
		CreatedAt: r.CreatedAt.t, UpdatedAt: r.UpdatedAt.t,
	}
}

const (
	sqlListClasses = `
SELECT id, spec, units, lane, max_in_flight, managed_by, command_digest, fingerprint, created_at, updated_at
  FROM job_classes
 ORDER BY id`
	sqlListLanes = `
SELECT name, width, allow_overcommit, ordering, queue, paused, when_unavailable, managed_by, created_at, updated_at
  FROM lanes
 ORDER BY name`
	sqlListResources = `
SELECT name, capacity, pool, managed_by, created_at, updated_at
  FROM resources
 ORDER BY name`
	sqlListServed = `
SELECT name, last_served_at, queue_seen_at
  FROM lanes`
)

// config returns classes, lanes and resources as of t, from memory when the
// admission row still has the version that was read last.
func (t *tx) config() (*configState, error) {
	if c := t.s.config.Load(); c != nil && c.Version == t.version {
		return c, nil
	}
	c, err := t.readConfig()
	if err != nil {
		return nil, err
	}
	t.s.config.Store(c)
	return c, nil
}

// readConfig reads them anew. The version is older than, or as old as, what is
// read with it, so a state kept under it is never taken for a newer one.
func (t *tx) readConfig() (*configState, error) {
	var classes []classRow
	var lanes []laneRow
	var resources []resourceRow
	for _, q := range []struct {
		dst any
		sql string
	}{{&classes, sqlListClasses}, {&lanes, sqlListLanes}, {&resources, sqlListResources}} {
		if err := t.all(q.dst, q.sql); err != nil {
			return nil, fmt.Errorf("read the configuration: %w", err)
		}
	}
	c := &configState{byID: make(map[string]int, len(classes))}
	c.Version = t.version
	open, err := t.exists(sqlFindOpenVerification)
	if err != nil {
		return nil, fmt.Errorf("look for open verification runs: %w", err)
	}
	c.trials = open
	for i, r := range classes {
		c.Classes, c.byID[r.ID] = append(c.Classes, r.class()), i
	}
	for _, r := range lanes {
		c.Lanes = append(c.Lanes, r.lane())
	}
	for _, r := range resources {
		c.Resources = append(c.Resources, r.resource())
	}
	return c, nil
}

// lanesNow returns the lanes of c with Available as of t: a live worker serves
// the lane, or the last one that did left less than a minute ago; and its queue,
// where lanes have one, has existed.
func (t *tx) lanesNow(c *configState, live []workerRow) ([]lanegate.Lane, error) {
	var served []servedRow
	if err := t.all(&served, sqlListServed); err != nil {
		return nil, fmt.Errorf("read the lanes' last workers: %w", err)
	}
	return t.lanesServed(c, live, served), nil
}

// servedRow says when a lane had a worker last, and when its queue was seen first.
type servedRow struct {
	Name string `db:"name"`
	Last dbTime `db:"last_served_at"`
	Seen dbTime `db:"queue_seen_at"`
}

func (t *tx) lanesServed(c *configState, live []workerRow, served []servedRow) []lanegate.Lane {
	last, unseen := make(map[string]time.Time, len(served)), map[string]bool{}
	for _, r := range served {
		if !r.Last.t.IsZero() {
			last[r.Name] = r.Last.t
		}
		unseen[r.Name] = t.s.opts.QueuedLanes && r.Name != lanegate.LaneSerial && r.Seen.t.IsZero()
	}
	lanes := slices.Clone(c.Lanes)
	for i := range lanes {
		name := lanes[i].Name
		left, ok := last[name]
		lanes[i].Available = !unseen[name] && (ok && t.at.Sub(left) < servedFor ||
			slices.ContainsFunc(live, func(w workerRow) bool { return w.opens(name) }))
	}
	return lanes
}

// Config implements service.Store.
func (s *Store) Config(ctx context.Context) (service.Config, error) {
	var cfg service.Config
	err := s.inRead(ctx, "read the configuration", func(t *tx) (err error) {
		cfg, err = t.configNow()
		return err
	})
	return cfg, err
}

func (t *tx) configNow() (service.Config, error) {
	c, err := t.config()
	if err != nil {
		return service.Config{}, err
	}
	live, err := t.liveWorkers()
	if err != nil {
		return service.Config{}, err
	}
	cfg := c.copied()
	cfg.Lanes, err = t.lanesNow(c, live)
	return cfg, err
}
