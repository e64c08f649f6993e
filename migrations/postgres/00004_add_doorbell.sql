-- Bells for a queue: ring_at is when a job's bell is due (NULL: rung, or none),
-- rung_at and rings are when it was rung last and how often.

-- +goose Up
ALTER TABLE jobs
    ADD COLUMN ring_at timestamptz,
    ADD COLUMN rung_at timestamptz,
    ADD COLUMN rings   bigint NOT NULL DEFAULT 0;
-- A job that starts leaves it: its bell need not be rung any more.
CREATE INDEX jobs_ring_idx ON jobs (ring_at, id) INCLUDE (class) WHERE state = 'queued' AND ring_at IS NOT NULL;

ALTER TABLE lanes ADD COLUMN queue_seen_at timestamptz; -- when the lane's queue was first seen

-- +goose Down
ALTER TABLE lanes DROP COLUMN queue_seen_at;
DROP INDEX jobs_ring_idx;
ALTER TABLE jobs
    DROP COLUMN ring_at,
    DROP COLUMN rung_at,
    DROP COLUMN rings;
