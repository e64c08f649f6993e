-- An imported run is in the log once, however often it is sent.

-- +goose Up
CREATE UNIQUE INDEX run_log_import_idx ON run_log (job_id, attempt) WHERE source = 'import';

-- +goose Down
DROP INDEX run_log_import_idx;
