package service

import (
	"encoding/hex"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// lastID is the time part of the last id that was made, as NewID counts it.
var lastID atomic.Int64

// NewID returns a UUIDv7 (RFC 9562, section 5.7) in its canonical text form. Those
// made by one process ascend: the 12 bits behind the milliseconds are the fraction of
// the millisecond in units of 256 ns, counted on where the clock stands still or goes
// back. Ids are names and no secrets, so the rest comes from the generator of the
// runtime, which asks the system once and not for each.
func NewID() string {
	ns := time.Now().UnixNano()
	next := ns/1e6<<12 | ns%1e6>>8
	for last := lastID.Load(); ; last = lastID.Load() {
		next = max(next, last+1)
		if lastID.CompareAndSwap(last, next) {
			break
		}
	}
	return idAt(next>>12, next&0xfff, rand.Uint64())
}

// idAt is the id of a millisecond, with seq, of 12 bits, and the lower 62 bits of tail.
func idAt(milli, seq int64, tail uint64) string {
	var raw [16]byte
	for i := range 6 {
		raw[i] = byte(milli >> (40 - 8*i))
	}
	raw[6], raw[7] = 0x70|byte(seq>>8), byte(seq)
	for i := range 8 {
		raw[8+i] = byte(tail >> (56 - 8*i))
	}
	raw[8] = 0x80 | raw[8]&0x3f
	var text [36]byte
	at := 0
	for i, n := range [...]int{4, 2, 2, 2, 6} {
		if i > 0 {
			text[at] = '-'
			at++
		}
		hex.Encode(text[at:], raw[(at-i)/2:(at-i)/2+n])
		at += 2 * n
	}
	return string(text[:])
}
