-- Agents: whose workers are no gateways but processes elsewhere, and jobs that
-- only one worker may run, as somebody waits there for them.

-- +goose Up
ALTER TABLE workers ADD COLUMN agent text COLLATE "C" NOT NULL DEFAULT ''; -- name of its token; '' for a gateway
ALTER TABLE jobs ADD COLUMN worker text COLLATE "C" NOT NULL DEFAULT ''; -- the only one that may run it; '' for any
CREATE INDEX jobs_worker_idx ON jobs (worker, id) WHERE state = 'queued' AND worker <> '';

-- +goose Down
DROP INDEX jobs_worker_idx;
ALTER TABLE jobs DROP COLUMN worker;
ALTER TABLE workers DROP COLUMN agent;
