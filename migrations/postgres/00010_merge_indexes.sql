-- What a job costs in writes, again: one index for lists instead of two, none for
-- retention, which goes along the keys, and none in the run log beside its key. No
-- program needs what is gone in order to be right; those from before are slower in
-- lists and in retention. Indexes are built while others read and write, outside of
-- a transaction, so that each statement may come again after a build that broke off.

-- +goose NO TRANSACTION
-- +goose Up
-- What only keeps other changes of the schema out may wait as long as it has to, such
-- as for every transaction that is older than an index, or for a vacuum.
SELECT set_config('lanegate.lock_timeout', current_setting('lock_timeout'), false), set_config('lock_timeout', '0', false);

-- Tables that grow with each job are vacuumed in shares of about one size, however
-- large they have become: the server's default, a fifth of the table at once, takes
-- longer each time, and by then the rows are no longer in memory. Without dead rows a
-- vacuum reads what is new and no index. The small share is for retention: rows that
-- are dead are passed again until their pages are a fiftieth of the table, when the
-- indexes are read for them, and that is not to come at each 50,000 rows of a table of
-- a hundred million. (jobs and attempts have dead rows from the start: they keep to
-- shares of the table only, for the same reason.) How fast a vacuum may go is left to
-- the server, which divides it among those that run. A table's TOAST table takes its
-- settings. These locks keep nobody from reading or writing.
ALTER TABLE job_payloads     SET (autovacuum_vacuum_insert_scale_factor = 0.002, autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE job_results      SET (autovacuum_vacuum_insert_scale_factor = 0.002, autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE attempt_outputs  SET (autovacuum_vacuum_insert_scale_factor = 0.002, autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE idempotency_keys SET (autovacuum_vacuum_insert_scale_factor = 0.002, autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE run_log          SET (autovacuum_vacuum_insert_scale_factor = 0.002, autovacuum_vacuum_insert_threshold = 50000, autovacuum_vacuum_scale_factor = 0.02);
ALTER TABLE jobs             SET (autovacuum_vacuum_insert_scale_factor = 0.02);
ALTER TABLE attempts         SET (autovacuum_vacuum_insert_scale_factor = 0.02);
-- To measure a table takes longer than to vacuum what is new in it: 30,000 rows from as
-- many pages, a second for jobs, and at a fiftieth of changes, three for each job, that
-- came each minute. No busy plan hangs on it (lists are planned by what they ask for,
-- and by keys). Of what is found by key alone a tenth of the sample is enough.
ALTER TABLE jobs             SET (autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE attempts         SET (autovacuum_analyze_scale_factor = 0.2);
ALTER TABLE job_payloads     ALTER job_id SET STATISTICS 10, ALTER payload SET STATISTICS 0;
ALTER TABLE job_results      ALTER job_id SET STATISTICS 10, ALTER result SET STATISTICS 0;
ALTER TABLE attempt_outputs  ALTER job_id SET STATISTICS 10, ALTER number SET STATISTICS 10, ALTER head SET STATISTICS 0, ALTER tail SET STATISTICS 0, ALTER bytes SET STATISTICS 0, ALTER dropped SET STATISTICS 0;
ALTER TABLE idempotency_keys ALTER client SET STATISTICS 10, ALTER key SET STATISTICS 10, ALTER digest SET STATISTICS 0, ALTER job_id SET STATISTICS 10;
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
-- This one keeps everybody out, and whoever comes while it waits stands behind it: it
-- waits for moments only, again and again, and holds no snapshot in between. A moment is
-- longer than a deadlock_timeout of up to 1.5 s, after which the server sends a vacuum
-- out of the way.
-- +goose StatementBegin
DO $$
DECLARE
    moment text := (SELECT least(CAST(setting AS bigint), 1500) + 500 FROM pg_settings WHERE name = 'deadlock_timeout');
BEGIN
    FOR i IN 1..100 LOOP
        BEGIN
            PERFORM set_config('lock_timeout', moment, true);
            ALTER TABLE run_log DROP CONSTRAINT run_log_pkey, ADD CONSTRAINT run_log_pkey PRIMARY KEY USING INDEX run_log_key_idx;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            RAISE NOTICE 'run_log is in use, try % of 100', i;
        END;
        COMMIT;
        PERFORM pg_sleep(4);
        COMMIT;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'lock_not_available',
        MESSAGE = 'run_log was in use in each of 100 moments: a transaction that has read it, such as a dump or a forgotten session, stays open. End it (pg_stat_activity tells by xact_start which is the oldest); the next start begins again';
END $$;
-- +goose StatementEnd
DROP INDEX CONCURRENTLY IF EXISTS run_log_ended_idx;
SELECT set_config('lock_timeout', current_setting('lanegate.lock_timeout'), false);

-- +goose Down
ALTER TABLE idempotency_keys ALTER client SET STATISTICS -1, ALTER key SET STATISTICS -1, ALTER digest SET STATISTICS -1, ALTER job_id SET STATISTICS -1;
ALTER TABLE attempt_outputs  ALTER job_id SET STATISTICS -1, ALTER number SET STATISTICS -1, ALTER head SET STATISTICS -1, ALTER tail SET STATISTICS -1, ALTER bytes SET STATISTICS -1, ALTER dropped SET STATISTICS -1;
ALTER TABLE job_results      ALTER job_id SET STATISTICS -1, ALTER result SET STATISTICS -1;
ALTER TABLE job_payloads     ALTER job_id SET STATISTICS -1, ALTER payload SET STATISTICS -1;
ALTER TABLE attempts         SET (autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE jobs             SET (autovacuum_analyze_scale_factor = 0.02);
ALTER TABLE attempts         RESET (autovacuum_vacuum_insert_scale_factor);
ALTER TABLE jobs             RESET (autovacuum_vacuum_insert_scale_factor);
ALTER TABLE run_log          RESET (autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_insert_threshold, autovacuum_vacuum_scale_factor);
ALTER TABLE idempotency_keys RESET (autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_insert_threshold, autovacuum_vacuum_scale_factor);
ALTER TABLE attempt_outputs  RESET (autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_insert_threshold, autovacuum_vacuum_scale_factor);
ALTER TABLE job_results      RESET (autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_insert_threshold, autovacuum_vacuum_scale_factor);
ALTER TABLE job_payloads     RESET (autovacuum_vacuum_insert_scale_factor, autovacuum_vacuum_insert_threshold, autovacuum_vacuum_scale_factor);
DROP INDEX IF EXISTS run_log_ended_idx;
CREATE INDEX run_log_ended_idx ON run_log (ended_at, id);
ALTER TABLE run_log DROP CONSTRAINT run_log_pkey, ADD CONSTRAINT run_log_pkey PRIMARY KEY (id);
CREATE INDEX IF NOT EXISTS jobs_finished_idx ON jobs (finished_at, id) WHERE finished_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS jobs_state_idx ON jobs (state, id);
CREATE INDEX IF NOT EXISTS jobs_class_idx ON jobs (class, id);
DROP INDEX IF EXISTS jobs_state_class_idx;
