package store

import (
	"context"
	"errors"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/lanegate/lanegate/service"
)

const sqlBumpVersion = `
UPDATE admission SET version = version + 1
 WHERE id = 1`

// Change implements service.Store.
func (s *Store) Change(ctx context.Context, fn func(tx service.ConfigTx) error) error {
	var refused error // what fn itself said, to be returned as it is
	err := s.inAdmissionTx(ctx, "change the configuration", func(t *tx) error {
		c := &configTx{t: t}
		defer func() { c.t = nil }()
		if refused = fn(c); refused != nil {
			return refused
		}
		return t.one(sqlBumpVersion, nil)
	})
	if refused != nil {
		return refused
	}
	return err
}

// configTx implements service.ConfigTx until its callback has returned.
type configTx struct {
	t       *tx
	changed bool
}

var errChangeOver = errors.New("this change is over: its callback has returned")

// do runs fn on the open transaction and maps its error, as it may become the
// callback's own.
func (c *configTx) do(what string, fn func(t *tx) error) error {
	if c.t == nil {
		return errChangeOver
	}
	if err := fn(c.t); err != nil {
		return c.t.s.mapped(context.Background(), wrap(what, err))
	}
	return nil
}

// write is do for statements after which the configuration must be read anew.
func (c *configTx) write(what string, fn func(t *tx) error) error {
	c.changed = true
	return c.do(what, fn)
}

// Now implements service.ConfigTx.
func (c *configTx) Now() time.Time {
	if c.t == nil {
		return time.Time{}
	}
	return c.t.at
}

// Config implements service.ConfigTx.
func (c *configTx) Config() (cfg service.Config, err error) {
	err = c.do("read the configuration", func(t *tx) error {
		if !c.changed {
			cfg, err = t.configNow()
			return err
		}
		// Not kept in memory: it is nobody else's before the commit.
		state, err := t.readConfig()
		if err != nil {
			return err
		}
		live, err := t.liveWorkers()
		if err != nil {
			return err
		}
		cfg = state.Config
		cfg.Lanes, err = t.lanesNow(state, live)
		return err
	})
	return cfg, err
}

const sqlSaveClass = `
INSERT INTO job_classes (id, spec, units, lane, max_in_flight, managed_by, command_digest, fingerprint, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (id) DO UPDATE SET
       spec = excluded.spec, units = excluded.units, lane = excluded.lane, max_in_flight = excluded.max_in_flight,
       managed_by = excluded.managed_by, command_digest = excluded.command_digest, fingerprint = excluded.fingerprint,
       updated_at = excluded.updated_at`

// SaveClass implements service.ConfigTx. Zero times mean now; a class that exists
// keeps the time it was made. ErrLaneNotFound when its lane does not exist.
func (c *configTx) SaveClass(k lanegate.Class) error {
	return c.write("save class "+k.ID, func(t *tx) error {
		if found, err := t.exists(sqlFindLane, k.Lane); err != nil {
			return err
		} else if !found {
			return lanegate.ErrLaneNotFound.With("there is no lane %q; GET /lanes lists them.", k.Lane)
		}
		spec := k.ClassSpec
		spec.Units = nil // in a column of its own, which tells nil from empty
		return t.one(sqlSaveClass, nil, k.ID, dbJSON[lanegate.ClassSpec]{spec}, dbJSON[lanegate.Units]{k.Units}, k.Lane,
			k.MaxInFlight, managedBy(k.ManagedBy), k.CommandDigest, k.Fingerprint, t.orNow(k.CreatedAt), t.orNow(k.UpdatedAt))
	})
}

// orNow is v, or the transaction's time when v is zero.
func (t *tx) orNow(v time.Time) dbTime {
	if v.IsZero() {
		return at(t.at)
	}
	return at(v)
}

func managedBy(m lanegate.ManagedBy) lanegate.ManagedBy {
	if m == "" {
		return lanegate.ManagedByAPI
	}
	return m
}

const (
	sqlFindLane = `
SELECT name
  FROM lanes
 WHERE name = $1`
	sqlLockClass = `
SELECT id
  FROM job_classes
 WHERE id = $1 {{lock}}`
	// The order leaves no other way to find that there is none.
	sqlFindOpenJob = `
SELECT id
  FROM (SELECT id
          FROM jobs {{use jobs_state_idx}}
         WHERE state = 'queued' AND state || '' <> 'running' AND class >= $1 AND class <= $1
         ORDER BY class
         LIMIT 1) AS queued
 UNION ALL
SELECT job_id
  FROM attempts
 WHERE class = $1 AND outcome IS NULL
 LIMIT 1`
	sqlDeleteClass = `
DELETE FROM job_classes
 WHERE id = $1`
	sqlDeleteSuccess = `
DELETE FROM class_successes
 WHERE class = $1`
)

// exists says whether a statement that selects one text finds a row.
func (t *tx) exists(q string, args ...any) (bool, error) {
	var got string
	return t.get(&got, q, args...)
}

// DeleteClass implements service.ConfigTx. ErrClassNotFound.
func (c *configTx) DeleteClass(id string) error {
	return c.write("delete class "+id, func(t *tx) error {
		// The lock first: a submission on its way holds it.
		if found, err := t.exists(sqlLockClass, id); err != nil {
			return err
		} else if !found {
			return lanegate.ErrClassNotFound
		}
		var job string
		if found, err := t.get(&job, sqlFindOpenJob, id); err != nil {
			return err
		} else if found {
			return lanegate.ErrInUse.With("job %s of class %q is queued or running; cancel it or wait until it has ended.", job, id)
		}
		if _, err := t.exec(sqlDeleteSuccess, id); err != nil {
			return err
		}
		return t.one(sqlDeleteClass, nil, id)
	})
}

const sqlSaveLane = `
INSERT INTO lanes (name, width, allow_overcommit, ordering, queue, paused, when_unavailable, managed_by, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (name) DO UPDATE SET
       width = excluded.width, allow_overcommit = excluded.allow_overcommit, ordering = excluded.ordering,
       queue = excluded.queue, paused = excluded.paused, when_unavailable = excluded.when_unavailable,
       managed_by = excluded.managed_by, updated_at = excluded.updated_at`

// SaveLane implements service.ConfigTx. Available is derived and not kept.
func (c *configTx) SaveLane(l lanegate.Lane) error {
	return c.write("save lane "+l.Name, func(t *tx) error {
		return t.one(sqlSaveLane, nil, l.Name, l.WidthSetting, l.AllowOvercommit, l.Order, l.Queue, l.Paused,
			l.WhenUnavailable, managedBy(l.ManagedBy), t.orNow(l.CreatedAt), t.orNow(l.UpdatedAt))
	})
}

const (
	sqlFindClassInLane = `
SELECT id
  FROM job_classes
 WHERE lane = $1
 LIMIT 1`
	sqlFindAttemptInLane = `
SELECT job_id
  FROM attempts
 WHERE lane = $1 AND outcome IS NULL
 LIMIT 1`
	sqlDeleteLane = `
DELETE FROM lanes
 WHERE name = $1`
)

// DeleteLane implements service.ConfigTx. ErrLaneNotFound, ErrBuiltinLane;
// ErrInUse while a class is in it or an attempt of it is in flight.
func (c *configTx) DeleteLane(name string) error {
	return c.write("delete lane "+name, func(t *tx) error {
		if (lanegate.Lane{Name: name}).Builtin() {
			return lanegate.ErrBuiltinLane
		}
		var user string
		if found, err := t.get(&user, sqlFindClassInLane, name); err != nil {
			return err
		} else if found {
			return lanegate.ErrInUse.With("class %q is in lane %q; demote it first.", user, name)
		}
		if found, err := t.get(&user, sqlFindAttemptInLane, name); err != nil {
			return err
		} else if found {
			return lanegate.ErrInUse.With("job %s still runs in lane %q; wait until it has ended.", user, name)
		}
		return t.one(sqlDeleteLane, lanegate.ErrLaneNotFound, name)
	})
}

const (
	sqlSaveResource = `
INSERT INTO resources (name, capacity, pool, managed_by, created_at, updated_at)
VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (name) DO UPDATE SET
       capacity = excluded.capacity, pool = excluded.pool, managed_by = excluded.managed_by, updated_at = excluded.updated_at`
	sqlDeleteResource = `
DELETE FROM resources
 WHERE name = $1`
)

// SaveResource implements service.ConfigTx.
func (c *configTx) SaveResource(r lanegate.Resource) error {
	return c.write("save resource "+r.Name, func(t *tx) error {
		return t.one(sqlSaveResource, nil, r.Name, r.Capacity, r.Pool, managedBy(r.ManagedBy), t.orNow(r.CreatedAt), t.orNow(r.UpdatedAt))
	})
}

// DeleteResource implements service.ConfigTx. ErrResourceNotFound. Whether a
// class still declares units of it is for the caller to judge.
func (c *configTx) DeleteResource(name string) error {
	return c.write("delete resource "+name, func(t *tx) error {
		return t.one(sqlDeleteResource, lanegate.ErrResourceNotFound, name)
	})
}

// InFlight implements service.ConfigTx.
func (c *configTx) InFlight() (running []admission.Running, err error) {
	err = c.do("read what is in flight", func(t *tx) error {
		running, err = t.inFlight()
		return err
	})
	return running, err
}

// AppendHistory implements service.ConfigTx. A zero At means now; ID is given by the database.
func (c *configTx) AppendHistory(e service.HistoryEvent) error {
	return c.do("append to the history", func(t *tx) error { return t.appendHistory(e) })
}

const (
	sqlGetSetting = `
SELECT value
  FROM settings
 WHERE key = $1`
	sqlSetSetting = `
INSERT INTO settings (key, value)
VALUES ($1, $2)
    ON CONFLICT (key) DO UPDATE SET value = excluded.value`
)

// Setting implements service.ConfigTx.
func (c *configTx) Setting(key string) (value string, err error) {
	err = c.do("read setting "+key, func(t *tx) error {
		_, err := t.get(&value, sqlGetSetting, key)
		return err
	})
	return value, err
}

// SetSetting implements service.ConfigTx.
func (c *configTx) SetSetting(key, value string) error {
	return c.do("set setting "+key, func(t *tx) error { return t.one(sqlSetSetting, nil, key, value) })
}
