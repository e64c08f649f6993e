-- Admission begins where the last one was, in each line and among the attempts in
-- flight, so that it does not pass dead rows that a snapshot, such as a dump's, keeps.
-- Programs from before number their starts too, by the default.

-- +goose NO TRANSACTION
-- +goose Up
CREATE SEQUENCE IF NOT EXISTS starts_seq;
-- The default is set after the column was added, so that no row is written again. These
-- locks keep everybody out, and whoever comes while they wait stands behind them: they
-- wait for moments only, as in 00010.
-- +goose StatementBegin
DO $$
DECLARE
    moment text := (SELECT least(CAST(setting AS bigint), 1500) + 500 FROM pg_settings WHERE name = 'deadlock_timeout');
BEGIN
    FOR i IN 1..100 LOOP
        BEGIN
            PERFORM set_config('lock_timeout', moment, true);
            ALTER TABLE attempts ADD COLUMN IF NOT EXISTS start_number bigint;
            ALTER TABLE attempts ALTER start_number SET DEFAULT nextval('starts_seq');
            ALTER SEQUENCE starts_seq OWNED BY attempts.start_number;
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            RAISE NOTICE 'attempts is in use, try % of 100', i;
        END;
        COMMIT;
        PERFORM pg_sleep(4);
        COMMIT;
    END LOOP;
    RAISE EXCEPTION USING ERRCODE = 'lock_not_available',
        MESSAGE = 'attempts was in use in each of 100 moments: a transaction that has read it, such as a dump or a forgotten session, stays open. End it (pg_stat_activity tells by xact_start which is the oldest); the next start begins again';
END $$;
-- +goose StatementEnd
SELECT set_config('lanegate.lock_timeout', current_setting('lock_timeout'), false), set_config('lock_timeout', '0', false);
DROP INDEX CONCURRENTLY IF EXISTS attempts_start_idx; -- invalid, left by a build that broke off
-- Only a comparison with the number implies the condition: no other statement is to take
-- this for the index of what is in flight.
CREATE INDEX CONCURRENTLY attempts_start_idx ON attempts (start_number) WHERE outcome IS NULL AND start_number IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS jobs_returned_idx;
-- Jobs that are in line otherwise than from their submission on, at its end.
CREATE INDEX CONCURRENTLY jobs_returned_idx ON jobs (class, first_at, place_at, place_id)
 WHERE state = 'queued' AND due AND (ready_at <> submitted_at OR place_id <> id OR first_at < '9999-12-31 00:00:00+00' OR attempts > 0);
SELECT set_config('lock_timeout', current_setting('lanegate.lock_timeout'), false);

-- +goose Down
DROP INDEX IF EXISTS jobs_returned_idx;
DROP INDEX IF EXISTS attempts_start_idx;
ALTER TABLE attempts DROP COLUMN start_number;
