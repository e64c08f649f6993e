package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/lanegate/lanegate"
)

func TestHistoryPages(t *testing.T) {
	g := newGateway(t)
	g.do("PUT", "/job-classes/c", `{"run":{"kind":"exec","command":"true"}}`).want(201)
	for i := range 6 {
		g.do("PATCH", "/job-classes/c?reason=edit-"+fmt.Sprint(i), fmt.Sprintf(`{"description":"%d"}`, i)).want(200)
	}
	type history struct {
		Items      []struct{ Event, Reason, Actor string }
		NextCursor string `json:"next_cursor"`
	}
	var seen []string
	cursor := ""
	for pages := 0; ; pages++ {
		page := into[history](g.do("GET", "/job-classes/c/history?limit=3"+cursor, "").want(200))
		for _, e := range page.Items {
			seen = append(seen, e.Event+" "+e.Reason)
		}
		if page.NextCursor == "" {
			if pages != 2 || len(page.Items) != 1 {
				t.Errorf("page %d has %d entries, want the third to have 1", pages, len(page.Items))
			}
			break
		}
		cursor = "&cursor=" + page.NextCursor
	}
	want := []string{"edited edit-5", "edited edit-4", "edited edit-3", "edited edit-2", "edited edit-1", "edited edit-0", "created "}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}
	g.do("GET", "/job-classes/nobody/history", "").refused(404, "class_not_found")
}

func TestClassListPages(t *testing.T) {
	g := newGateway(t)
	for _, id := range []string{"c", "a", "e", "b", "d"} {
		g.class(id)
	}
	var ids []string
	cursor := ""
	for {
		page := into[struct {
			Items      []struct{ ID string }
			NextCursor string `json:"next_cursor"`
		}](g.do("GET", "/job-classes?limit=2"+cursor, "").want(200))
		for _, c := range page.Items {
			ids = append(ids, c.ID)
		}
		if page.NextCursor == "" {
			break
		}
		cursor = "&cursor=" + page.NextCursor
	}
	if got := strings.Join(ids, ""); got != "abcde" {
		t.Errorf("pages gave %s", got)
	}
}

func TestClassStats(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	w := g.worker()
	run := func(e lanegate.Ending) {
		g.submit(`{"class":"c"}`)
		g.end(g.admit(w)[0], e)
	}
	for i := range 10 {
		run(lanegate.Ending{Outcome: lanegate.Succeeded, Duration: time.Duration(i+1) * time.Second})
	}
	run(lanegate.Ending{Outcome: lanegate.Failed, Duration: time.Minute, Error: "exit 1"})
	run(lanegate.Ending{Outcome: lanegate.TimedOut, Duration: 2 * time.Minute, Error: "too long"})
	type quantiles struct {
		N                  int
		P50, P90, P99, Max string
	}
	st := into[struct {
		Class            string
		Runs             int
		Outcomes         map[string]int
		Waits, Durations quantiles
		Failing          quantiles  `json:"failing_durations"`
		LastSuccess      *time.Time `json:"last_success"`
		From, To         time.Time
	}](g.do("GET", "/job-classes/c/stats?window=2d", "").want(200))
	if st.Class != "c" || st.Runs != 12 || st.To.Sub(st.From) != 48*time.Hour || st.LastSuccess == nil || st.Waits.N != 12 {
		t.Errorf("%+v", st)
	}
	if diff := cmp.Diff(map[string]int{"succeeded": 10, "failed": 1, "timed_out": 1}, st.Outcomes); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	if want := (quantiles{10, "5s", "9s", "10s", "10s"}); st.Durations != want {
		t.Errorf("durations %+v, want %+v", st.Durations, want)
	}
	if want := (quantiles{2, "1m", "2m", "2m", "2m"}); st.Failing != want {
		t.Errorf("failing %+v, want %+v", st.Failing, want)
	}
	for _, window := range []string{"", "?window=36h", "?window=366d"} {
		g.do("GET", "/job-classes/c/stats"+window, "").want(200)
	}
	g.do("GET", "/job-classes/nobody/stats", "").refused(404, "class_not_found")
}
