package app

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/lanegate/lanegate/store"
)

// poolCollector exposes the statistics of the store's connection pools. The
// ready-made collector wants the pools themselves, which only store may touch.
type poolCollector struct{ pools map[string]store.Pool }

func newPoolCollector(pools map[string]store.Pool) poolCollector { return poolCollector{pools} }

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("lanegate_store_"+name, help, []string{"pool"}, nil)
}

var (
	descPoolInUse = poolDesc("connections_in_use", "Connections in use.")
	descPoolMax   = poolDesc("connections_limit", "Most connections there may be.")
	descPoolWaits = poolDesc("connection_waits_total", "Times that a connection was waited for.")
	descPoolWait  = poolDesc("connection_wait_seconds_total", "Time spent waiting for a connection.")
)

// Describe implements prometheus.Collector.
func (poolCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPoolInUse, descPoolMax, descPoolWaits, descPoolWait} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c poolCollector) Collect(ch chan<- prometheus.Metric) {
	for name, pool := range c.pools {
		s := pool.Stats()
		ch <- prometheus.MustNewConstMetric(descPoolInUse, prometheus.GaugeValue, float64(s.InUse), name)
		ch <- prometheus.MustNewConstMetric(descPoolMax, prometheus.GaugeValue, float64(s.MaxOpenConnections), name)
		ch <- prometheus.MustNewConstMetric(descPoolWaits, prometheus.CounterValue, float64(s.WaitCount), name)
		ch <- prometheus.MustNewConstMetric(descPoolWait, prometheus.CounterValue, s.WaitDuration.Seconds(), name)
	}
}
