package api

import (
	"net/http"
)

// healthResponse lists the parts of the process.
type healthResponse struct {
	Status  string `json:"status" enums:"ok,failing"`
	Version string `json:"version,omitempty"`
	Parts   []Part `json:"parts"`
}

// livez says that the process runs; it asks nobody, so that a database outage
// never makes a supervisor restart the gateway.
//
//	@Summary	Is the process alive?
//	@ID			livez
//	@Tags		operation
//	@Produce	json
//	@Success	200	{object}	healthResponse
//	@Router		/livez [get]
func (a *API) livez(w http.ResponseWriter, _ *http.Request) error {
	return encode(w, http.StatusOK, healthResponse{Status: "ok", Version: a.o.Version, Parts: []Part{}})
}

// readyz says whether requests should be sent here: the database takes writes,
// workers beat, and no stop has begun.
//
//	@Summary	Is it ready for requests?
//	@ID			readyz
//	@Tags		operation
//	@Produce	json
//	@Success	200	{object}	healthResponse
//	@Failure	503	{object}	healthResponse
//	@Router		/readyz [get]
func (a *API) readyz(w http.ResponseWriter, r *http.Request) error { return a.health(w, r) }

// healthz is readyz for people: each part with its state.
//
//	@Summary	Health, part by part
//	@ID			healthz
//	@Tags		operation
//	@Produce	json
//	@Success	200	{object}	healthResponse
//	@Failure	503	{object}	healthResponse
//	@Router		/healthz [get]
func (a *API) healthz(w http.ResponseWriter, r *http.Request) error { return a.health(w, r) }

func (a *API) health(w http.ResponseWriter, r *http.Request) error {
	r, cancel := timed(r, handlerTimeout)
	defer cancel()
	res := healthResponse{Status: "ok", Version: a.o.Version, Parts: append([]Part{{Name: "process", OK: true}}, a.o.Parts(r.Context())...)}
	status := http.StatusOK
	for _, p := range res.Parts {
		if !p.OK {
			res.Status, status = "failing", http.StatusServiceUnavailable
		}
	}
	if status != http.StatusOK {
		w.Header().Set("Retry-After", "5")
	}
	return encode(w, status, res)
}

// index names what there is.
//
//	@Summary	What there is
//	@ID			index
//	@Tags		operation
//	@Produce	json
//	@Success	200	{object}	map[string]string
//	@Router		/ [get]
func (a *API) index(w http.ResponseWriter, _ *http.Request) error {
	return encode(w, http.StatusOK, map[string]string{
		"name": "lanegate", "version": a.o.Version, "docs": "/docs", "openapi": "/openapi.json",
		"jobs": "/jobs", "job_classes": "/job-classes", "lanes": "/lanes", "resources": "/resources", "health": "/healthz", "metrics": "/metrics",
	})
}
