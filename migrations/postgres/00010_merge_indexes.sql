-- What a job costs in writes, again: one index for lists instead of two, none for
-- retention, which goes along the keys, and none in the run log beside its key. No
-- program needs what is gone in order to be right; those from before are slower in
-- lists and in retention. Indexes are built while others read and write, outside of
-- a transaction, so that each statement may come again after a build that broke off.

-- +goose NO TRANSACTION
-- +goose Up
DROP INDEX CONCURRENTLY IF EXISTS jobs_state_class_idx; -- invalid, left by a build that broke off
-- Running jobs are few, and found by their attempts: a job that starts leaves it. The
-- condition is written so that the planner doesn't take it for an index of the line:
-- a statement that means this index says the same.
CREATE INDEX CONCURRENTLY jobs_state_class_idx ON jobs (state, class, id) WHERE state || '' <> 'running';
DROP INDEX CONCURRENTLY IF EXISTS jobs_class_idx;
DROP INDEX CONCURRENTLY IF EXISTS jobs_state_idx;
DROP INDEX CONCURRENTLY IF EXISTS jobs_finished_idx;
-- Ids come from a sequence; the key is what the log is read and pruned by.
DROP INDEX CONCURRENTLY IF EXISTS run_log_key_idx;
CREATE UNIQUE INDEX CONCURRENTLY run_log_key_idx ON run_log (ended_at, id);
ALTER TABLE run_log DROP CONSTRAINT run_log_pkey, ADD CONSTRAINT run_log_pkey PRIMARY KEY USING INDEX run_log_key_idx;
DROP INDEX CONCURRENTLY IF EXISTS run_log_ended_idx;

-- +goose Down
DROP INDEX IF EXISTS run_log_ended_idx;
CREATE INDEX run_log_ended_idx ON run_log (ended_at, id);
ALTER TABLE run_log DROP CONSTRAINT run_log_pkey, ADD CONSTRAINT run_log_pkey PRIMARY KEY (id);
CREATE INDEX IF NOT EXISTS jobs_finished_idx ON jobs (finished_at, id) WHERE finished_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_state_idx ON jobs (state, id);
CREATE INDEX IF NOT EXISTS jobs_class_idx ON jobs (class, id);
DROP INDEX IF EXISTS jobs_state_class_idx;
