-- Nothing reads these indexes: a worker's attempts are found among those in flight,
-- which are few, and the fence lets each attempt's outcome be logged once.

-- +goose Up
DROP INDEX attempts_worker_idx;
DROP INDEX run_log_job_attempt_idx;

-- +goose Down
CREATE UNIQUE INDEX run_log_job_attempt_idx ON run_log (job_id, attempt) WHERE source = 'own';
CREATE INDEX attempts_worker_idx ON attempts (worker) WHERE outcome IS NULL;
