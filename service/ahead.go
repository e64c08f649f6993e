package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/admission"
)

// farPlaces remembers where in the lines of lanes counting the jobs ahead came to its
// end lately: whoever stands there or behind has at least AheadCounted jobs ahead. So a
// long line is walked once for all who look at its far end, and what they are shown is
// as old as other counts at most, see linesAge.
type farPlaces struct {
	mu    sync.Mutex
	lines map[string]farPlace // by the classes of a line; guarded by mu
}

type farPlace struct {
	at    time.Time // when it was counted
	place admission.Due
}

// lineKey names a line by its classes.
func lineKey(classes []string) string { return strings.Join(classes, " ") }

// has says whether a job in that line stands where nobody has to count.
func (f *farPlaces) has(line string, j lanegate.Job) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	far, ok := f.lines[line]
	return ok && time.Since(far.at) < linesAge && !admission.Before(placeOf(j), far.place)
}

// note keeps a place that was counted to its end at some time. One that is nearer to
// the front and still good stays.
func (f *farPlaces) note(line string, j lanegate.Job, at time.Time) {
	place := placeOf(j)
	f.mu.Lock()
	defer f.mu.Unlock()
	far, ok := f.lines[line]
	if ok && time.Since(far.at) < linesAge && admission.Before(far.place, place) {
		return
	}
	if !ok && len(f.lines) >= farLines {
		clear(f.lines) // of classes as they were
	}
	if f.lines == nil {
		f.lines = map[string]farPlace{}
	}
	f.lines[line] = farPlace{at, place}
}

// farLines is how many lines are remembered; lanes are fewer, as a rule.
const farLines = 256

// ahead says what stands ahead of some queued jobs in the line of a lane.
func (ex *explainer) ahead(ctx context.Context, lane string, jobs []lanegate.Job) ([]Ahead, error) {
	out, err := ex.countAhead(ctx, ex.byLane[lane], jobs)
	if err != nil {
		return nil, fmt.Errorf("explain waits in lane %s: %w", lane, err)
	}
	return out, nil
}

func (ex *explainer) countAhead(ctx context.Context, classes []string, jobs []lanegate.Job) ([]Ahead, error) {
	out, line := make([]Ahead, len(jobs)), lineKey(classes)
	var near, far []int // in jobs
	for i, j := range jobs {
		if ex.far.has(line, j) {
			far = append(far, i)
		} else {
			near = append(near, i)
		}
	}
	if len(far) > 0 {
		first, err := ex.store.FirstInLine(ctx, classes, aheadShown)
		if err != nil {
			return nil, err
		}
		for _, i := range far {
			if len(first) < aheadShown || slices.Contains(first, jobs[i].ID) {
				near = append(near, i) // the front has come to it meanwhile
			} else {
				out[i] = Ahead{Count: AheadCounted, AtLeast: true, First: first}
			}
		}
	}
	if len(near) == 0 {
		return out, nil
	}
	count := make([]lanegate.Job, len(near))
	for k, i := range near {
		count[k] = jobs[i]
	}
	began := time.Now()
	counted, err := ex.store.Ahead(ctx, count, classes, AheadCounted, aheadShown)
	if err != nil {
		return nil, err
	}
	for k, i := range near {
		out[i] = counted[k]
		if counted[k].AtLeast {
			ex.far.note(line, jobs[i], began)
		}
	}
	return out, nil
}
