-- Messages of other people's queues: those that jobs came in with, so that a job
-- can go back as what it came as, and jobs that are on their way out.

-- +goose Up
CREATE TABLE job_messages (
    job_id     text COLLATE "C" PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    queue      text NOT NULL, -- name of the intake
    message_id text NOT NULL,
    group_id   text NOT NULL DEFAULT '',
    attributes json, -- NULL: none
    body       bytea -- NULL: the job's payload
);

-- A queued job with a row here can't start: its message may be in the queue named
-- by target. Its ready_at is put off for ever meanwhile; the real one is here.
CREATE TABLE job_handovers (
    job_id   text COLLATE "C" PRIMARY KEY REFERENCES jobs (id) ON DELETE CASCADE,
    target   text COLLATE "C" NOT NULL,
    reason   text NOT NULL, -- the job's own, too
    ready_at timestamptz NOT NULL,
    taken_at timestamptz NOT NULL
);
CREATE INDEX job_handovers_target_idx ON job_handovers (target, job_id);

-- +goose Down
DROP TABLE job_handovers;
DROP TABLE job_messages;
