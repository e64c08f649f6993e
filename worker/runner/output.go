package runner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/lanegate/lanegate"
)

const (
	// DefaultKeep is how much of a run's output is kept of its beginning, and as
	// much again of its end, in bytes.
	DefaultKeep = 32 << 10
	// MaxResult is the size of the largest result, in bytes.
	MaxResult = 64 << 10
)

// capture keeps the head and the tail of what is written to it and counts the
// rest. It is safe for several writers; it holds at most head + tail bytes.
type capture struct {
	mu       sync.Mutex
	headSize int
	tailSize int
	head     []byte
	ring     []byte // the last bytes beyond head; from at on once it is full
	at       int
	total    int64
}

func newCapture(head, tail int) *capture {
	return &capture{headSize: head, tailSize: tail}
}

// Write never fails.
func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(p)
	c.total += int64(n)
	if room := c.headSize - len(c.head); room > 0 {
		taken := min(room, len(p))
		c.head = append(c.head, p[:taken]...)
		p = p[taken:]
	}
	if len(p) > c.tailSize {
		p = p[len(p)-c.tailSize:]
	}
	if room := c.tailSize - len(c.ring); room > 0 {
		taken := min(room, len(p))
		c.ring = append(c.ring, p[:taken]...)
		p = p[taken:]
	}
	for len(p) > 0 { // the ring is full and, as p is left, not of size 0
		taken := copy(c.ring[c.at:], p)
		c.at = (c.at + taken) % len(c.ring)
		p = p[taken:]
	}
	return n, nil
}

// output returns what was kept as text. Head and Tail hold at most the sizes
// given to newCapture, as text: escapes take room too.
func (c *capture) output() lanegate.Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := lanegate.Output{Bytes: c.total}
	tail := append(bytes.Clone(c.ring[c.at:]), c.ring[:c.at]...)
	if gap := c.total - int64(len(c.head)+len(tail)); gap == 0 {
		// Nothing was lost on the way: a sequence cut between head and tail is whole.
		all := append(bytes.Clone(c.head), tail...)
		var used int
		if out.Head, used = escapeHead(all, c.headSize+c.tailSize); used == len(all) {
			return out
		}
		out.Head, used = escapeHead(all, c.headSize)
		tail = all[used:]
		out.Dropped = int64(len(tail))
	} else {
		var used int
		out.Head, used = escapeHead(trimCutEnd(c.head), c.headSize)
		out.Dropped = c.total - int64(used)
		tail = trimCutStart(tail)
	}
	var used int
	out.Tail, used = escapeTail(tail, c.tailSize)
	out.Dropped -= int64(used)
	return out
}

// trimCutEnd drops an unfinished UTF-8 sequence from the end of p.
func trimCutEnd(p []byte) []byte { return p[:len(p)-unfinished(p)] }

// trimCutStart drops the rest of a cut UTF-8 sequence from the start of p.
func trimCutStart(p []byte) []byte {
	for i := 0; i < len(p) && i < utf8.UTFMax; i++ {
		if utf8.RuneStart(p[i]) {
			return p[i:]
		}
	}
	return p // not a cut sequence: no text in UTF-8 at all
}

// unfinished returns how many bytes at the end of p begin a UTF-8 sequence that
// may still be completed, 0 to 3.
func unfinished(p []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(p); n++ {
		if b := p[len(p)-n]; utf8.RuneStart(b) {
			if b >= utf8.RuneSelf && !utf8.FullRune(p[len(p)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// escapeHead turns the beginning of p into text of at most size bytes and
// returns how much of p that took.
func escapeHead(p []byte, size int) (text string, used int) {
	var b strings.Builder
	for used < len(p) {
		r, n := utf8.DecodeRune(p[used:])
		piece := escape(r, p[used:used+n])
		if b.Len()+len(piece) > size {
			break
		}
		b.WriteString(piece)
		used += n
	}
	return b.String(), used
}

// escapeTail is escapeHead for the end of p.
func escapeTail(p []byte, size int) (text string, used int) {
	length := 0
	for used < len(p) {
		r, n := utf8.DecodeLastRune(p[:len(p)-used])
		length += len(escape(r, p[len(p)-used-n:len(p)-used]))
		if length > size {
			break
		}
		used += n
	}
	text, _ = escapeHead(p[len(p)-used:], size)
	return text, used
}

// escape is one rune as kept text: line breaks and tabs as they are, other
// control characters as \x00 (\u0085 for those beyond ASCII), and the Unicode
// replacement mark for bytes that are no UTF-8.
func escape(r rune, raw []byte) string {
	switch {
	case r == '\n' || r == '\r' || r == '\t':
	case r < 0x20 || r == 0x7f:
		return fmt.Sprintf(`\x%02x`, r)
	case r >= 0x80 && r < 0xa0:
		return fmt.Sprintf(`\u%04x`, r)
	case r == utf8.RuneError && len(raw) == 1:
		return string(utf8.RuneError)
	}
	return string(raw)
}

// jsonSpace is the white space of RFC 8259.
const jsonSpace = " \t\r\n"

// resultBuffer takes in a whole stdout or response body and says whether it is
// one JSON text. It holds at most MaxResult bytes.
type resultBuffer struct {
	text []byte
	over bool // more than fits
}

// Write never fails.
func (b *resultBuffer) Write(p []byte) (int, error) {
	n := len(p)
	if len(b.text) == 0 {
		p = bytes.TrimLeft(p, jsonSpace)
	}
	taken := min(MaxResult-len(b.text), len(p))
	b.text = append(b.text, p[:taken]...)
	if len(bytes.TrimLeft(p[taken:], jsonSpace)) > 0 {
		b.over = true
	}
	return n, nil
}

// result returns the text without surrounding white space, verbatim, when it is
// one valid JSON value in valid UTF-8 of at most MaxResult bytes; nil otherwise.
func (b *resultBuffer) result() []byte {
	text := bytes.TrimRight(b.text, jsonSpace)
	if b.over || !utf8.Valid(text) || !json.Valid(text) {
		return nil
	}
	return text
}
