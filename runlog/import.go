package runlog

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/lanegate/lanegate"
)

// SourceImport is lanegate.RunRecord.Source of runs that lanegate did not run.
const SourceImport = "import"

// importPrefix begins the Job of an imported record; what follows is importDigits
// hex digits of a digest.
const (
	importPrefix = "import-"
	importDigits = 32
)

// Keep says which runs of a log are worth keeping. The zero value keeps all that
// have a start.
type Keep struct {
	// EndedFrom and EndedTo bound when a run ended; zero times bound nothing.
	EndedFrom, EndedTo time.Time
}

// Import reads one log row by row and hands each finished run that it can use to
// fn, as a record with the source "import". Nothing is kept in memory but the names
// of the classes, and for a log without ids 8 bytes for each run.
//
// A record's Job is made from the row's content (class, id, attempt, times, result)
// so that the same row always gives the same one. Rows of a log without ids may be
// alike, as the starts of an array of jobs are: the second one of them has another
// Job than the first. With ids, a row that is there twice has the same Job twice.
//
// Errors are as of Read; those of fn end the reading. When there is an error after
// some rows, the account is of these.
func Import(ctx context.Context, src Source, opts ReadOptions, keep Keep, fn func(line int, rec lanegate.RunRecord) error) (Account, error) {
	account := Account{File: src.Name, Dropped: []Drop{}}
	b := &builder{log: &Log{}, account: &account, each: &sink{keep: keep, fn: fn, seen: map[uint64]uint32{}}}
	rows := 0
	b.count = func() {
		if rows++; rows%progressStep == 0 && opts.Progress != nil {
			opts.Progress(rows)
		}
	}
	err := readOne(ctx, src, opts, b)
	return account, err
}

// sink takes the runs of a log one by one.
type sink struct {
	keep Keep
	fn   func(line int, rec lanegate.RunRecord) error
	// seen counts the rows without an id by the first bytes of their digest.
	seen map[uint64]uint32
}

// refuses says why a usable run is not to be kept; a fault without a reason is none.
func (s *sink) refuses(e *entry, r Run) fault {
	switch end := time.UnixMicro(r.End()); {
	case s == nil:
		return fault{}
	case !r.HasStart:
		return e.fault(roleStarted, "it has no start time, which a kept run needs", "")
	case !s.keep.EndedFrom.IsZero() && end.Before(s.keep.EndedFrom):
		return e.fault(roleFinished, "it ended before the time that the run log is kept for", "")
	case !s.keep.EndedTo.IsZero() && end.After(s.keep.EndedTo):
		return e.fault(roleFinished, "it ends in the future", "")
	}
	return fault{}
}

func (s *sink) take(e *entry, r Run, class string) error {
	rec := lanegate.RunRecord{
		Attempt: 1, Class: class, StartedAt: time.UnixMicro(r.Start).UTC(), EndedAt: time.UnixMicro(r.End()).UTC(),
		Duration: time.Duration(r.Took) * time.Microsecond, Outcome: r.outcome(e), Source: SourceImport,
	}
	if r.HasReady {
		ready := time.UnixMicro(r.Ready).UTC()
		rec.SubmittedAt, rec.ReadyAt = &ready, &ready
	}
	if n, err := strconv.ParseFloat(strings.TrimSpace(e.attempt), 64); err == nil && n > 1 && n < 1e6 {
		rec.Attempt = int(n)
	}
	rec.Job = s.name(e, r, class)
	return s.fn(e.line, rec)
}

// name is the job of a record: one that this package made is kept, so that a row
// which was read twice on its way has one name.
func (s *sink) name(e *entry, r Run, class string) string {
	id := strings.TrimSpace(e.id)
	if digits, ok := strings.CutPrefix(id, importPrefix); ok && len(digits) == importDigits && isHex(digits) {
		return id
	}
	content := fmt.Sprintf("%q %q %q %d %t %d %d %d", class, id, strings.TrimSpace(e.attempt), r.Ready, r.HasReady, r.Start, r.Took, r.Result)
	sum := sha256.Sum256([]byte(content))
	if id == "" {
		var short uint64
		for _, b := range sum[:8] {
			short = short<<8 | uint64(b)
		}
		n := s.seen[short]
		s.seen[short] = n + 1
		if n > 0 {
			sum = sha256.Sum256(fmt.Appendf(nil, "%s %d", content, n))
		}
	}
	return importPrefix + hex.EncodeToString(sum[:importDigits/2])
}

func isHex(s string) bool {
	_, err := hex.DecodeString(s)
	return err == nil
}

// outcome is the one that reads back as the same result: a run that the log says
// something unclear of is "deferred", which is neither good nor a failure.
func (r Run) outcome(e *entry) lanegate.Outcome {
	word := lanegate.Outcome(strings.ToLower(strings.TrimSpace(e.status)))
	for _, o := range lanegate.Outcomes {
		if word == o && resultOf(string(o)) == r.Result {
			return o
		}
	}
	switch r.Result {
	case Good:
		return lanegate.Succeeded
	case Failure:
		return lanegate.Failed
	case Cancelled:
		return lanegate.Cancelled
	}
	return lanegate.Deferred
}

// HiddenOrders finds the pairs of classes that kept an order which nothing
// declared, as Report.Order has them, without a replay.
func HiddenOrders(log *Log) []Order {
	log.sort()
	return hiddenOrder(log.Classes, log.group())
}

// Sentence says what the pair's order was, and asks whether it is needed.
func (o Order) Sentence() string {
	return fmt.Sprintf("%s started after %s had ended in %d of %s, held by the line in %d; is that by chance?",
		o.Then, o.First, o.Kept, count(o.Cycles, "cycle", "cycles"), o.Held)
}
