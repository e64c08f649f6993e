package api

import (
	"encoding/base64"
	"strings"
)

// page is one page of a list; next_cursor is absent on the last one.
type page[T any] struct {
	Items      []T    `json:"items"`
	NextCursor string `json:"next_cursor,omitempty"`
}

// Cursors are opaque to clients: what they hold may change.
func sealCursor(s string) string { return base64.RawURLEncoding.EncodeToString([]byte("1:" + s)) }

// openCursor returns what a cursor of this list holds; valid judges it.
func openCursor(p *params, valid func(string) bool) string {
	v := p.str("cursor")
	if v == "" {
		return ""
	}
	b, err := base64.RawURLEncoding.DecodeString(v)
	s, ok := strings.CutPrefix(string(b), "1:")
	if err != nil || !ok || !valid(s) {
		p.bad("cursor", "is not one that this list gave out; take next_cursor from the page before")
		return ""
	}
	return s
}
