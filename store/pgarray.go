package store

import (
	"database/sql/driver"
	"encoding/binary"
	"fmt"
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

// elementTypes are the types that arrays are made of, by the name that SQL has for them.
var elementTypes = map[string]oid.Oid{
	"text": oid.T_text, "json": oid.T_json, "bytea": oid.T_bytea, "bigint": oid.T_int8, "boolean": oid.T_bool, "timestamptz": oid.T_timestamptz,
}

// element appends v, of any kind that is an argument of a statement.
func (a *pgArray) element(typ oid.Oid, v any) error {
	switch v := v.(type) { // what most are, without conversions
	case string:
		if typ == oid.T_text {
			a.text(v)
			return nil
		}
	case dbTime:
		if typ == oid.T_timestamptz {
			a.dbTime(v)
			return nil
		}
	}
	v, err := driver.DefaultParameterConverter.ConvertValue(v)
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		a.null()
		return nil
	case string:
		if typ == oid.T_text || typ == oid.T_json {
			a.text(v)
			return nil
		}
	case []byte:
		if typ == oid.T_bytea {
			a.blob(v)
			return nil
		}
	case int64:
		if typ == oid.T_int8 {
			a.number(v)
			return nil
		}
	case bool:
		if typ == oid.T_bool {
			a.bool(v)
			return nil
		}
	}
	return fmt.Errorf("a %T can't be an element of an array of %s", v, oid.TypeName[typ])
}

func (a *pgArray) null() { *a = binary.BigEndian.AppendUint32(*a, 0xffffffff) }

func (a *pgArray) number(n int64) {
	*a = binary.BigEndian.AppendUint32(*a, 8)
	*a = binary.BigEndian.AppendUint64(*a, uint64(n))
}

func (a *pgArray) bool(v bool) {
	*a = binary.BigEndian.AppendUint32(*a, 1)
	if v {
		*a = append(*a, 1)
	} else {
		*a = append(*a, 0)
	}
}

func (a *pgArray) text(s string) {
	*a = binary.BigEndian.AppendUint32(*a, uint32(len(s)))
	*a = append(*a, s...)
}

func (a *pgArray) bytes(b []byte) {
	*a = binary.BigEndian.AppendUint32(*a, uint32(len(b)))
	*a = append(*a, b...)
}

// blob appends bytes; nil is null.
func (a *pgArray) blob(b []byte) {
	if b == nil {
		a.null()
		return
	}
	a.bytes(b)
}

// pgEpoch is the zero of PostgreSQL's times, which count microseconds.
var pgEpoch = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// dbTime appends a timestamptz.
func (a *pgArray) dbTime(d dbTime) {
	if d.t.IsZero() {
		a.null()
		return
	}
	a.number(d.t.UnixMicro() - pgEpoch.UnixMicro())
}

// columnArray is the array of what of says for 0 … n−1. Where all are empty it is the array
// without elements, for which unnest beside longer ones gives nulls.
func columnArray[T any](typ oid.Oid, n int, of func(i int) T, empty func(T) bool, put func(*pgArray, T)) []byte {
	some := false
	for i := 0; i < n && !some; i++ {
		some = !empty(of(i))
	}
	if !some {
		return emptyPGArray(typ)
	}
	a := newPGArray(typ, n, 16*n)
	for i := range n {
		put(&a, of(i))
	}
	return a
}

func textColumn(n int, of func(i int) string) []byte {
	return columnArray(oid.T_text, n, of, func(s string) bool { return s == "" }, (*pgArray).text)
}

func bytesColumn(n int, of func(i int) []byte) []byte {
	return columnArray(oid.T_bytea, n, of, func(b []byte) bool { return len(b) == 0 }, (*pgArray).bytes)
}

// blobColumn is for bytes of which nil ones are null and empty ones are not.
func blobColumn(n int, of func(i int) []byte) []byte {
	return columnArray(oid.T_bytea, n, of, func(b []byte) bool { return b == nil }, (*pgArray).blob)
}

func timeColumn(n int, of func(i int) dbTime) []byte {
	return columnArray(oid.T_timestamptz, n, of, func(d dbTime) bool { return d.t.IsZero() }, (*pgArray).dbTime)
}

// numberColumn is for numbers of which some may be null: then ok is false.
func numberColumn(n int, of func(i int) (v int64, ok bool)) []byte {
	type number struct {
		v  int64
		ok bool
	}
	return columnArray(oid.T_int8, n, func(i int) number { v, ok := of(i); return number{v, ok} },
		func(v number) bool { return !v.ok },
		func(a *pgArray, v number) {
			if v.ok {
				a.number(v.v)
			} else {
				a.null()
			}
		})
}
