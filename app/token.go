package app

import "github.com/lanegate/lanegate/api"

// NewToken makes a token for a client and the SHA-256 that the config file names
// it by.
func NewToken() (token, sha256hex string) { return api.NewToken() }

// HashToken returns the SHA-256 that the config file names a token by.
func HashToken(token string) string { return api.HashToken(token) }

// Roles are the roles that a token can have.
func Roles() []string {
	names := make([]string, len(api.Roles))
	for i, r := range api.Roles {
		names[i] = string(r)
	}
	return names
}
