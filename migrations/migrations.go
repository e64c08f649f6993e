// Package migrations holds the SQL files that make and change the database's
// tables, one folder per dialect, in the form that goose reads: five digits, a
// verb and an object, Up and Down in one file. A released file is never edited.
//
// Which folder is applied, when and under which lock is left to package store.
package migrations

import (
	"embed"
	"io/fs"
)

//go:embed sqlite/*.sql
var sqlite embed.FS

//go:embed postgres/*.sql
var postgres embed.FS

// SQLite returns the migrations of the SQLite dialect, with the files at its root.
func SQLite() fs.FS { return sub(sqlite, "sqlite") }

// Postgres returns the migrations of the PostgreSQL dialect, with the files at its root.
func Postgres() fs.FS { return sub(postgres, "postgres") }

func sub(files embed.FS, dir string) fs.FS {
	f, err := fs.Sub(files, dir)
	if err != nil {
		panic("migrations: " + err.Error()) // the folder is named in this file
	}
	return f
}
