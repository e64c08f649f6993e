package runner

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
	"github.com/lanegate/lanegate/worker/proctest"
)

func TestCaptureKeepsHeadAndTail(t *testing.T) {
	for _, tt := range []struct {
		name, in, head, tail string
		dropped              int64
	}{
		{"nothing", "", "", "", 0},
		{"fits", "0123456789abcdef", "0123456789abcdef", "", 0},
		{"one too many", "0123456789abcdefg", "01234567", "9abcdefg", 1},
		{"long", "01234567" + strings.Repeat(".", 1000) + "tailtail", "01234567", "tailtail", 1000},
		{"a character cut at both edges", "012345€" + strings.Repeat(".", 50) + "€abcdef", "012345", "abcdef", 50 + 6},
		{"a character across the seam", "0123456€89abcd", "0123456€89abcd", "", 0},
		{"escapes take room", "\x00\x00\x00\x00\x00", `\x00\x00`, `\x00\x00`, 1},
		{"a short text full of escapes", "\x00\x00\x00\x00", `\x00\x00\x00\x00`, "", 0},
		{"Latin-1", "\xe4\xf6\xfc", "\ufffd\ufffd\ufffd", "", 0},
		{"unfinished at the end", "abc\xe2\x82", "abc\ufffd\ufffd", "", 0},
		{"ANSI colours", "\x1b[31mred", `\x1b[31mred`, "", 0},
		{"breaks and tabs stay", "a\r\n\tb\n", "a\r\n\tb\n", "", 0},
		{"C1 controls and DEL", "\u0085\x7f", `\u0085\x7f`, "", 0},
		{"real replacement marks", "\ufffd", "\ufffd", "", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, step := range []int{1, 3, 7, 1 << 20} {
				c := newCapture(8, 8)
				for chunk := range chunks(tt.in, step) {
					if n, err := c.Write([]byte(chunk)); n != len(chunk) || err != nil {
						t.Fatal(n, err)
					}
				}
				want := lanegate.Output{Head: tt.head, Tail: tt.tail, Bytes: int64(len(tt.in)), Dropped: tt.dropped}
				if got := c.output(); got != want {
					t.Errorf("in steps of %d:\n got %+v\nwant %+v", step, got, want)
				}
			}
		})
	}
}

func chunks(s string, size int) func(func(string) bool) {
	return func(yield func(string) bool) {
		for len(s) > 0 {
			n := min(size, len(s))
			if !yield(s[:n]) {
				return
			}
			s = s[n:]
		}
	}
}

// Whatever is written: valid text within its limits, and the counts add up.
func TestCaptureInvariants(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	pieces := []string{"a", "\n", "\x00", "\x1b[0m", "ä", "€", "😀", "\xff", "\xe2\x82", "\x80", "plain text "}
	for range 3000 {
		head, tail := rng.IntN(40), rng.IntN(40)
		c := newCapture(head, tail)
		var all strings.Builder
		for range rng.IntN(30) {
			piece := pieces[rng.IntN(len(pieces))]
			all.WriteString(piece)
			_, _ = c.Write([]byte(piece))
		}
		out := c.output()
		if !utf8.ValidString(out.Head) || !utf8.ValidString(out.Tail) {
			t.Fatalf("%q: not UTF-8: %q %q", all.String(), out.Head, out.Tail)
		}
		if len(out.Head) > head+tail || len(out.Tail) > tail || (out.Tail != "" && len(out.Head) > head) {
			t.Fatalf("%q: head %d of %d, tail %d of %d", all.String(), len(out.Head), head, len(out.Tail), tail)
		}
		if out.Bytes != int64(all.Len()) || out.Dropped < 0 || out.Dropped > out.Bytes {
			t.Fatalf("%q: %d bytes, %d dropped", all.String(), out.Bytes, out.Dropped)
		}
		if whole, _ := escapeHead([]byte(all.String()), 1<<20); out.Dropped == 0 && out.Head+out.Tail != whole {
			t.Fatalf("%q: nothing dropped, but kept %q + %q", all.String(), out.Head, out.Tail)
		}
		if strings.ContainsFunc(out.Head+out.Tail, func(r rune) bool {
			return (r < 0x20 && r != '\n' && r != '\r' && r != '\t') || (r >= 0x7f && r < 0xa0)
		}) {
			t.Fatalf("%q: control characters in %q %q", all.String(), out.Head, out.Tail)
		}
	}
}

func TestResultBuffer(t *testing.T) {
	full := `"` + strings.Repeat("x", MaxResult-2) + `"`
	for _, tt := range []struct {
		name, in string
		want     string
	}{
		{"object", " {\"a\": 1}\n", `{"a": 1}`},
		{"null", "null", "null"},
		{"exactly full", full, full},
		{"full and white space around", "\n\n" + full + "\n \t\r\n", full},
		{"one byte too many", full[:1] + full, ""},
		{"empty", "", ""},
		{"only white space", " \n", ""},
		{"a form feed is no white space", "1\f", ""},
		{"NaN is no JSON", "NaN", ""},
		{"invalid UTF-8", "\"\xff\"", ""},
		{"endless white space", strings.Repeat(" ", 3*MaxResult) + "1" + strings.Repeat("\n", 3*MaxResult), "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, step := range []int{1, 1000, 1 << 20} {
				b := &resultBuffer{}
				for chunk := range chunks(tt.in, step) {
					_, _ = b.Write([]byte(chunk))
				}
				if got := b.result(); string(got) != tt.want || (got == nil) != (tt.want == "") {
					t.Errorf("in steps of %d: got %.60q, want %.60q", step, got, tt.want)
				}
				if len(b.text) > MaxResult {
					t.Errorf("holds %d bytes", len(b.text))
				}
			}
		})
	}
}

// C56, C57: what common tools print is kept as text that any store takes.
func TestExecOutputIsText(t *testing.T) {
	end := runShell(t, `printf 'a\000b \033[31mred\033[0m caf\351\n'; printf 'err\n' >&2`)
	wantOutcome(t, end, lanegate.Succeeded)
	for _, want := range []string{`a\x00b \x1b[31mred\x1b[0m caf` + "\ufffd\n", "err\n"} {
		if !strings.Contains(end.Output.Head, want) {
			t.Errorf("output %q lacks %q", end.Output.Head, want)
		}
	}
	if end.Output.Bytes != int64(len("a\x00b \x1b[31mred\x1b[0m caf\xe9\nerr\n")) {
		t.Errorf("%d bytes", end.Output.Bytes)
	}
}

// C84: one line of 10 MB, many short lines, and 2 GB: nothing blocks, memory stays
// small, head and tail are kept.
func TestExecMuchOutput(t *testing.T) {
	large := "2G"
	if raceEnabled || testing.Short() {
		large = "200M"
	}
	for _, tt := range []struct {
		name, script string
		bytes        int64
		head, tail   string
	}{
		{"a line of 10 MB", `printf start; head -c 10000000 /dev/zero | tr '\0' x; printf end`, 10_000_008, "startxxx", "xxxend"},
		{"100,000 lines", `seq 1 100000`, 588_895, "1\n2\n3\n", "\n99999\n100000\n"},
		{"2 GB", `printf start; head -c ` + large + ` /dev/zero; printf end`, -1, `start\x00`, `\x00end`},
		{"on both pipes at once", `(head -c 5000000 /dev/zero | tr '\0' o) & (head -c 5000000 /dev/zero | tr '\0' e) >&2; wait`, 10_000_000, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newExec(t, shell(tt.script), nil)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			began := time.Now()
			end := e.Run(t.Context(), newJob(), Unfenced)
			took := time.Since(began)
			runtime.ReadMemStats(&after)
			wantOutcome(t, end, lanegate.Succeeded)
			out := end.Output
			if !strings.HasPrefix(out.Head, tt.head) || !strings.HasSuffix(out.Tail, tt.tail) {
				t.Errorf("head %.20q…, tail …%.20q", out.Head, out.Tail[max(0, len(out.Tail)-20):])
			}
			if tt.bytes >= 0 && out.Bytes != tt.bytes {
				t.Errorf("%d bytes, want %d", out.Bytes, tt.bytes)
			}
			if out.Dropped == 0 || len(out.Head) > DefaultKeep || len(out.Tail) > DefaultKeep {
				t.Errorf("dropped %d, head %d, tail %d", out.Dropped, len(out.Head), len(out.Tail))
			}
			const limit = 8 << 20
			if allocated := after.TotalAlloc - before.TotalAlloc; allocated > limit {
				t.Errorf("%d bytes were allocated for it, want at most %d", allocated, limit)
			}
			t.Logf("%d bytes in %v", out.Bytes, took.Round(time.Millisecond))
		})
	}
}

// Two streams must not break each other's characters.
func TestCollectorKeepsCharactersWhole(t *testing.T) {
	pipes, err := openPipes(2)
	if err != nil {
		t.Fatal(err)
	}
	e := &Exec{opts: ExecOptions{Head: 64, Tail: 64}}
	c := e.collect(pipes[0].r, pipes[1].r)
	write := func(i int, text string, total int64) {
		if _, err := io.WriteString(pipes[i].w, text); err != nil {
			t.Fatal(err)
		}
		proctest.Eventually(t, fmt.Sprintf("%d bytes to arrive", total), func() bool {
			c.log.mu.Lock()
			defer c.log.mu.Unlock()
			return c.log.total == total
		})
	}
	write(0, "a\xe2\x82", 1) // two thirds of a euro sign are held back
	write(1, "err", 4)
	write(0, "\xacb\xe2", 8)
	closeAll([]*os.File{pipes[0].w, pipes[1].w})
	c.finish()
	if got, want := c.log.output().Head, "aerr€b\ufffd"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzCapture(f *testing.F) {
	f.Add([]byte("a\x00\xff€"), 3, 4)
	f.Fuzz(func(t *testing.T, in []byte, head, tail int) {
		head, tail = min(max(head, 0), 100), min(max(tail, 0), 100)
		c := newCapture(head, tail)
		_, _ = c.Write(in)
		out := c.output()
		if !utf8.ValidString(out.Head+out.Tail) || out.Bytes != int64(len(in)) || out.Dropped < 0 {
			t.Errorf("%+v of %q", out, in)
		}
		if bytes.ContainsRune([]byte(out.Head+out.Tail), 0) {
			t.Error("NUL kept")
		}
	})
}
