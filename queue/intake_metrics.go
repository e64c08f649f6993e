package queue

import "github.com/prometheus/client_golang/prometheus"

// intakeMetrics are the counters of the intake; label queue has configured names only.
type intakeMetrics struct {
	calls                                                      *prometheus.CounterVec // action, outcome
	received, accepted, replayed, deleted, undeleted, released *prometheus.CounterVec // queue
	refused                                                    *prometheus.CounterVec // queue, why
	up                                                         *prometheus.GaugeVec   // queue
}

func newIntakeMetrics(reg prometheus.Registerer) (*intakeMetrics, error) {
	perQueue := func(name, help string, more ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "lanegate_intake_" + name, Help: help}, append([]string{"queue"}, more...))
	}
	m := &intakeMetrics{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lanegate_intake_calls_total",
			Help: "Calls to SQS of the intake by action and outcome; repeats inside the SDK are not seen.",
		}, []string{"action", "outcome"}),
		received:  perQueue("messages_received_total", "Messages received; one that comes again counts again."),
		accepted:  perQueue("jobs_accepted_total", "Messages that became a new job."),
		replayed:  perQueue("jobs_replayed_total", "Messages whose job was there already."),
		deleted:   perQueue("messages_deleted_total", "Messages deleted after their job was durable."),
		undeleted: perQueue("messages_undeleted_total", "Messages whose job is durable and that could not be deleted: they come again."),
		released:  perQueue("messages_released_total", "Messages given back at once at a stop."),
		refused:   perQueue("messages_refused_total", "Messages that can't become a job, each time they were received; they are left to the queue's dead-letter rule.", "why"),
		up: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "lanegate_intake_queue_up", Help: "1 while messages can be received and become jobs, 0 while they can't or it isn't known yet.",
		}, []string{"queue"}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.calls, m.received, m.accepted, m.replayed, m.deleted, m.undeleted, m.released, m.refused, m.up} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// queue makes a queue's series exist before their first event.
func (m *intakeMetrics) queue(name string) {
	for _, c := range []*prometheus.CounterVec{m.received, m.accepted, m.replayed, m.deleted, m.undeleted, m.released} {
		c.WithLabelValues(name)
	}
	m.refused.WithLabelValues(name, "refused")
	m.refused.WithLabelValues(name, "unreadable")
	m.up.WithLabelValues(name)
}
