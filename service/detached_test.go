package service

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
)

func TestOutputIsKeptLikeThatOfOwnRuns(t *testing.T) {
	long := strings.Repeat("é", maxOutputPart) // twice the limit of one part
	for name, tt := range map[string]struct {
		in, want lanegate.Output
	}{
		"nothing":           {lanegate.Output{}, lanegate.Output{}},
		"short":             {lanegate.Output{Head: "a\n"}, lanegate.Output{Head: "a\n", Bytes: 2}},
		"control":           {lanegate.Output{Head: "a\x00\x1b\u0085\tb"}, lanegate.Output{Head: `a\x00\x1b\u0085` + "\tb", Bytes: 7}},
		"counted by sender": {lanegate.Output{Head: "a", Tail: "z", Bytes: 10, Dropped: 8}, lanegate.Output{Head: "a", Tail: "z", Bytes: 10, Dropped: 8}},
		"at the limit":      {lanegate.Output{Head: long}, lanegate.Output{Head: long, Bytes: int64(len(long))}},
		"above the limit": {lanegate.Output{Head: long + "xyz"}, lanegate.Output{
			Head: long[:maxOutputPart], Tail: long[:maxOutputPart-4] + "xyz", Bytes: int64(len(long) + 3), Dropped: 4,
		}},
	} {
		got := keepOutput(tt.in)
		if got != tt.want {
			t.Errorf("%s: head %d, tail %d, bytes %d, dropped %d; want %d, %d, %d, %d", name, len(got.Head), len(got.Tail), got.Bytes, got.Dropped,
				len(tt.want.Head), len(tt.want.Tail), tt.want.Bytes, tt.want.Dropped)
		}
		if !utf8.ValidString(got.Head) || !utf8.ValidString(got.Tail) {
			t.Errorf("%s: not UTF-8", name)
		}
	}
}

func TestHeartsAreHeardSince(t *testing.T) {
	var h heartWatch
	began := time.Now()
	for i, tt := range []struct {
		after time.Duration
		well  bool
		want  time.Duration
	}{
		{0, true, 0},
		{10 * time.Second, true, 10 * time.Second},
		{60 * time.Second, true, 60 * time.Second},
		{70 * time.Second, false, 0},
		{80 * time.Second, true, 0}, // the database is back
		{100 * time.Second, true, 20 * time.Second},
		{161 * time.Second, true, 0}, // this process slept
		{170 * time.Second, true, 9 * time.Second},
	} {
		if got := h.looked(began.Add(tt.after), tt.well, time.Minute); got != tt.want {
			t.Errorf("look %d: %v, want %v", i, got, tt.want)
		}
	}
}
