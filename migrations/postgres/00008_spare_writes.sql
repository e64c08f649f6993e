-- What a job costs in writes. A reference makes each row that is entered lock its
-- parent's, which goes into the log; but whoever enters one has just written or
-- locked that row in the same transaction. What is left of a reference is that
-- children go with their parent, whichever version of the program deletes it: a
-- trigger, once for each statement, sees to that. Nothing here reads a table.

-- +goose Up
LOCK TABLE jobs, attempts, job_payloads, job_results, attempt_outputs IN ACCESS EXCLUSIVE MODE;
ALTER TABLE job_payloads DROP CONSTRAINT job_payloads_job_id_fkey;
ALTER TABLE job_results DROP CONSTRAINT job_results_job_id_fkey;
ALTER TABLE attempts DROP CONSTRAINT attempts_job_id_fkey;
ALTER TABLE attempt_outputs DROP CONSTRAINT attempt_outputs_job_id_number_fkey;
-- +goose StatementBegin
CREATE FUNCTION delete_with_jobs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM attempt_outputs WHERE job_id IN (SELECT id FROM gone);
    DELETE FROM attempts WHERE job_id IN (SELECT id FROM gone);
    DELETE FROM job_results WHERE job_id IN (SELECT id FROM gone);
    DELETE FROM job_payloads WHERE job_id IN (SELECT id FROM gone);
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER jobs_delete_trigger AFTER DELETE ON jobs
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION delete_with_jobs();

-- Nothing reads them: a worker's attempts are found among those in flight, which are
-- few, and the fence lets each attempt's outcome be logged once.
DROP INDEX attempts_worker_idx;
DROP INDEX run_log_job_attempt_idx;

-- A job is written again when it starts and when it ends, an attempt when it ends:
-- with room in its page the log gets what changed instead of the whole row.
ALTER TABLE jobs SET (fillfactor = 50);
ALTER TABLE attempts SET (fillfactor = 60);

-- +goose Down
ALTER TABLE attempts SET (fillfactor = 85);
ALTER TABLE jobs SET (fillfactor = 85);
CREATE UNIQUE INDEX run_log_job_attempt_idx ON run_log (job_id, attempt) WHERE source = 'own';
CREATE INDEX attempts_worker_idx ON attempts (worker) WHERE outcome IS NULL;
DROP TRIGGER jobs_delete_trigger ON jobs;
DROP FUNCTION delete_with_jobs();
ALTER TABLE attempt_outputs ADD CONSTRAINT attempt_outputs_job_id_number_fkey FOREIGN KEY (job_id, number) REFERENCES attempts (job_id, number) ON DELETE CASCADE;
ALTER TABLE attempts ADD CONSTRAINT attempts_job_id_fkey FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE;
ALTER TABLE job_results ADD CONSTRAINT job_results_job_id_fkey FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE;
ALTER TABLE job_payloads ADD CONSTRAINT job_payloads_job_id_fkey FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE;
