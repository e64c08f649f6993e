package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/lanegate/lanegate/openapi"
)

// pages are the specification and what shows it.
type pages struct {
	spec  http.Handler
	files map[string]http.Handler
}

func newPages() pages { return pages{openapi.Spec(), openapi.Pages()} }

// spec serves this specification.
//
//	@Summary	The specification, OpenAPI 3.0
//	@ID			get-openapi
//	@Tags		operation
//	@Produce	json
//	@Success	200	{object}	object
//	@Router		/openapi.json [get]
func (a *API) spec(w http.ResponseWriter, r *http.Request) error {
	a.pages.spec.ServeHTTP(w, r)
	return nil
}

// docs serves the page that shows the specification.
//
//	@Summary	The specification as a page
//	@ID			get-docs
//	@Tags		operation
//	@Produce	html
//	@Success	200	{string}	string
//	@Router		/docs [get]
func (a *API) docs(w http.ResponseWriter, r *http.Request) error {
	a.pages.files["index.html"].ServeHTTP(w, r)
	return nil
}

// docsFile serves a file that the page needs.
//
//	@Summary	A file of the page
//	@ID			get-docs-file
//	@Tags		operation
//	@Produce	plain
//	@Param		file	path		string	true	"File name"
//	@Success	200		{string}	string
//	@Failure	404		{object}	problem
//	@Router		/docs/{file} [get]
func (a *API) docsFile(w http.ResponseWriter, r *http.Request) error {
	file, ok := a.pages.files[chi.URLParam(r, "file")]
	if !ok {
		return errNoRoute.With("the documentation has no file %q; it begins at /docs.", chi.URLParam(r, "file"))
	}
	file.ServeHTTP(w, r)
	return nil
}
