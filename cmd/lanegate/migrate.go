package main

import (
	"context"

	"github.com/alecthomas/kong"

	"github.com/lanegate/lanegate/app"
)

type migrateCmd struct {
	configFile
	kong.Plugins
	flags settingFlags
}

func (c *migrateCmd) define() {
	c.flags, c.Plugins = newSettingFlags("database", "start_wait", "log.level", "log.format")
}

// Help implements kong.HelpProvider.
func (migrateCmd) Help() string {
	return `serve does this by itself at its start. Run it before, to see a migration succeed while nothing serves yet. A SQLite file must not be in use; of several processes that migrate a PostgreSQL database one does it and the others wait.`
}

// Run opens the database, which migrates it, and closes it.
func (c *migrateCmd) Run(ctx context.Context, t terminal) error {
	cfg, err := app.Load(c.sources(t, c.flags))
	if err != nil {
		return err
	}
	if err := app.Migrate(ctx, cfg, app.NewLogger(cfg, t.err)); err != nil {
		return err
	}
	t.printf("the tables in %s are up to date\n", cfg.ShownDatabase())
	return nil
}
