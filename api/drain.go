package api

import (
	"net/http"
)

// errNoNewWork is ErrStopping for requests that ask for a job to start.
var errNoNewWork = ErrStopping.With("this gateway is stopping and takes no new work; nothing was enqueued. Send the same request again: the next process, or another replica, takes it.")

// unlessDraining refuses what would make or move up work that this process will
// not start any more. Reads, cancels and changes of classes, lanes and resources
// stay open: they are what a person needs while a stop waits for running jobs,
// and the database keeps them for the next process.
//
// A request that came before the stop began goes on to its answer.
func (a *API) unlessDraining(handle func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		if a.o.Draining() {
			w.Header().Set("Connection", "close") // the next try should meet another process
			return errNoNewWork
		}
		return handle(w, r)
	}
}
