package store

import (
	"cmp"
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// hotStatements are those of submitting, admitting, ending and beating.
func (d *dialect) hotStatements() []string {
	hot := []string{
		sqlReadAdmission, d.lockAdmission,
		sqlGetKey, sqlInsertKey, sqlInsertJob, sqlInsertPayload,
		sqlReadStandsFor, sqlReadStands, sqlNextReady, sqlListInFlight, sqlListTrials, d.heads,
		sqlStartJob, sqlInsertAttempt, sqlGetPayload,
		sqlGetJobLocked, sqlEndAttempt, sqlUpdateJob, sqlSaveResult, sqlInsertOutput, sqlInsertRun, sqlNoteSuccess,
		sqlBeatWorker, sqlListHeld,
	}
	for _, b := range []bulkSQL{bulkEndAttempt, bulkUpdateJob, bulkSaveResult, bulkInsertOutput, bulkInsertRun,
		bulkNoteSuccess, bulkInsertMessage, bulkDeleteBlocked, bulkSaveBlocked} {
		hot = append(hot, b.one)
		if d.bulk {
			hot = append(hot, b.many)
		}
	}
	if d.first != "" {
		hot = append(hot, d.first)
	}
	if d.bulk {
		hot = append(hot, sqlPGInsertJobs, sqlPGLockSubmissions, sqlPGReadGroup, sqlPGLockClasses, sqlPGLockJobs, sqlPGLockGrants, sqlPGStartJobs, sqlPGFindReady, d.starts)
	}
	return hot
}

// prepare parses the busy paths' statements once instead of at every use.
func (s *Store) prepare(ctx context.Context) error {
	s.hot = map[*sqlx.DB]map[string]*sqlx.Stmt{}
	for _, p := range []struct {
		db         *sqlx.DB
		statements []string
	}{
		{s.beat, []string{sqlReadAdmission, sqlBeatWorker, sqlListHeld}},
		{s.write, s.d.hotStatements()},
		{s.read, []string{sqlReadAdmission, sqlReadStandsOfAll, cmp.Or(s.d.starts, s.d.heads), sqlCountSilent, sqlListSuccesses,
			sqlListKeys, sqlListEnd, sqlListClassesIn, sqlListRunning, s.d.groups, sqlListByKey}},
	} {
		hot := map[string]*sqlx.Stmt{}
		for _, q := range p.statements {
			text := s.d.sql(q)
			if hot[text] != nil {
				continue
			}
			st, err := p.db.PreparexContext(ctx, text) //nolint:sqlclosecheck // closed with its pool
			if err != nil {
				return fmt.Errorf("prepare %q: %w", text, err)
			}
			hot[text] = st
		}
		s.hot[p.db] = hot
	}
	return nil
}
