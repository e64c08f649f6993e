package service

import (
	"context"
	"errors"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
	"github.com/prometheus/client_golang/prometheus"
)

// Metrics counts events. Labels are registered classes, lanes, resources and
// outcomes only, never ids or anything a client can invent.
type Metrics struct {
	submittedTotal *prometheus.CounterVec
	finishedTotal  *prometheus.CounterVec
	fallbackTotal  *prometheus.CounterVec
	demotionsTotal *prometheus.CounterVec
	verifiedTotal  *prometheus.CounterVec
	lateTotal      prometheus.Counter
	wait           *prometheus.HistogramVec
	duration       *prometheus.HistogramVec
}

// secondsTo48h spans what batch jobs wait and run: 50 ms to 48 h.
var secondsTo48h = []float64{.05, .25, 1, 5, 15, 60, 300, 900, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 16 * 3600, 24 * 3600, 48 * 3600}

// NewMetrics makes the counters; Register hands them to a registry.
func NewMetrics() *Metrics {
	return &Metrics{
		submittedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lanegate_jobs_submitted_total", Help: "Jobs accepted, replays not counted.",
		}, []string{"class"}),
		finishedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lanegate_attempts_finished_total", Help: "Attempts with a recorded outcome.",
		}, []string{"class", "lane", "outcome"}),
		fallbackTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lanegate_route_fallback_total", Help: "Starts in serial because the class's lane was not available.",
		}, []string{"lane", "reason"}),
		demotionsTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lanegate_class_demotions_total", Help: "Classes moved back to serial.",
		}, []string{"class", "reason"}),
		verifiedTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lanegate_verification_runs_total", Help: "Verification runs that ended, by verdict, and those aborted.",
		}, []string{"verdict"}),
		lateTotal: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lanegate_late_writes_total", Help: "Outcomes refused because the attempt already had one.",
		}),
		wait: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lanegate_job_wait_seconds", Help: "Time from due to start.", Buckets: secondsTo48h,
		}, []string{"class", "lane"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lanegate_job_duration_seconds", Help: "Duration of attempts.", Buckets: secondsTo48h,
		}, []string{"class", "lane", "outcome"}),
	}
}

// Register registers the counters and the gauges that s derives from the database.
func (m *Metrics) Register(r prometheus.Registerer, s *Service) error {
	for _, c := range []prometheus.Collector{
		m.submittedTotal, m.finishedTotal, m.fallbackTotal, m.demotionsTotal, m.verifiedTotal, m.lateTotal, m.wait, m.duration, &stateCollector{s: s},
	} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// prime makes the counters of classes and lanes exist at zero, so that their first
// event is a rise and not a new series, which rate and increase would not see.
func (m *Metrics) prime(classes []lanegate.Class, lanes []lanegate.Lane) {
	for _, c := range classes {
		m.submittedTotal.WithLabelValues(c.ID)
		for _, o := range lanegate.Outcomes {
			m.finishedTotal.WithLabelValues(c.ID, c.Lane, string(o))
		}
		for _, cause := range causes {
			m.demotionsTotal.WithLabelValues(c.ID, cause)
		}
	}
	for _, v := range []string{string(lanegate.VerdictPassed), string(lanegate.VerdictFailed), string(lanegate.VerdictInconclusive), string(lanegate.VerificationAborted)} {
		m.verifiedTotal.WithLabelValues(v)
	}
	for _, l := range lanes {
		if l.Name != lanegate.LaneSerial {
			m.fallbackTotal.WithLabelValues(l.Name, lanegate.ReasonLaneUnavailable)
		}
	}
}

func (m *Metrics) submitted(class string) { m.submittedTotal.WithLabelValues(class).Inc() }
func (m *Metrics) late()                  { m.lateTotal.Inc() }

// verified counts the end of a verification run.
func (m *Metrics) verified(v lanegate.Verification) {
	verdict := string(v.Verdict)
	if v.State == lanegate.VerificationAborted {
		verdict = string(lanegate.VerificationAborted)
	}
	m.verifiedTotal.WithLabelValues(verdict).Inc()
}

func (m *Metrics) demoted(class, reason string) {
	m.demotionsTotal.WithLabelValues(class, reason).Inc()
}

func (m *Metrics) started(g Grant) {
	a := g.Attempt
	m.wait.WithLabelValues(a.Class, a.Lane).Observe(max(0, a.StartedAt.Sub(a.ReadyAt).Seconds()))
	if a.Route.Reason != "" {
		m.fallbackTotal.WithLabelValues(a.Route.Wanted, a.Route.Reason).Inc()
	}
}

func (m *Metrics) ended(e Ended) {
	a := e.Attempt
	m.finishedTotal.WithLabelValues(a.Class, a.Lane, string(a.Outcome)).Inc()
	m.duration.WithLabelValues(a.Class, a.Lane, string(a.Outcome)).Observe(a.Duration.Seconds())
}

// forget drops the series of a class that was deleted.
func (m *Metrics) forget(class string) {
	by := prometheus.Labels{"class": class}
	m.submittedTotal.DeletePartialMatch(by)
	m.finishedTotal.DeletePartialMatch(by)
	m.demotionsTotal.DeletePartialMatch(by)
	m.wait.DeletePartialMatch(by)
	m.duration.DeletePartialMatch(by)
}

func isLate(err error) bool { return errors.Is(err, lanegate.ErrLateWrite) }

// stateCollector derives the gauges from the database at each scrape.
type stateCollector struct{ s *Service }

func gauge(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	descLaneInFlight  = gauge("lanegate_lane_in_flight", "Attempts in flight in the lane, counted from their rows.", "lane")
	descLaneWidth     = gauge("lanegate_lane_width", "Width of the lane in force.", "lane")
	descLaneQueued    = gauge("lanegate_lane_queued", "Due jobs that wait and would run in this lane now.", "lane")
	descLaneOldest    = gauge("lanegate_lane_oldest_queued_seconds", "Longest wait among the lane's due jobs.", "lane")
	descLaneAvailable = gauge("lanegate_lane_available", "1 while the lane is available, else 0.", "lane")
	descLaneCommitted = gauge("lanegate_lane_overcommitted", "1 while the lane's explicit width is above the arithmetic, else 0.", "lane")
	descOldestRunning = gauge("lanegate_oldest_running_seconds", "Age of the lane's oldest attempt in flight.", "lane")
	descWithoutBeat   = gauge("lanegate_lane_in_flight_without_beat", "Attempts in flight in the lane whose worker is gone or shows no beat for a lease.", "lane")
	descClassInFlight = gauge("lanegate_class_in_flight", "Attempts in flight of the class.", "class")
	descWithoutWorker = gauge("lanegate_class_queued_without_worker", "Due jobs of the class while no live worker can run it, else 0.", "class")
	descInterrupted   = gauge("lanegate_class_interruptions_in_row", "Most interruptions in a row, drains included, of the class's jobs in flight and first in line.", "class")
	descClassOverdue  = gauge("lanegate_class_overdue_runs", "Attempts of the class running longer than warn_after.", "class")
	descResourceUse   = gauge("lanegate_resource_in_use", "Units of the resource in use.", "resource")
	descResourceCap   = gauge("lanegate_resource_capacity", "Capacity of the resource.", "resource")
	descLastSuccess   = gauge("lanegate_class_last_success_timestamp_seconds", "End of the class's last success.", "class")
	descFailures      = gauge("lanegate_class_failures_in_row", "Latest ordinary runs of the class that failed, up to the first that succeeded; counted to 10.", "class")
	descProofAge      = gauge("lanegate_class_proof_age_seconds", "Age of the latest verification run of a class outside serial, while it is one that passed.", "class")
	descVerifying     = gauge("lanegate_verification_running", "1 while a verification run is under way, else 0.")
	descExpectedLate  = gauge("lanegate_class_expected_late", "1 while the class's next success is expected later than fresh_within allows, or already is, else 0.", "class")
	descStale         = gauge("lanegate_class_stale", "1 while the class's last success is older than fresh_within, else 0.", "class")
)

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descLaneInFlight, descLaneWidth, descLaneQueued, descLaneOldest, descLaneAvailable, descLaneCommitted,
		descOldestRunning, descWithoutBeat, descClassInFlight, descClassOverdue, descResourceUse, descResourceCap, descLastSuccess, descFailures, descProofAge, descWithoutWorker, descInterrupted, descStale, descExpectedLate,
	} {
		ch <- d
	}
}

// scrapeTimeout bounds the queries of one scrape.
const scrapeTimeout = 5 * time.Second

// Collect implements prometheus.Collector. A database that does not answer gives
// an invalid metric, which makes the scrape fail visibly rather than lie.
func (c *stateCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	lines, err := c.s.lines.get(ctx)
	if err != nil {
		ch <- prometheus.NewInvalidMetric(descLaneQueued, err)
		return
	}
	var seen gauges
	about := descLaneInFlight
	err = c.s.store.Look(ctx, func(ctx context.Context) (err error) {
		seen, about, err = c.look(ctx)
		return err
	})
	if err != nil {
		ch <- prometheus.NewInvalidMetric(about, err)
		return
	}
	in := seen.in
	collectLanes(ch, in, lines, seen.silent)
	ch <- prometheus.MustNewConstMetric(descVerifying, prometheus.GaugeValue, boolValue(in.Trial != nil && in.Trial.Owner != ""))
	for _, r := range resourceViews(in) {
		emit(ch, descResourceUse, float64(r.InUse), r.Name)
		emit(ch, descResourceCap, float64(r.Capacity), r.Name)
	}
	collectStuck(ch, in, lines, seen.interrupted)
	c.collectClasses(ch, in, seen.success, seen.counts)
}

// gauges is what a scrape reads of the database, but for the counts of the lines.
type gauges struct {
	in          admission.Input
	silent      map[string]int
	interrupted map[string]int
	success     map[string]time.Time
	counts      map[string]freshCount
}

// look reads them; about is what an error is told of.
func (c *stateCollector) look(ctx context.Context) (g gauges, about *prometheus.Desc, err error) {
	if g.in, err = c.s.store.Snapshot(ctx); err != nil {
		return g, descLaneInFlight, err
	}
	if g.silent, err = c.s.store.Silent(ctx, c.s.opts.Lease); err != nil {
		return g, descWithoutBeat, err
	}
	if g.interrupted, err = c.s.store.Interruptions(ctx, inView(g.in)); err != nil {
		return g, descInterrupted, err
	}
	if g.success, err = c.s.store.LastSuccess(ctx); err != nil {
		return g, descLastSuccess, err
	}
	if g.counts, err = freshCountsFrom(ctx, c.s.store, g.in.Classes, g.success); err != nil {
		return g, descStale, err
	}
	return g, nil, nil
}

func emit(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, label string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, label)
}

func boolValue(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func collectLanes(ch chan<- prometheus.Metric, in admission.Input, lines []ClassLine, silent map[string]int) {
	for _, l := range laneViews(in, lines) {
		emit(ch, descLaneInFlight, float64(l.InFlight), l.Name)
		emit(ch, descLaneWidth, float64(l.Width.InForce), l.Name)
		emit(ch, descLaneQueued, float64(l.Queued), l.Name)
		emit(ch, descLaneOldest, l.OldestWait.Seconds(), l.Name)
		emit(ch, descLaneAvailable, boolValue(l.Available), l.Name)
		emit(ch, descLaneCommitted, boolValue(l.Width.Overcommitted), l.Name)
		var oldest time.Duration
		for _, r := range l.Running {
			oldest = max(oldest, in.Now.Sub(r.StartedAt))
		}
		emit(ch, descOldestRunning, oldest.Seconds(), l.Name)
		emit(ch, descWithoutBeat, float64(silent[l.Name]), l.Name)
	}
}

// inView lists the jobs in flight and the first of each class's line: among them
// is whatever was interrupted again and again, as it goes back to its place.
func inView(in admission.Input) (jobs []string) {
	for _, r := range in.InFlight {
		jobs = append(jobs, r.Job)
	}
	for _, d := range in.Due {
		jobs = append(jobs, d.Job)
	}
	return jobs
}

// collectStuck shows what gets nowhere: jobs that nobody can run, and jobs that are
// cut off again and again.
func collectStuck(ch chan<- prometheus.Metric, in admission.Input, lines []ClassLine, interrupted map[string]int) {
	due := make(map[string]int, len(lines))
	for _, l := range lines {
		due[l.Class] = l.Due
	}
	for _, k := range in.Classes {
		stuck := due[k.ID]
		if stuck > 0 && admission.CanRun(k, in.Lanes, in.Workers) {
			stuck = 0
		}
		emit(ch, descWithoutWorker, float64(stuck), k.ID)
		emit(ch, descInterrupted, float64(interrupted[k.ID]), k.ID)
	}
}

func (c *stateCollector) collectClasses(ch chan<- prometheus.Metric, in admission.Input, success map[string]time.Time, counts map[string]freshCount) {
	inFlight := map[string]int{}
	for _, r := range in.InFlight {
		inFlight[r.Class]++
	}
	overdue := c.s.watch.overdueRuns()
	failures, proofs := c.s.standings.found()
	late := c.s.oracle.lateClasses()
	for _, k := range in.Classes {
		emit(ch, descClassInFlight, float64(inFlight[k.ID]), k.ID)
		emit(ch, descClassOverdue, float64(overdue[k.ID]), k.ID)
		if n, known := failures[k.ID]; known {
			emit(ch, descFailures, float64(n), k.ID)
		}
		if proof, proven := proofs[k.ID]; proven && k.Lane != lanegate.LaneSerial {
			emit(ch, descProofAge, max(0, in.Now.Sub(proof).Seconds()), k.ID)
		}
		at, ok := success[k.ID]
		if ok {
			emit(ch, descLastSuccess, float64(at.UnixMilli())/1000, k.ID)
		}
		if l, known := late[k.ID]; known && k.FreshWithin > 0 {
			emit(ch, descExpectedLate, boolValue(l), k.ID)
		}
		if k.FreshWithin > 0 {
			emit(ch, descStale, boolValue(in.Now.After(counts[k.ID].by(k))), k.ID)
		}
	}
}
