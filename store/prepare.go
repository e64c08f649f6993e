package store

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// hotStatements are those of submitting, admitting, ending and beating.
func (d *dialect) hotStatements() []string {
	return []string{
		sqlReadAdmission, sqlLockAdmission,
		sqlGetKey, sqlInsertKey, sqlInsertJob, sqlInsertPayload,
		sqlGetWorker, sqlListLiveWorkers, sqlListServed, sqlListReady, sqlNextReady, sqlListInFlight, sqlListBlocked, d.heads,
		sqlStartJob, sqlInsertAttempt, sqlGetPayload,
		sqlGetJobLocked, sqlEndAttempt, sqlUpdateJob, sqlSaveResult, sqlInsertOutput, sqlInsertRun, sqlNoteSuccess,
		sqlBeatWorker, sqlListHeld,
	}
}

// prepare parses the busy paths' statements once instead of at every use.
func (s *Store) prepare(ctx context.Context) error {
	s.hot = map[string]*sqlx.Stmt{}
	for _, q := range s.d.hotStatements() {
		text := s.d.sql(q)
		st, err := s.write.PreparexContext(ctx, text) //nolint:sqlclosecheck // closed with its pool
		if err != nil {
			return fmt.Errorf("prepare %q: %w", text, err)
		}
		s.hot[text] = st
	}
	return nil
}
