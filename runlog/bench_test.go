package runlog

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/lanegate/lanegate"
)

// busyYear is a CSV log of n runs of some hundred classes, at a load of 0.9 in
// bursts, with one class that holds up the line.
func busyYear(n int) []byte {
	var b bytes.Buffer
	b.WriteString("class,submitted_at,started_at,finished_at,status\n")
	free := monday
	const every = 33 * time.Second
	for i := range n {
		at := monday.Add(time.Duration(i/20*20) * every) // twenty at a time
		took := time.Duration(20+15*noise(i)) * time.Second
		class := "class-" + strconv.Itoa(i*7919%300)
		if i%2000 == 0 {
			class, took = "heavy", 5*time.Hour
		}
		if free.Before(at) {
			free = at
		}
		end := free.Add(took)
		fmt.Fprintf(&b, "%s,%s,%s,%s,ok\n", class, at.Format(time.RFC3339), free.Format(time.RFC3339), end.Format(time.RFC3339))
		free = end
	}
	return b.Bytes()
}

// scarce declares units so that neither serial nor parallel is a simple lane: the
// planner must be asked about units at every turn.
func scarce(classes []string) map[string]lanegate.Units {
	units := map[string]lanegate.Units{"heavy": {"db": 12}}
	for i, c := range classes {
		if c != "heavy" {
			units[c] = lanegate.Units{"db": 1 + i%5}
		}
	}
	return units
}

// BenchmarkAdvise reads a log and replays it under every layout. The goal is
// 1,000,000 rows in a minute and a gibibyte on two cores:
//
//	LANEGATE_BENCH_ROWS=1000000 go test -run x -bench Advise -benchtime 1x ./runlog
//
// sys-MiB includes the log's text, which is held in memory here and streamed by
// lanegate advise.
func BenchmarkAdvise(b *testing.B) {
	rows := 50_000
	if s := os.Getenv("LANEGATE_BENCH_ROWS"); s != "" {
		var err error
		if rows, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	text := busyYear(rows)
	for _, declared := range []string{"nothing", "pool", "units"} {
		b.Run(fmt.Sprintf("rows=%d,declared=%s", rows, declared), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				log, err := Read(b.Context(), []Source{{"bench", bytes.NewReader(text)}}, ReadOptions{})
				if err != nil {
					b.Fatal(err)
				}
				opts := Options{}
				if declared != "nothing" {
					opts.Resources = db15
				}
				if declared == "units" {
					opts.Units = scarce(log.Classes)
				}
				r, err := Analyse(b.Context(), log, opts)
				if err != nil {
					b.Fatal(err)
				}
				if n := len(r.Layouts); n != 10 {
					b.Fatalf("%d layouts; isolate and promote must be among them", n)
				}
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.Sys)/(1<<20), "sys-MiB")
			b.ReportMetric(float64(b.N)*float64(rows)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
