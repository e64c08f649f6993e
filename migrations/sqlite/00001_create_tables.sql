-- Conventions. Times are text in one fixed-width UTC form with microseconds, so
-- that they sort as text; flags are 0 or 1; every table is STRICT. Payloads and
-- results are blobs: the very bytes that came in. A time that never comes
-- ('9999-…' in jobs.first_at) stands for "none" where a NULL would not sort.

-- +goose Up

-- The one row that every admission and every change of a limit locks first.
CREATE TABLE admission (
    id      integer PRIMARY KEY,
    version integer NOT NULL,
    CONSTRAINT admission_one_row_check CHECK (id = 1)
) STRICT;
INSERT INTO admission (id, version) VALUES (1, 1);

CREATE TABLE lanes (
    name             text    PRIMARY KEY NOT NULL,
    width            integer NOT NULL, -- 0: the arithmetic's width
    allow_overcommit integer NOT NULL DEFAULT 0,
    ordering         text    NOT NULL,
    queue            text    NOT NULL DEFAULT '',
    paused           integer NOT NULL DEFAULT 0,
    when_unavailable text    NOT NULL DEFAULT 'serial',
    managed_by       text    NOT NULL DEFAULT 'api',
    created_at       text    NOT NULL,
    updated_at       text    NOT NULL,
    last_served_at   text, -- when the last worker that served it left
    CONSTRAINT lanes_width_check CHECK (width >= 0),
    CONSTRAINT lanes_serial_check CHECK (name <> 'serial' OR (width = 1 AND ordering = 'fifo')),
    CONSTRAINT lanes_flags_check CHECK (allow_overcommit IN (0, 1) AND paused IN (0, 1)),
    CONSTRAINT lanes_ordering_check CHECK (ordering IN ('fifo', 'fair')),
    CONSTRAINT lanes_when_unavailable_check CHECK (when_unavailable IN ('serial', 'wait')),
    CONSTRAINT lanes_managed_by_check CHECK (managed_by IN ('api', 'file'))
) STRICT;
INSERT INTO lanes (name, width, ordering, created_at, updated_at)
VALUES ('serial',   1, 'fifo', strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z', strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z'),
       ('parallel', 0, 'fair', strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z', strftime('%Y-%m-%dT%H:%M:%f', 'now') || '000Z');

CREATE TABLE resources (
    name       text    PRIMARY KEY NOT NULL,
    capacity   integer NOT NULL,
    pool       integer NOT NULL DEFAULT 0,
    managed_by text    NOT NULL DEFAULT 'api',
    created_at text    NOT NULL,
    updated_at text    NOT NULL,
    CONSTRAINT resources_capacity_check CHECK (capacity >= 0),
    CONSTRAINT resources_pool_check CHECK (pool IN (0, 1)),
    CONSTRAINT resources_managed_by_check CHECK (managed_by IN ('api', 'file'))
) STRICT;

CREATE TABLE job_classes (
    id             text    PRIMARY KEY NOT NULL,
    spec           text    NOT NULL, -- what people declare, without units
    units          text,             -- NULL: not declared
    lane           text    NOT NULL REFERENCES lanes (name),
    max_in_flight  integer NOT NULL DEFAULT 1,
    managed_by     text    NOT NULL DEFAULT 'api',
    command_digest text    NOT NULL DEFAULT '',
    fingerprint    text    NOT NULL DEFAULT '',
    created_at     text    NOT NULL,
    updated_at     text    NOT NULL,
    CONSTRAINT job_classes_spec_check CHECK (json_valid(spec)),
    CONSTRAINT job_classes_units_check CHECK (units IS NULL OR json_valid(units)),
    CONSTRAINT job_classes_max_in_flight_check CHECK (max_in_flight >= 1),
    CONSTRAINT job_classes_managed_by_check CHECK (managed_by IN ('api', 'file'))
) STRICT;
CREATE INDEX job_classes_lane_idx ON job_classes (lane);

-- The narrow hot row. A queued job has no lane: it follows from its class.
CREATE TABLE jobs (
    id               text    PRIMARY KEY NOT NULL,
    class            text    NOT NULL,
    client           text    NOT NULL,
    idempotency_key  text    NOT NULL DEFAULT '',
    logical_date     text    NOT NULL DEFAULT '',
    place_id         text    NOT NULL,
    blocked_by       text    NOT NULL DEFAULT '',
    verification     text    NOT NULL DEFAULT '',
    run_at           text,
    submitted_at     text    NOT NULL,
    ready_at         text    NOT NULL,
    place_at         text    NOT NULL,
    first_at         text    NOT NULL DEFAULT '9999-12-31T00:00:00.000000Z',
    failures         integer NOT NULL DEFAULT 0,
    extra_attempts   integer NOT NULL DEFAULT 0,
    losses           integer NOT NULL DEFAULT 0,
    deferrals        integer NOT NULL DEFAULT 0,
    interruptions    integer NOT NULL DEFAULT 0,
    attempts         integer NOT NULL DEFAULT 0,
    due              integer NOT NULL, -- 0: waits for ready_at; read while queued only
    cancel_requested integer NOT NULL DEFAULT 0,
    state            text    NOT NULL,
    reason           text    NOT NULL DEFAULT '',
    route_lane       text    NOT NULL DEFAULT '',
    route_reason     text    NOT NULL DEFAULT '',
    route_wanted     text    NOT NULL DEFAULT '',
    started_at       text,
    finished_at      text,
    CONSTRAINT jobs_state_check CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'skipped')),
    CONSTRAINT jobs_finished_check CHECK ((finished_at IS NULL) = (state IN ('queued', 'running'))),
    CONSTRAINT jobs_skipped_check CHECK (state <> 'skipped' OR blocked_by <> ''),
    CONSTRAINT jobs_flags_check CHECK (due IN (0, 1) AND cancel_requested IN (0, 1)),
    CONSTRAINT jobs_counters_check CHECK (attempts >= 0 AND failures >= 0 AND extra_attempts >= 0
        AND losses >= 0 AND deferrals >= 0 AND interruptions >= 0)
) STRICT;
-- The line of each class, in order; admission seeks its head. The last columns
-- let counts do without the rows.
CREATE INDEX jobs_line_idx ON jobs (class, first_at, place_at, place_id, ready_at, state, due) WHERE state = 'queued' AND due;
-- What waits for its time, soonest first.
CREATE INDEX jobs_ready_idx ON jobs (ready_at, place_at, place_id, class, state, due) WHERE state = 'queued' AND NOT due;
CREATE INDEX jobs_class_idx ON jobs (class, id);
CREATE INDEX jobs_state_idx ON jobs (state, id);
CREATE INDEX jobs_finished_idx ON jobs (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE job_payloads (
    job_id  text PRIMARY KEY NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    payload blob NOT NULL
) STRICT;

CREATE TABLE job_results (
    job_id text PRIMARY KEY NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    result blob NOT NULL
) STRICT;

CREATE TABLE attempts (
    job_id           text    NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number           integer NOT NULL,
    token            text    NOT NULL,
    class            text    NOT NULL,
    lane             text    NOT NULL,
    route_reason     text    NOT NULL DEFAULT '',
    route_wanted     text    NOT NULL DEFAULT '',
    units            text    NOT NULL, -- as written at the start; never follows the class
    fingerprint      text    NOT NULL,
    worker           text    NOT NULL, -- no reference: the worker's row may be gone
    verification     text    NOT NULL DEFAULT '',
    detached         integer NOT NULL DEFAULT 0,
    heartbeat_by     text,
    cancel_requested integer NOT NULL DEFAULT 0,
    ready_at         text    NOT NULL,
    started_at       text    NOT NULL,
    ended_at         text,
    outcome          text, -- NULL: in flight
    duration         integer NOT NULL DEFAULT 0, -- nanoseconds
    estimated        integer NOT NULL DEFAULT 0,
    error            text    NOT NULL DEFAULT '',
    exit_code        integer,
    signal           text    NOT NULL DEFAULT '',
    status           integer NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, number),
    CONSTRAINT attempts_number_check CHECK (number >= 1),
    CONSTRAINT attempts_token_check CHECK (token <> ''),
    CONSTRAINT attempts_units_check CHECK (json_valid(units)),
    CONSTRAINT attempts_flags_check CHECK (detached IN (0, 1) AND cancel_requested IN (0, 1) AND estimated IN (0, 1)),
    CONSTRAINT attempts_outcome_check CHECK (outcome IN ('succeeded', 'failed', 'timed_out', 'deferred', 'cancelled', 'interrupted', 'lost')),
    CONSTRAINT attempts_ended_check CHECK ((outcome IS NULL) = (ended_at IS NULL))
) STRICT;
-- In flight is counted from here; a job has at most one such attempt.
CREATE UNIQUE INDEX attempts_in_flight_idx ON attempts (job_id) WHERE outcome IS NULL;
CREATE INDEX attempts_worker_idx ON attempts (worker) WHERE outcome IS NULL;

CREATE TABLE attempt_outputs (
    job_id  text    NOT NULL,
    number  integer NOT NULL,
    head    text    NOT NULL,
    tail    text    NOT NULL,
    bytes   integer NOT NULL,
    dropped integer NOT NULL,
    PRIMARY KEY (job_id, number),
    FOREIGN KEY (job_id, number) REFERENCES attempts (job_id, number) ON DELETE CASCADE
) STRICT;

CREATE TABLE workers (
    id         text    PRIMARY KEY NOT NULL,
    host       text    NOT NULL,
    pid        integer NOT NULL,
    lanes      text, -- NULL: all
    slots      integer NOT NULL,
    commands   text    NOT NULL,
    beat       integer NOT NULL,
    draining   integer NOT NULL DEFAULT 0,
    started_at text    NOT NULL,
    beat_at    text    NOT NULL,
    ended_at   text,
    CONSTRAINT workers_lanes_check CHECK (lanes IS NULL OR json_valid(lanes)),
    CONSTRAINT workers_commands_check CHECK (json_valid(commands)),
    CONSTRAINT workers_draining_check CHECK (draining IN (0, 1))
) STRICT;
CREATE INDEX workers_live_idx ON workers (id) WHERE ended_at IS NULL;

-- One row per finished attempt; no reference to jobs, which go earlier.
CREATE TABLE run_log (
    id           integer PRIMARY KEY,
    job_id       text    NOT NULL,
    attempt      integer NOT NULL,
    class        text    NOT NULL,
    lane         text    NOT NULL,
    fingerprint  text    NOT NULL,
    units        text    NOT NULL,
    submitted_at text,
    ready_at     text,
    started_at   text    NOT NULL,
    ended_at     text    NOT NULL,
    duration     integer NOT NULL, -- nanoseconds
    estimated    integer NOT NULL DEFAULT 0,
    outcome      text    NOT NULL,
    verification text    NOT NULL DEFAULT '',
    source       text    NOT NULL,
    CONSTRAINT run_log_units_check CHECK (json_valid(units)),
    CONSTRAINT run_log_estimated_check CHECK (estimated IN (0, 1)),
    CONSTRAINT run_log_outcome_check CHECK (outcome IN ('succeeded', 'failed', 'timed_out', 'deferred', 'cancelled', 'interrupted', 'lost')),
    CONSTRAINT run_log_source_check CHECK (source IN ('own', 'import'))
) STRICT;
CREATE UNIQUE INDEX run_log_job_attempt_idx ON run_log (job_id, attempt) WHERE source = 'own';
CREATE INDEX run_log_ended_idx ON run_log (ended_at, id);
CREATE INDEX run_log_class_ended_idx ON run_log (class, ended_at, id);

-- The last success of each class; outlives the run log's retention.
CREATE TABLE class_successes (
    class    text PRIMARY KEY NOT NULL,
    ended_at text NOT NULL
) STRICT;

CREATE TABLE history (
    id       integer PRIMARY KEY AUTOINCREMENT,
    at       text NOT NULL,
    subject  text NOT NULL,
    event    text NOT NULL,
    actor    text NOT NULL,
    reason   text NOT NULL DEFAULT '',
    evidence text,
    CONSTRAINT history_evidence_check CHECK (evidence IS NULL OR json_valid(evidence))
) STRICT;
CREATE INDEX history_subject_idx ON history (subject, id);

CREATE TABLE idempotency_keys (
    client text NOT NULL,
    key    text NOT NULL,
    digest blob NOT NULL,
    job_id text NOT NULL,
    PRIMARY KEY (client, key)
) STRICT, WITHOUT ROWID;

-- Heads that are blocked by resources, and since when.
CREATE TABLE blocked_heads (
    job_id text PRIMARY KEY NOT NULL,
    since  text NOT NULL
) STRICT;

CREATE TABLE settings (
    key   text PRIMARY KEY NOT NULL,
    value text NOT NULL
) STRICT;

-- One row that readiness checks write.
CREATE TABLE pings (
    id integer PRIMARY KEY,
    at text NOT NULL,
    CONSTRAINT pings_one_row_check CHECK (id = 1)
) STRICT;

-- +goose Down
DROP TABLE pings;
DROP TABLE settings;
DROP TABLE blocked_heads;
DROP TABLE idempotency_keys;
DROP TABLE history;
DROP TABLE class_successes;
DROP TABLE run_log;
DROP TABLE workers;
DROP TABLE attempt_outputs;
DROP TABLE attempts;
DROP TABLE job_results;
DROP TABLE job_payloads;
DROP TABLE jobs;
DROP TABLE job_classes;
DROP TABLE resources;
DROP TABLE lanes;
DROP TABLE admission;
