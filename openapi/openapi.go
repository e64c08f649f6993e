// Package openapi holds the specification of lanegate's HTTP API and the pages
// that show it. openapi.json is generated from the comments of the handlers in
// package api and committed; everything here is embedded, so that the pages ask
// nobody but the gateway.
package openapi

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"time"
)

//go:generate go run ./gen -api ../api -out openapi.json

//go:embed openapi.json
var document []byte

//go:embed ui
var ui embed.FS

// Document returns the specification, OpenAPI 3.0.3 as JSON. Callers must not change it.
func Document() []byte { return document }

// Spec serves the specification.
func Spec() http.Handler { return newAsset("application/json", document) }

// Pages returns what shows the specification, by file name: "index.html" is the
// page itself, to be served at /docs, and the others belong below it, e.g. at
// /docs/docs.js.
func Pages() map[string]http.Handler {
	files, err := fs.Sub(ui, "ui")
	if err != nil {
		panic("openapi: " + err.Error()) // the folder is embedded above
	}
	assets := map[string]http.Handler{}
	for name, contentType := range map[string]string{
		"index.html":           "text/html; charset=utf-8",
		"docs.js":              "text/javascript; charset=utf-8",
		"docs.css":             "text/css; charset=utf-8",
		"favicon.svg":          "image/svg+xml",
		"swagger-ui-bundle.js": "text/javascript; charset=utf-8",
		"swagger-ui.css":       "text/css; charset=utf-8",
		"LICENSE":              "text/plain; charset=utf-8",
	} {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			panic("openapi: " + err.Error())
		}
		assets[name] = newAsset(contentType, text)
	}
	return assets
}

// policy lets the pages load what the gateway serves and nothing else. Swagger
// UI writes style attributes and shows its icons as data URLs.
const policy = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// asset is an embedded file; it changes only with the binary, so browsers ask
// with its tag whether theirs is still good.
type asset struct {
	contentType string
	tag         string
	text        []byte
}

func newAsset(contentType string, text []byte) asset {
	sum := sha256.Sum256(text)
	return asset{contentType, `"` + hex.EncodeToString(sum[:12]) + `"`, text}
}

// ServeHTTP implements http.Handler.
func (a asset) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.contentType)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // keep it, but ask
	h.Set("Etag", a.tag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(a.text))
}
