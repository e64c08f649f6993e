-- +goose Up

-- Verification runs with their evidence, kept for good: no reference to jobs,
-- workers or classes, which go earlier.
CREATE TABLE verification_runs (
    id            text    PRIMARY KEY NOT NULL,
    state         text    NOT NULL,
    verdict       text    NOT NULL DEFAULT '', -- '' until it is over, and for aborted ones
    source        text    NOT NULL,
    hold_serial   integer NOT NULL,
    members       text    NOT NULL, -- names of the classes; with source, hold_serial and plan what admission reads
    plan          text    NOT NULL,
    round         integer NOT NULL DEFAULT 0,
    round_started integer NOT NULL DEFAULT 0,
    owner         text    NOT NULL DEFAULT '', -- the worker that carries it out; stays when it is over
    actor         text    NOT NULL,
    created_at    text    NOT NULL,
    started_at    text,
    held_at       text,
    ended_at      text,
    spec          text    NOT NULL, -- without the payloads
    payloads      text,             -- of each member, base64, as JSON would not keep their bytes; NULL: none
    fingerprints  text    NOT NULL,
    reasons       text,
    evidence      text    NOT NULL,
    CONSTRAINT verification_runs_state_check CHECK (state IN ('planned', 'running', 'done', 'aborted')),
    CONSTRAINT verification_runs_verdict_check CHECK (verdict IN ('', 'passed', 'failed', 'inconclusive') AND (verdict <> '') = (state = 'done')),
    CONSTRAINT verification_runs_source_check CHECK (source IN ('queue', 'payloads')),
    CONSTRAINT verification_runs_round_check CHECK (round >= 0),
    CONSTRAINT verification_runs_flags_check CHECK (hold_serial IN (0, 1) AND round_started IN (0, 1)),
    CONSTRAINT verification_runs_owner_check CHECK (state <> 'running' OR (owner <> '' AND started_at IS NOT NULL)),
    CONSTRAINT verification_runs_planned_check CHECK (state <> 'planned' OR (owner = '' AND held_at IS NULL AND round_started = 0)),
    CONSTRAINT verification_runs_ended_check CHECK ((ended_at IS NULL) = (state IN ('planned', 'running'))),
    CONSTRAINT verification_runs_json_check CHECK (json_valid(members) AND json_valid(plan) AND json_valid(spec)
        AND (payloads IS NULL OR json_valid(payloads)) AND json_valid(fingerprints)
        AND (reasons IS NULL OR json_valid(reasons)) AND json_valid(evidence))
) STRICT;
-- At most one runs; serial's slot is held by it, or by nobody.
CREATE UNIQUE INDEX verification_runs_running_idx ON verification_runs (state) WHERE state = 'running';
CREATE INDEX verification_runs_open_idx ON verification_runs (created_at, id) WHERE ended_at IS NULL;

-- The members of each run; with a verdict they are the proofs.
CREATE TABLE verification_members (
    verification text    NOT NULL REFERENCES verification_runs (id),
    class        text    NOT NULL,
    fingerprint  text    NOT NULL,
    verdict      text    NOT NULL DEFAULT '', -- '' while there is none, and when it is not conclusive
    copies       integer NOT NULL DEFAULT 0,
    beside       text,
    ended_at     text, -- when this verdict was given
    PRIMARY KEY (verification, class),
    CONSTRAINT verification_members_verdict_check CHECK (verdict IN ('', 'passed', 'failed') AND (verdict <> '') = (ended_at IS NOT NULL)),
    CONSTRAINT verification_members_copies_check CHECK (copies >= 0),
    CONSTRAINT verification_members_beside_check CHECK (beside IS NULL OR json_valid(beside))
) STRICT;
CREATE INDEX verification_members_class_idx ON verification_members (class, verification);

-- Evidence of concurrency that outcomes left to be judged; a row goes with its judgement.
CREATE TABLE findings (
    id           integer PRIMARY KEY AUTOINCREMENT,
    job_id       text    NOT NULL,
    attempt      integer NOT NULL,
    class        text    NOT NULL,
    lane         text    NOT NULL,
    fingerprint  text    NOT NULL,
    outcome      text    NOT NULL,
    verification text    NOT NULL DEFAULT '',
    units        text    NOT NULL,
    trouble      text,
    measured     text,
    at           text    NOT NULL,
    CONSTRAINT findings_json_check CHECK (json_valid(units) AND (trouble IS NULL OR json_valid(trouble))
        AND (measured IS NULL OR json_valid(measured)))
) STRICT;

ALTER TABLE attempts ADD COLUMN verification_round integer NOT NULL DEFAULT 0; -- from 1; 0 outside of one
ALTER TABLE attempts ADD COLUMN trouble text; -- matched phrases
ALTER TABLE attempts ADD COLUMN measured text; -- peak of units seen
-- SHA-256 of what went in and came out; of verification runs' attempts only.
ALTER TABLE attempts ADD COLUMN payload_digest blob;
ALTER TABLE attempts ADD COLUMN result_digest blob;
CREATE INDEX attempts_verification_idx ON attempts (verification) WHERE verification <> '';

-- +goose Down
DROP INDEX attempts_verification_idx;
ALTER TABLE attempts DROP COLUMN result_digest;
ALTER TABLE attempts DROP COLUMN payload_digest;
ALTER TABLE attempts DROP COLUMN measured;
ALTER TABLE attempts DROP COLUMN trouble;
ALTER TABLE attempts DROP COLUMN verification_round;
DROP TABLE findings;
DROP TABLE verification_members;
DROP TABLE verification_runs;
