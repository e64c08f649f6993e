package api

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkDecodeSubmit reads a submission as POST /jobs does: strictly, its
// payload kept byte for byte.
func BenchmarkDecodeSubmit(b *testing.B) {
	for _, size := range []struct {
		name    string
		payload string
	}{
		{"60B", `{"day":"2026-11-29","store":1234,"kind":"nightly"}`},
		{"64KiB", `{"rows":["` + strings.Repeat(`abcdefghijklmno","`, 4<<10) + `"]}`},
	} {
		body := fmt.Appendf(nil, `{"class":"pos-sales","payload":%s,"idempotency_key":"nightly-2026-11-29"}`, size.payload)
		b.Run(size.name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				var req submitRequest
				if err := decodeBytes(body, &req, 513); err != nil {
					b.Fatal(err)
				}
				if len(req.Payload) != len(size.payload) {
					b.Fatalf("the payload has %d bytes, want %d", len(req.Payload), len(size.payload))
				}
			}
		})
	}
}
