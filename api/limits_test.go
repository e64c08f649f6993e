package api

import (
	"bufio"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestQueryParametersAreStrict(t *testing.T) {
	g := newGateway(t)
	g.class("c")
	id := g.submit(`{"class":"c"}`).ID
	for _, tt := range []struct{ target, pointer string }{
		{"/jobs?limit=0", "?limit"}, {"/jobs?limit=-1", "?limit"}, {"/jobs?limit=501", "?limit"}, {"/jobs?limit=1e2", "?limit"},
		{"/jobs?limit=99999999999999999999", "?limit"}, {"/jobs?limit=+5", "?limit"}, {"/jobs?limit=5&limit=6", "?limit"},
		{"/jobs?state=done", "?state"}, {"/jobs?class=A%20B", "?class"}, {"/jobs?submitted_from=yesterday", "?submitted_from"},
		{"/jobs?cursor=rubbish", "?cursor"}, {"/jobs?verification=1", "?verification"}, {"/jobs?stat=queued", "?stat"},
		{"/jobs?limit=%zz", "?"}, {"/jobs?limit=5;state=queued", "?"}, {"/jobs?%ff=1", "?\ufffd"},
		{"/jobs?lane=%ff", "?lane"}, {"/jobs?lane=%00", "?lane"},
		{"/jobs/" + id + "?full=1", "?full"}, {"/jobs/" + id + "/wait?timeout=-1s", "?timeout"}, {"/jobs/" + id + "/wait?timeout=6m", "?timeout"},
		{"/jobs/" + id + "/wait?timeout=30", "?timeout"}, {"/jobs/" + id + "/output?attempt=0", "?attempt"}, {"/jobs/" + id + "/output?attempt=-1", "?attempt"},
		{"/job-classes/c/stats?window=0s", "?window"}, {"/job-classes/c/stats?window=1ns", "?window"}, {"/job-classes/c/stats?window=99999999h", "?window"}, {"/job-classes/c/stats?window=0d", "?window"}, {"/job-classes/c/stats?window=367d", "?window"},
		{"/job-classes/c/stats?window=-7d", "?window"}, {"/job-classes/c/stats?window=9000h", "?window"}, {"/job-classes/c/history?cursor=MTp4", "?cursor"},
		{"/lanes?limit=5", "?limit"}, {"/resources/db?x", "?x"}, {"/job-classes?limit=0", "?limit"},
	} {
		a := g.do("GET", tt.target, "")
		p := a.refused(400, "bad_parameter")
		if p.Fields[0].Pointer != tt.pointer {
			t.Errorf("GET %s points at %q, want %q", tt.target, p.Fields[0].Pointer, tt.pointer)
		}
	}
	g.do("POST", "/jobs?dry_run=true", `{"class":"c"}`).refused(400, "bad_parameter")
	g.do("POST", "/jobs/batch?x=1", `{"jobs":[{"class":"c"}]}`).refused(400, "bad_parameter")
	g.do("POST", "/jobs/"+id+"/cancel?force=1", "").refused(400, "bad_parameter")
	g.do("PUT", "/lanes/long?accept=all", `{}`).refused(400, "bad_parameter")
	g.do("DELETE", "/job-classes/c?demote=1", "").refused(400, "bad_parameter")
	g.do("POST", "/job-classes/c/pause?reason=%ff", "").refused(400, "bad_parameter")
	g.do("POST", "/job-classes/c/pause?reason="+strings.Repeat("x", 1001), "").refused(400, "bad_parameter")
	if n := g.count(); n != 1 {
		t.Errorf("%d jobs, want 1", n)
	}
}

// Headers that suffice for a refusal must do so before the body is sent.
func TestExpectContinueIsRefusedOnHeaders(t *testing.T) {
	tok, auth := token("cron", RoleSubmit)
	g := newGateway(t, func(s *setup) { s.api.Tokens = []Token{tok} })
	g.class("c")
	server := g.listen()
	for name, tt := range map[string]struct {
		headers string
		want    string
	}{
		"no token":    {"Content-Type: application/json\r\nContent-Length: 2000000\r\n", "401"},
		"too large":   {"Authorization: " + auth[1] + "\r\nContent-Type: application/json\r\nContent-Length: 2000000\r\n", "413"},
		"a form":      {"Authorization: " + auth[1] + "\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 2000\r\n", "415"},
		"compressed":  {"Authorization: " + auth[1] + "\r\nContent-Encoding: gzip\r\nContent-Length: 2000\r\n", "415"},
		"bad query":   {"Authorization: " + auth[1] + "\r\nContent-Type: application/json\r\nContent-Length: 2000\r\n", "400"},
		"all is well": {"Authorization: " + auth[1] + "\r\nContent-Type: application/json\r\nContent-Length: 13\r\n", "100"},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, server)
			target := "/jobs"
			if name == "bad query" {
				target += "?x=1"
			}
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n%s\r\n", target, tt.headers)
			r := bufio.NewReader(conn)
			line, err := r.ReadString('\n')
			if err != nil || !strings.HasPrefix(line, "HTTP/1.1 "+tt.want) {
				t.Fatalf("first line %q, %v; want %s", line, err, tt.want)
			}
			if tt.want != "100" {
				return
			}
			fmt.Fprint(conn, `{"class":"c"}`)
			_, err = r.ReadString('\n') // the empty line behind 100
			g.must(err)
			if line, err = r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 201") {
				t.Errorf("after the body: %q, %v", line, err)
			}
		})
	}
}

// dial opens a raw connection that gives up after 10 s.
func dial(t testing.TB, s *httptest.Server) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}
