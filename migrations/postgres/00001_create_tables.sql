-- Conventions. Times are timestamptz. Texts that are compared or sorted by are
-- COLLATE "C": the order of bytes, as in the planner and on SQLite, whatever the
-- database's locale. Our own metadata is json, which keeps its text and takes any
-- character that jsonb refuses; payloads and results are bytea: the very bytes
-- that came in. A time that never comes ('9999-…' in jobs.first_at) stands for
-- "none" where a NULL would not sort. Tables and columns are those of the SQLite
-- dialect, in the same order.

-- +goose Up

-- The one row that every admission and every change of a limit locks first.
CREATE TABLE admission (
    id      bigint PRIMARY KEY,
    version bigint NOT NULL,
    CONSTRAINT admission_one_row_check CHECK (id = 1)
) WITH (fillfactor = 50);
INSERT INTO admission (id, version) VALUES (1, 1);

CREATE TABLE lanes (
    name             text COLLATE "C" PRIMARY KEY,
    width            bigint      NOT NULL, -- 0: the arithmetic's width
    allow_overcommit boolean     NOT NULL DEFAULT false,
    ordering         text        NOT NULL,
    queue            text        NOT NULL DEFAULT '',
    paused           boolean     NOT NULL DEFAULT false,
    when_unavailable text        NOT NULL DEFAULT 'serial',
    managed_by       text        NOT NULL DEFAULT 'api',
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL,
    last_served_at   timestamptz, -- when the last worker that served it left
    CONSTRAINT lanes_width_check CHECK (width >= 0),
    CONSTRAINT lanes_serial_check CHECK (name <> 'serial' OR (width = 1 AND ordering = 'fifo')),
    CONSTRAINT lanes_ordering_check CHECK (ordering IN ('fifo', 'fair')),
    CONSTRAINT lanes_when_unavailable_check CHECK (when_unavailable IN ('serial', 'wait')),
    CONSTRAINT lanes_managed_by_check CHECK (managed_by IN ('api', 'file'))
);
INSERT INTO lanes (name, width, ordering, created_at, updated_at)
VALUES ('serial',   1, 'fifo', clock_timestamp(), clock_timestamp()),
       ('parallel', 0, 'fair', clock_timestamp(), clock_timestamp());

CREATE TABLE resources (
    name       text COLLATE "C" PRIMARY KEY,
    capacity   bigint      NOT NULL,
    pool       boolean     NOT NULL DEFAULT false,
    managed_by text        NOT NULL DEFAULT 'api',
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    CONSTRAINT resources_capacity_check CHECK (capacity >= 0),
    CONSTRAINT resources_managed_by_check CHECK (managed_by IN ('api', 'file'))
);

CREATE TABLE job_classes (
    id             text COLLATE "C" PRIMARY KEY,
    spec           json        NOT NULL, -- what people declare, without units
    units          json,                 -- NULL: not declared
    lane           text COLLATE "C" NOT NULL REFERENCES lanes (name),
    max_in_flight  bigint      NOT NULL DEFAULT 1,
    managed_by     text        NOT NULL DEFAULT 'api',
    command_digest text        NOT NULL DEFAULT '',
    fingerprint    text        NOT NULL DEFAULT '',
    created_at     timestamptz NOT NULL,
    updated_at     timestamptz NOT NULL,
    CONSTRAINT job_classes_max_in_flight_check CHECK (max_in_flight >= 1),
    CONSTRAINT job_classes_managed_by_check CHECK (managed_by IN ('api', 'file'))
);
CREATE INDEX job_classes_lane_idx ON job_classes (lane);

-- The narrow hot row. A queued job has no lane: it follows from its class. Rows
-- change a few times soon after they were made, then never: they are vacuumed and
-- measured by small shares of the table, whose old rows stand still. What starts and
-- outcomes change stands together behind all else, as an update logs what lies
-- between the first and the last byte that differ. (Databases made before 2026-12
-- have another order, and log more; statements name their columns.)
CREATE TABLE jobs (
    id               text COLLATE "C" PRIMARY KEY,
    class            text COLLATE "C" NOT NULL,
    client           text COLLATE "C" NOT NULL,
    idempotency_key  text COLLATE "C" NOT NULL DEFAULT '',
    logical_date     text COLLATE "C" NOT NULL DEFAULT '',
    place_id         text COLLATE "C" NOT NULL,
    blocked_by       text        NOT NULL DEFAULT '',
    verification     text        NOT NULL DEFAULT '',
    run_at           timestamptz,
    submitted_at     timestamptz NOT NULL,
    ready_at         timestamptz NOT NULL,
    place_at         timestamptz NOT NULL,
    first_at         timestamptz NOT NULL DEFAULT '9999-12-31 00:00:00+00',
    failures         bigint      NOT NULL DEFAULT 0,
    extra_attempts   bigint      NOT NULL DEFAULT 0,
    losses           bigint      NOT NULL DEFAULT 0,
    deferrals        bigint      NOT NULL DEFAULT 0,
    interruptions    bigint      NOT NULL DEFAULT 0,
    attempts         bigint      NOT NULL DEFAULT 0,
    due              boolean     NOT NULL, -- false: waits for ready_at; read while queued only
    cancel_requested boolean     NOT NULL DEFAULT false,
    state            text        NOT NULL,
    reason           text        NOT NULL DEFAULT '',
    route_lane       text        NOT NULL DEFAULT '',
    route_reason     text        NOT NULL DEFAULT '',
    route_wanted     text        NOT NULL DEFAULT '',
    started_at       timestamptz,
    finished_at      timestamptz,
    CONSTRAINT jobs_state_check CHECK (state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'skipped')),
    CONSTRAINT jobs_finished_check CHECK ((finished_at IS NULL) = (state IN ('queued', 'running'))),
    CONSTRAINT jobs_skipped_check CHECK (state <> 'skipped' OR blocked_by <> ''),
    CONSTRAINT jobs_counters_check CHECK (attempts >= 0 AND failures >= 0 AND extra_attempts >= 0
        AND losses >= 0 AND deferrals >= 0 AND interruptions >= 0)
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
-- The line of each class, in order; admission seeks its head.
CREATE INDEX jobs_line_idx ON jobs (class, first_at, place_at, place_id) INCLUDE (ready_at) WHERE state = 'queued' AND due;
-- What waits for its time, soonest first.
CREATE INDEX jobs_ready_idx ON jobs (ready_at, place_at, place_id) INCLUDE (class) WHERE state = 'queued' AND NOT due;
CREATE INDEX jobs_class_idx ON jobs (class, id);
CREATE INDEX jobs_state_idx ON jobs (state, id);
CREATE INDEX jobs_finished_idx ON jobs (finished_at, id) WHERE finished_at IS NOT NULL;

CREATE TABLE job_payloads (
    job_id  text COLLATE "C" PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    payload bytea NOT NULL
);

CREATE TABLE job_results (
    job_id text COLLATE "C" PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    result bytea NOT NULL
);

CREATE TABLE attempts (
    job_id           text COLLATE "C" NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number           bigint      NOT NULL,
    token            text        NOT NULL,
    class            text COLLATE "C" NOT NULL,
    lane             text COLLATE "C" NOT NULL,
    route_reason     text        NOT NULL DEFAULT '',
    route_wanted     text        NOT NULL DEFAULT '',
    units            json        NOT NULL, -- as written at the start; never follows the class
    fingerprint      text        NOT NULL,
    worker           text COLLATE "C" NOT NULL, -- no reference: the worker's row may be gone
    verification     text        NOT NULL DEFAULT '',
    detached         boolean     NOT NULL DEFAULT false,
    heartbeat_by     timestamptz,
    cancel_requested boolean     NOT NULL DEFAULT false,
    ready_at         timestamptz NOT NULL,
    started_at       timestamptz NOT NULL,
    ended_at         timestamptz,
    outcome          text, -- NULL: in flight
    duration         bigint      NOT NULL DEFAULT 0, -- nanoseconds
    estimated        boolean     NOT NULL DEFAULT false,
    error            text        NOT NULL DEFAULT '',
    exit_code        bigint,
    signal           text        NOT NULL DEFAULT '',
    status           bigint      NOT NULL DEFAULT 0,
    PRIMARY KEY (job_id, number),
    CONSTRAINT attempts_number_check CHECK (number >= 1),
    CONSTRAINT attempts_token_check CHECK (token <> ''),
    CONSTRAINT attempts_outcome_check CHECK (outcome IN ('succeeded', 'failed', 'timed_out', 'deferred', 'cancelled', 'interrupted', 'lost')),
    CONSTRAINT attempts_ended_check CHECK ((outcome IS NULL) = (ended_at IS NULL))
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02);
-- In flight is counted from here; a job has at most one such attempt.
CREATE UNIQUE INDEX attempts_in_flight_idx ON attempts (job_id) WHERE outcome IS NULL;
CREATE INDEX attempts_worker_idx ON attempts (worker) WHERE outcome IS NULL;

CREATE TABLE attempt_outputs (
    job_id  text COLLATE "C" NOT NULL,
    number  bigint NOT NULL,
    head    text   NOT NULL,
    tail    text   NOT NULL,
    bytes   bigint NOT NULL,
    dropped bigint NOT NULL,
    PRIMARY KEY (job_id, number),
    FOREIGN KEY (job_id, number) REFERENCES attempts (job_id, number) ON DELETE CASCADE
);

-- Room in each page, as every beat writes its row again.
CREATE TABLE workers (
    id         text COLLATE "C" PRIMARY KEY,
    host       text        NOT NULL,
    pid        bigint      NOT NULL,
    lanes      json, -- NULL: all
    slots      bigint      NOT NULL,
    commands   json        NOT NULL,
    beat       bigint      NOT NULL,
    draining   boolean     NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL,
    beat_at    timestamptz NOT NULL,
    ended_at   timestamptz
) WITH (fillfactor = 50);
CREATE INDEX workers_live_idx ON workers (id) WHERE ended_at IS NULL;

-- One row per finished attempt; no reference to jobs, which go earlier.
CREATE TABLE run_log (
    id           bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    job_id       text COLLATE "C" NOT NULL,
    attempt      bigint      NOT NULL,
    class        text COLLATE "C" NOT NULL,
    lane         text        NOT NULL,
    fingerprint  text        NOT NULL,
    units        json        NOT NULL,
    submitted_at timestamptz,
    ready_at     timestamptz,
    started_at   timestamptz NOT NULL,
    ended_at     timestamptz NOT NULL,
    duration     bigint      NOT NULL, -- nanoseconds
    estimated    boolean     NOT NULL DEFAULT false,
    outcome      text        NOT NULL,
    verification text        NOT NULL DEFAULT '',
    source       text        NOT NULL,
    CONSTRAINT run_log_outcome_check CHECK (outcome IN ('succeeded', 'failed', 'timed_out', 'deferred', 'cancelled', 'interrupted', 'lost')),
    CONSTRAINT run_log_source_check CHECK (source IN ('own', 'import'))
);
CREATE UNIQUE INDEX run_log_job_attempt_idx ON run_log (job_id, attempt) WHERE source = 'own';
CREATE INDEX run_log_ended_idx ON run_log (ended_at, id);
CREATE INDEX run_log_class_ended_idx ON run_log (class, ended_at, id);

-- The last success of each class; outlives the run log's retention.
CREATE TABLE class_successes (
    class    text COLLATE "C" PRIMARY KEY,
    ended_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE history (
    id       bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at       timestamptz NOT NULL,
    subject  text COLLATE "C" NOT NULL,
    event    text        NOT NULL,
    actor    text        NOT NULL,
    reason   text        NOT NULL DEFAULT '',
    evidence json
);
CREATE INDEX history_subject_idx ON history (subject, id);

CREATE TABLE idempotency_keys (
    client text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    digest bytea NOT NULL,
    job_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (client, key)
);

-- Heads that are blocked by resources, and since when.
CREATE TABLE blocked_heads (
    job_id text COLLATE "C" PRIMARY KEY,
    since  timestamptz NOT NULL
);

CREATE TABLE settings (
    key   text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

-- One row that readiness checks write.
CREATE TABLE pings (
    id bigint PRIMARY KEY,
    at timestamptz NOT NULL,
    CONSTRAINT pings_one_row_check CHECK (id = 1)
) WITH (fillfactor = 50);

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
