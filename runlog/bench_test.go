package runlog

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"
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

// BenchmarkAdvise reads a log and replays it under every layout. The goal is
// 1,000,000 rows in a minute and a gibibyte on two cores:
//
//	LANEGATE_BENCH_ROWS=1000000 go test -run x -bench Advise -benchtime 1x ./runlog
func BenchmarkAdvise(b *testing.B) {
	rows := 50_000
	if s := os.Getenv("LANEGATE_BENCH_ROWS"); s != "" {
		var err error
		if rows, err = strconv.Atoi(s); err != nil {
			b.Fatal(err)
		}
	}
	text := busyYear(rows)
	for _, resources := range []bool{false, true} {
		b.Run(fmt.Sprintf("rows=%d,resources=%v", rows, resources), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				log, err := Read(b.Context(), []Source{{"bench", bytes.NewReader(text)}}, ReadOptions{})
				if err != nil {
					b.Fatal(err)
				}
				opts := Options{}
				if resources {
					opts.Resources = db15
				}
				if _, err := Analyse(b.Context(), log, opts); err != nil {
					b.Fatal(err)
				}
			}
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			b.ReportMetric(float64(m.Sys)/(1<<20), "sys-MiB")
			b.ReportMetric(float64(b.N)*float64(rows)/b.Elapsed().Seconds(), "rows/s")
		})
	}
}
