package api

import (
	"net/http"
	"slices"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/lanegate/lanegate"
)

// everyMethod lists the methods that routes use, in the order in which they are shown.
var everyMethod = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// pathMethods are the methods that each pattern of the route table takes.
type pathMethods map[string][]string

func methodsOf(table []route) pathMethods {
	m := pathMethods{}
	for _, rt := range table {
		m[rt.pattern] = append(m[rt.pattern], rt.method)
		if rt.method == http.MethodGet {
			m[rt.pattern] = append(m[rt.pattern], http.MethodHead)
		}
	}
	for _, methods := range m {
		slices.SortFunc(methods, func(a, b string) int { return slices.Index(everyMethod, a) - slices.Index(everyMethod, b) })
	}
	return m
}

// of returns what a path takes; nil when it is none of ours. A path that stands in
// the table as it is, like /jobs/batch, is that one, whatever pattern fits it too.
func (m pathMethods) of(path string, routes chi.Routes) []string {
	if methods, ok := m[path]; ok {
		return methods
	}
	for _, method := range everyMethod {
		if rc := chi.NewRouteContext(); routes.Match(rc, method, path) {
			return m[rc.RoutePattern()]
		}
	}
	return nil
}

// literal keeps a path of the table from being taken for a parameter of another
// pattern, when its method is not there: GET /jobs/batch asks for no job of that name.
func (m pathMethods) literal(notAllowed http.Handler) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if methods, ok := m[plainPath(r)]; ok && !slices.Contains(methods, r.Method) {
				notAllowed.ServeHTTP(w, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// notAllowed answers 405 and names what the path does take.
func (m pathMethods) notAllowed(routes chi.Routes) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		allow := strings.Join(m.of(plainPath(r), routes), ", ")
		w.Header().Set("Allow", allow)
		return &statusError{&lanegate.Error{
			Kind: lanegate.KindBadRequest, Code: "method_not_allowed",
			Message: "this path takes " + allow + ", not " + r.Method + ". Nothing was done.",
		}, http.StatusMethodNotAllowed}
	}
}
