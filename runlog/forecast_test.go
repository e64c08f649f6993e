package runlog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

var lineStart = time.Date(2026, 3, 2, 1, 0, 0, 0, time.UTC)

// lineOf is a line of classes that all run in serial on one worker; "p-…" classes are in parallel.
func lineOf(classes ...string) Line {
	l := Line{History: map[string]History{}, Seed: 1}
	l.Input = admission.Input{
		Now: lineStart, Lanes: []lanegate.Lane{
			{Name: lanegate.LaneSerial, WidthSetting: 1, Order: lanegate.OrderFIFO, Available: true},
			{Name: lanegate.LaneParallel, WidthSetting: 2, Order: lanegate.OrderFair, WhenUnavailable: lanegate.FallbackWait, Available: true},
		},
		Workers: []admission.Worker{{ID: "w", Free: 8, SerialFree: true}},
	}
	for _, id := range classes {
		c := lanegate.Class{ID: id, Lane: lanegate.LaneSerial, MaxInFlight: 1}
		if strings.HasPrefix(id, "p-") {
			c.Lane, c.MaxInFlight = lanegate.LaneParallel, 2
		}
		c.Run.Kind = lanegate.RunHTTP
		l.Input.Classes = append(l.Input.Classes, c)
	}
	return l
}

// took gives a class n good runs of these minutes, in turn.
func (l *Line) took(class string, n int, minutes ...int) {
	var h History
	for i := range n {
		h.Good = append(h.Good, time.Duration(minutes[i%len(minutes)])*time.Minute)
	}
	h.Busy = h.Good
	l.History[class] = h
}

// queue adds a job in the line's order, due after some minutes from now.
func (l *Line) queue(class string, after int) string {
	id := fmt.Sprintf("j%03d", len(l.Queued))
	ready := lineStart.Add(time.Duration(after) * time.Minute)
	l.Queued = append(l.Queued, Waiting{Due: admission.Due{Job: id, Class: class, PlaceAt: lineStart.Add(time.Duration(len(l.Queued)-1000) * time.Second), PlaceID: id}, ReadyAt: ready})
	return id
}

// run puts an attempt in flight since some minutes ago.
func (l *Line) run(class, lane string, ago int) {
	l.Input.InFlight = append(l.Input.InFlight, admission.Running{
		Job: fmt.Sprintf("r%d", len(l.Input.InFlight)), Class: class, Lane: lane, Worker: "w", StartedAt: lineStart.Add(-time.Duration(ago) * time.Minute),
	})
	if lane == lanegate.LaneSerial {
		l.Input.Workers[0].SerialFree = false
	}
}

func foretold(t *testing.T, l Line) *Forecast {
	t.Helper()
	f, err := ForecastLine(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// wantIn checks that both quantiles are so many minutes from now.
func wantIn(t *testing.T, what string, got Foretold, p50, p90 int) {
	t.Helper()
	if !got.Known() {
		t.Errorf("%s: unknown: %s", what, got.Why)
		return
	}
	if a, b := got.P50.Sub(lineStart), got.P90.Sub(lineStart); a != time.Duration(p50)*time.Minute || b != time.Duration(p90)*time.Minute {
		t.Errorf("%s in %v and %v, want %d and %d min", what, a, b, p50, p90)
	}
}

func wantWhy(t *testing.T, what string, got Foretold, parts ...string) {
	t.Helper()
	if got.Known() {
		t.Errorf("%s is foretold at %v", what, got.P50)
	}
	for _, part := range parts {
		if !strings.Contains(got.Why, part) {
			t.Errorf("%s: %q lacks %q", what, got.Why, part)
		}
	}
}

func TestForecastOfASerialLine(t *testing.T) {
	l := lineOf("heavy", "pos", "weather")
	l.took("heavy", 5, 60)
	l.took("pos", 5, 5)
	l.took("weather", 9, 2)
	l.run("heavy", lanegate.LaneSerial, 20)
	pos, weather, later := l.queue("pos", 0), l.queue("weather", 0), l.queue("pos", 600)
	f := foretold(t, l)
	wantIn(t, "pos starts", f.Starts[pos], 40, 40)
	wantIn(t, "weather starts", f.Starts[weather], 45, 45)
	wantIn(t, "the late pos starts", f.Starts[later], 600, 600)
	wantIn(t, "pos succeeds", f.Finishes["pos"], 45, 45)
	wantIn(t, "heavy succeeds", f.Finishes["heavy"], 40, 40)
	wantIn(t, "serial is empty", f.Empty[lanegate.LaneSerial], 47, 47)
	if _, ok := f.Empty[lanegate.LaneParallel]; ok {
		t.Error("parallel, which is empty, becomes empty")
	}
}

// Quantiles come from the spread of the durations: of a job that has run for 20
// minutes, those of 10 no longer count.
func TestForecastDrawsFromTheHistory(t *testing.T) {
	l := lineOf("heavy", "pos")
	l.took("heavy", 40, 10, 30, 30, 80)
	l.run("heavy", lanegate.LaneSerial, 20)
	pos := l.queue("pos", 0)
	f := foretold(t, l)
	wantIn(t, "pos starts", f.Starts[pos], 10, 60)
	if again := foretold(t, l); again.Starts[pos].P50 != f.Starts[pos].P50 || again.Starts[pos].P90 != f.Starts[pos].P90 {
		t.Error("the same line was foretold differently")
	}
	wantWhy(t, "the end of pos", f.Finishes["pos"], "pos has 0 good runs, and 5 are needed")
}

func TestForecastSaysWhatItDoesNotKnow(t *testing.T) {
	l := lineOf("new", "pos", "p-a", "p-b", "old")
	l.took("pos", 5, 5)
	l.took("p-a", 5, 5)
	l.took("old", 5, 5)
	first, second, third := l.queue("pos", 0), l.queue("new", 0), l.queue("pos", 0)
	a, b := l.queue("p-a", 0), l.queue("p-b", 0)
	f := foretold(t, l)
	wantIn(t, "the job before", f.Starts[first], 0, 0)
	wantIn(t, "the job itself", f.Starts[second], 5, 5)
	wantWhy(t, "the job behind", f.Starts[third], "new has 0 good runs, and 5 are needed")
	wantWhy(t, "serial", f.Empty[lanegate.LaneSerial], "new has")
	wantIn(t, "beside it", f.Starts[a], 0, 0)
	wantIn(t, "beside it, too", f.Starts[b], 0, 0)

	// In a lane of width 2 jobs pass by, but how soon depends on what nobody knows.
	c := l.queue("p-a", 0)
	d := l.queue("p-a", 0)
	l.Input.Classes[2].MaxInFlight = 1
	f = foretold(t, l)
	wantWhy(t, "behind an unknown one in parallel", f.Starts[d], "p-b has 0 good runs")
	_ = c

	l = lineOf("old", "pos")
	l.took("old", 5, 5)
	l.run("old", lanegate.LaneSerial, 6)
	j := l.queue("pos", 0)
	wantWhy(t, "behind one that runs on and on", foretold(t, l).Starts[j], "old runs longer than any of its runs before")
}

func TestForecastOfWhatCannotStart(t *testing.T) {
	l := lineOf("paused", "pos", "wide")
	l.took("pos", 5, 5)
	l.Input.Classes[0].Paused = true
	l.Input.Resources = []lanegate.Resource{{Name: "db", Capacity: 3, Pool: false}}
	l.Input.Classes[2].Units = lanegate.Units{"db": 4}
	p, w, j := l.queue("paused", 0), l.queue("wide", 0), l.queue("pos", 0)
	f := foretold(t, l)
	wantWhy(t, "the paused one", f.Starts[p], "its class is paused")
	wantWhy(t, "the wide one", f.Starts[w], "it needs more of db than there is")
	wantIn(t, "the one behind them", f.Starts[j], 0, 0)
	wantWhy(t, "serial", f.Empty[lanegate.LaneSerial], p)

	l.Input.Workers = nil
	wantWhy(t, "without workers", foretold(t, l).Starts[j], "no live worker serves")
}

// run-next goes before all, units hold jobs back, and a worker has only so many slots.
func TestForecastFollowsThePlanner(t *testing.T) {
	l := lineOf("p-a", "p-b", "pos", "weather")
	for _, c := range []string{"p-a", "p-b", "pos", "weather"} {
		l.took(c, 5, 10)
	}
	l.Input.Resources = []lanegate.Resource{{Name: "session", Capacity: 1}}
	l.Input.Classes[0].Units, l.Input.Classes[1].Units = lanegate.Units{"session": 1}, lanegate.Units{"session": 1}
	l.run("pos", lanegate.LaneSerial, 5)
	a, b := l.queue("p-a", 0), l.queue("p-b", 0)
	pos, weather := l.queue("pos", 0), l.queue("weather", 0)
	l.Queued[3].FirstAt = lineStart
	f := foretold(t, l)
	wantIn(t, "the first with the session", f.Starts[a], 0, 0)
	wantIn(t, "the second with the session", f.Starts[b], 10, 10)
	wantIn(t, "the one that a person moved", f.Starts[weather], 5, 5)
	wantIn(t, "the one it overtook", f.Starts[pos], 15, 15)

	l.Input.Resources, l.Input.Classes[0].Units, l.Input.Classes[1].Units = nil, nil, nil
	l.Input.Workers[0].Free = 1
	f = foretold(t, l)
	wantIn(t, "the first on a worker with one slot", f.Starts[a], 0, 0)
	wantIn(t, "the second on a worker with one slot", f.Starts[b], 10, 10)
}

// A line of 50 classes in serial, as often as ForecastLine plays it out.
func BenchmarkForecast(b *testing.B) {
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprintf("c%02d", i))
	}
	for _, n := range []int{100, 2000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			l := lineOf(names...)
			for _, c := range names {
				l.took(c, 20, 1, 2, 3)
			}
			for i := range n {
				l.queue(names[i%len(names)], 0)
			}
			for b.Loop() {
				if _, err := ForecastLine(b.Context(), l); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
