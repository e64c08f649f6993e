package service

import (
	"context"
	"fmt"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/runlog"
)

// MaxImportRows bounds one import; lanegate import sends a large file in parts.
const MaxImportRows = 20_000

// importAhead is how far a clock elsewhere may be ahead of the database's.
const importAhead = time.Hour

// Imported is what became of an import.
type Imported struct {
	Account runlog.Account
	// Added rows are new; the others of Account.Used were there already.
	Added int
}

// ImportRunLog reads one log and adds its finished runs to the run log, with the
// source "import". They are for Advice only: jobs, freshness, expectations,
// statistics and the baselines of verification never see them. A row that was
// imported before changes nothing. Runs that ended before the run log's retention,
// or in the future, are dropped and counted.
//
// Errors: bad_run_log (nothing was imported), too_many_rows, ErrUnavailable (what
// was imported stays; the import can be repeated).
func (s *Service) ImportRunLog(ctx context.Context, src runlog.Source, opts runlog.ReadOptions, actor string) (Imported, error) {
	now := time.Now()
	keep := runlog.Keep{EndedFrom: now.Add(-s.opts.KeepRunLog), EndedTo: now.Add(importAhead)}
	var rows []lanegate.RunRecord
	account, err := runlog.Import(ctx, src, opts, keep, func(line int, r lanegate.RunRecord) error {
		if len(rows) == MaxImportRows {
			return &lanegate.Error{
				Kind: lanegate.KindTooLarge, Code: "too_many_rows",
				Message: fmt.Sprintf("one import takes at most %d runs, and line %d is one more; nothing was imported. lanegate import sends a file in parts.", MaxImportRows, line),
			}
		}
		rows = append(rows, r)
		return nil
	})
	if err != nil {
		return Imported{}, err
	}
	out := Imported{Account: account}
	if out.Added, err = s.store.ImportRuns(ctx, rows); err != nil {
		return out, err
	}
	s.log.InfoContext(ctx, "run log imported", "actor", actor, "rows", account.Rows, "used", account.Used, "added", out.Added, "dropped", account.DroppedRows())
	return out, nil
}
