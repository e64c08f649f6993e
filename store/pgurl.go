package store

import (
	"net/url"
	"strings"

	"github.com/lib/pq"
)

// IsPostgres says whether a database is named by a PostgreSQL URL.
func IsPostgres(path string) bool {
	return strings.HasPrefix(path, "postgres://") || strings.HasPrefix(path, "postgresql://")
}

// CheckURL says what is wrong with a PostgreSQL URL, without connecting and
// without showing it, as it may hold a password.
func CheckURL(dsn string) error {
	_, err := postgresConfig(dsn)
	return err
}

// ShownURL is a PostgreSQL URL as logs and people may see it: user, hosts and
// database, and of the parameters those that say where it leads and how it is
// secured. Passwords are left out, and so is all of a URL that can't be read.
func ShownURL(dsn string) string {
	u, err := url.Parse(dsn)
	if err != nil {
		return "postgres://…"
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}
	if name := u.User.Username(); name != "" {
		shown.User = url.User(name)
	}
	given, kept := u.Query(), url.Values{}
	for _, name := range []string{"host", "port", "user", "dbname", "sslmode"} {
		if v := given.Get(name); v != "" {
			kept.Set(name, v)
		}
	}
	shown.RawQuery = strings.ReplaceAll(kept.Encode(), "%2F", "/")
	return shown.String()
}

// onSocket says whether every host of the URL is a unix socket, where there is
// nothing to encrypt.
func onSocket(cfg pq.Config) bool {
	for _, h := range append([]pq.ConfigMultihost{{Host: cfg.Host, Hostaddr: cfg.Hostaddr}}, cfg.Multi...) {
		if h.Hostaddr.IsValid() || !strings.HasPrefix(h.Host, "/") && !strings.HasPrefix(h.Host, "@") {
			return false
		}
	}
	return true
}
