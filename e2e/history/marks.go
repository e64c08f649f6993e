package history

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ReadMarks reads the jobs' own record: lines of kind, class, job, attempt and
// nanoseconds since 1970, and for MarkBeside the other run as job.attempt. A line
// that is not whole is an error: each is written by one call.
func ReadMarks(text string) ([]Mark, error) {
	var marks []Mark
	for line := range strings.Lines(text) {
		m, err := readMark(line)
		if err != nil {
			return nil, fmt.Errorf("the jobs' record has the line %q: %w", line, err)
		}
		marks = append(marks, m)
	}
	return marks, nil
}

func readMark(line string) (m Mark, err error) {
	f := strings.Fields(line)
	if len(f) < 5 || len(f) > 6 || !strings.HasSuffix(line, "\n") || (f[0] == MarkBeside) != (len(f) == 6) {
		return m, fmt.Errorf("it is torn")
	}
	m.Kind, m.Job = f[0], f[2]
	if m.Number, err = strconv.Atoi(f[3]); err != nil {
		return m, err
	}
	ns, err := strconv.ParseInt(f[4], 10, 64)
	if err != nil {
		return m, err
	}
	m.At = time.Unix(0, ns).UTC()
	if len(f) == 5 {
		return m, nil
	}
	job, number, _ := strings.Cut(f[5], ".")
	m.Other.Job = job
	m.Other.Number, err = strconv.Atoi(number)
	return m, err
}
