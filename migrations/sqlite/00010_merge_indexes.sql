-- What a job costs in writes, again: lists need one index, retention none, as it goes
-- along the keys. Programs of the release before name two indexes in their statements
-- and fail without: the one by state keeps its name, and serves them too; the one by
-- class, which nothing else reads, goes when those programs are refused.

-- +goose Up
DROP INDEX jobs_state_idx;
CREATE INDEX jobs_state_idx ON jobs (state, class, id);
DROP INDEX jobs_finished_idx;

-- +goose Down
CREATE INDEX jobs_finished_idx ON jobs (finished_at) WHERE finished_at IS NOT NULL;
DROP INDEX jobs_state_idx;
CREATE INDEX jobs_state_idx ON jobs (state, id);
