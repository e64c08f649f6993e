package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"

	"github.com/jmoiron/sqlx"

	"github.com/lanegate/lanegate"
)

// ReadLanes reads the lanes of the database at path, a SQLite file or a PostgreSQL
// URL as in Options, beside whoever serves it: it locks nothing, migrates nothing
// and makes no file. A SQLite file that does not exist has none.
func ReadLanes(ctx context.Context, path string) (lanes []lanegate.Lane, err error) {
	var db *sqlx.DB
	if IsPostgres(path) {
		cfg, err := postgresConfig(path)
		if err != nil {
			return nil, err
		}
		c, err := connector(cfg, nil, connectWait)
		if err != nil {
			return nil, err
		}
		db = sqlx.NewDb(sql.OpenDB(c), "postgres")
	} else {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if db, err = openPool(ctx, path, 1, url.Values{"mode": {"ro"}, "_busy_timeout": {"5000"}, "_query_only": {"1"}}); err != nil {
			return nil, err
		}
	}
	var rows []laneRow
	err = db.SelectContext(ctx, &rows, sqlListLanes)
	if err = errors.Join(err, db.Close()); err != nil {
		return nil, fmt.Errorf("read the lanes from the database: %w", err)
	}
	for _, r := range rows {
		lanes = append(lanes, r.lane())
	}
	return lanes, nil
}
