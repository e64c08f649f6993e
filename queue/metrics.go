package queue

import "github.com/prometheus/client_golang/prometheus"

// metrics are the counters of the sqs doorbell.
type metrics struct {
	calls                                *prometheus.CounterVec // action, outcome
	sent, refused, dropped               *prometheus.CounterVec // lane
	received, deleted, released, unknown *prometheus.CounterVec // lane
	swept                                *prometheus.CounterVec // lane
	up, unheard                          *prometheus.GaugeVec   // lane
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	perLane := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lanegate_doorbell_" + name, Help: help}, []string{"lane"})
	}
	m := &metrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lanegate_doorbell_calls_total",
			Help: "Calls to SQS by action and outcome; repeats inside the SDK are not seen.",
		}, []string{"action", "outcome"}),
		sent:     perLane("messages_sent_total", "Bells that SQS has taken."),
		refused:  perLane("messages_refused_total", "Bells that SQS refused as wrong; they are not sent again as they are."),
		dropped:  perLane("messages_dropped_total", "Bells that were not sent because the lane's queue is missing or may not be written to."),
		received: perLane("messages_received_total", "Bells received; one that comes again counts again."),
		deleted:  perLane("messages_deleted_total", "Bells deleted after admission had looked."),
		released: perLane("messages_released_total", "Bells given back at once, as nothing here could answer them."),
		unknown:  perLane("messages_unknown_total", "Messages that are no bells, each time they were received; they are left to the queue's dead-letter rule."),
		swept:    perLane("rung_again_total", "Times an idle lane was rung again because its jobs had waited long since their last bell."),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lanegate_doorbell_queue_up", Help: "1 while the lane's queue can be used, 0 while it is missing, refused or not known yet.",
		}, []string{"lane"}),
		unheard: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lanegate_doorbell_unheard_seconds", Help: "How long nothing has come from the queue of a lane in which nothing runs although jobs wait that were rung; 0 where none do.",
		}, []string{"lane"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.calls, m.sent, m.refused, m.dropped, m.received, m.deleted, m.released, m.unknown, m.swept, m.up, m.unheard} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// lane makes a lane's series exist before their first event.
func (m *metrics) lane(name string) {
	for _, c := range []*prometheus.CounterVec{m.sent, m.refused, m.dropped, m.received, m.deleted, m.released, m.unknown, m.swept} {
		c.WithLabelValues(name)
	}
	m.up.WithLabelValues(name)
	m.unheard.WithLabelValues(name)
}

// forget removes a lane's series.
func (m *metrics) forget(name string) {
	for _, c := range []*prometheus.CounterVec{m.sent, m.refused, m.dropped, m.received, m.deleted, m.released, m.unknown, m.swept} {
		c.DeleteLabelValues(name)
	}
	m.up.DeleteLabelValues(name)
	m.unheard.DeleteLabelValues(name)
}
