package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics counts requests by route pattern, method and status class.
type metrics struct {
	requests *prometheus.HistogramVec
	shed     prometheus.Counter
	gather   http.Handler
}

func newMetrics(r *prometheus.Registry) *metrics {
	m := &metrics{
		requests: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lanegate_http_request_duration_seconds", Help: "Time to answer a request.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 30, 300},
		}, []string{"route", "method", "status"}),
		shed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lanegate_http_submissions_shed_total", Help: "Submissions answered 429 because too many were in work.",
		}),
		gather: promhttp.HandlerFor(r, promhttp.HandlerOpts{EnableOpenMetrics: true}),
	}
	r.MustRegister(m.requests, m.shed)
	return m
}

// request labels are bounded: registered patterns or "other", known methods, status classes.
func (m *metrics) request(pattern, method string, status int, took time.Duration) {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE":
	default:
		method = "other"
	}
	m.requests.WithLabelValues(pattern, method, strconv.Itoa(status/100)+"xx").Observe(took.Seconds())
}

// serveMetrics exposes the process's metrics in Prometheus' text formats.
//
//	@Summary	Metrics
//	@ID			get-metrics
//	@Tags		operation
//	@Produce	plain
//	@Success	200	{string}	string
//	@Failure	400,401,403	{object}	problem
//	@Router		/metrics [get]
//	@Security	bearer
func (a *API) serveMetrics(w http.ResponseWriter, r *http.Request) error {
	a.metrics.gather.ServeHTTP(w, r)
	return nil
}
