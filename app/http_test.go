package app

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// Without tokens a page whose own name resolves to 127.0.0.1 must not get in.
func TestLoopbackNames(t *testing.T) {
	h := loopbackNames(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
	for host, want := range map[string]int{
		"localhost": 200, "localhost:8080": 200, "127.0.0.1:8080": 200, "127.0.0.2": 200, "[::1]:8080": 200, "[::1]": 200,
		"evil.example:8080": 421, "evil.example": 421, "127.0.0.1.evil.example": 421, "192.0.2.1:8080": 421, "": 421,
	} {
		r := httptest.NewRequest("POST", "/jobs", nil)
		r.Host = host
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		if rec.Code != want {
			t.Errorf("Host %q: %d, want %d", host, rec.Code, want)
		}
	}
}
