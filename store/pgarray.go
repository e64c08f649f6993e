package store

import (
	"encoding/binary"
	"time"

	"github.com/lib/pq/oid"
)

// pgArray makes an array in PostgreSQL's binary form, which the server reads
// without looking at each character: a header of five numbers (dimensions, whether
// there are nulls, the elements' type, length, first index), then for each element
// its length and bytes, or −1 for null.
// Source of the form: array_recv in src/backend/utils/adt/arrayfuncs.c of PostgreSQL 15.
type pgArray []byte

// newPGArray begins an array of n elements of at least one; size is what its elements
// may take together, in bytes.
func newPGArray(typ oid.Oid, n, size int) pgArray {
	a := make(pgArray, 0, 20+4*n+size)
	a = binary.BigEndian.AppendUint32(a, 1)
	a = binary.BigEndian.AppendUint32(a, 1) // there may be nulls
	a = binary.BigEndian.AppendUint32(a, uint32(typ))
	a = binary.BigEndian.AppendUint32(a, uint32(n))
	return binary.BigEndian.AppendUint32(a, 1)
}

// emptyPGArray is an array without elements.
func emptyPGArray(typ oid.Oid) pgArray {
	a := make(pgArray, 8, 12)
	return binary.BigEndian.AppendUint32(a, uint32(typ))
}

func (a *pgArray) text(s string) {
	*a = binary.BigEndian.AppendUint32(*a, uint32(len(s)))
	*a = append(*a, s...)
}

func (a *pgArray) bytes(b []byte) {
	*a = binary.BigEndian.AppendUint32(*a, uint32(len(b)))
	*a = append(*a, b...)
}

// pgEpoch is the zero of PostgreSQL's times, which count microseconds.
var pgEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// time appends a timestamptz; nil is null.
func (a *pgArray) time(t *time.Time) {
	if t == nil {
		*a = binary.BigEndian.AppendUint32(*a, 0xffffffff)
		return
	}
	*a = binary.BigEndian.AppendUint32(*a, 8)
	*a = binary.BigEndian.AppendUint64(*a, uint64(t.UnixMicro()-pgEpoch.UnixMicro()))
}

// textColumn is the array of what of says for 0 … n−1. Where all are empty it is the
// array without elements, for which unnest beside longer ones gives nulls.
func textColumn(n int, of func(i int) string) []byte {
	size := 0
	for i := range n {
		size += len(of(i))
	}
	if size == 0 {
		return emptyPGArray(oid.T_text)
	}
	a := newPGArray(oid.T_text, n, size)
	for i := range n {
		a.text(of(i))
	}
	return a
}

// bytesColumn is the same for bytes.
func bytesColumn(n int, of func(i int) []byte) []byte {
	size := 0
	for i := range n {
		size += len(of(i))
	}
	if size == 0 {
		return emptyPGArray(oid.T_bytea)
	}
	a := newPGArray(oid.T_bytea, n, size)
	for i := range n {
		a.bytes(of(i))
	}
	return a
}

// timeColumn is the same for times, whose empty value is nil.
func timeColumn(n int, of func(i int) *time.Time) []byte {
	some := false
	for i := range n {
		some = some || of(i) != nil
	}
	if !some {
		return emptyPGArray(oid.T_timestamptz)
	}
	a := newPGArray(oid.T_timestamptz, n, 8*n)
	for i := range n {
		a.time(of(i))
	}
	return a
}
