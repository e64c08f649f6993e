package api

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"
)

// beginning of a request only.
// dialSend opens a raw connection and sends text.
func dialSend(t *testing.T, url, text string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c
}

// cutOff waits until the gateway has ended a connection and returns what it said.
func cutOff(t *testing.T, c net.Conn) string {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(c)
	if err != nil && !strings.Contains(err.Error(), "reset") {
		t.Fatalf("the connection was not cut off: %v after %q", err, text)
	}
	return string(text)
}

// A client that looks at the answer only once it has sent everything (Python's
// http.client does so) gets the refusal, not a reset connection (C60).
func TestRefusalReachesClientsThatWriteFirst(t *testing.T) {
	admin, _ := token("a", RoleAdmin)
	large := strings.Repeat("[", 5<<20)
	for name, tt := range map[string]struct {
		tokens []Token
		head   string
		status string
	}{
		"too large":              {nil, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n", "413"},
		"too large a class":      {nil, "PUT /job-classes/c HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n", "413"},
		"unreadable type":        {nil, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n", "415"},
		"unknown client":         {[]Token{admin}, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n", "401"},
		"unknown path":           {nil, "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n", "404"},
		"batch with another key": {nil, "POST /jobs/batch HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k\r\nContent-Type: application/json\r\n", "400"},
	} {
		for _, framing := range []string{"length", "chunked"} {
			t.Run(name+"/"+framing, func(t *testing.T) {
				g := newGateway(t, func(s *setup) { s.api.Tokens = tt.tokens })
				text := tt.head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(large), large)
				if framing == "chunked" {
					text = tt.head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(large), large)
				}
				c := dialSend(t, g.listen().URL, text) // fails when the connection is reset under it
				if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
					t.Fatal(err)
				}
				res, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatalf("no answer: %v", err)
				}
				defer res.Body.Close()
				if got := fmt.Sprint(res.StatusCode); got != tt.status {
					t.Errorf("status %s, want %s", got, tt.status)
				}
			})
		}
	}
}

// C82: slow headers and slow bodies are cut off, whatever the route and whether
// or not anybody asks for the body; meanwhile others are served.
func TestSlowClientsAreCutOff(t *testing.T) {
	short := 300 * time.Millisecond
	admin, _ := token("a", RoleAdmin)
	for name, tt := range map[string]struct {
		tokens []Token
		text   string
		status string // of the answer; "" for none
	}{
		"header":                        {nil, "POST /jobs HTTP/1.1\r\nHost: x\r\n", ""},
		"body":                          {nil, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", "408"},
		"chunked body":                  {nil, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n", "408"},
		"body of a GET":                 {nil, "GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "200"},
		"body of an unknown path":       {nil, "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "404"},
		"body of an unknown client":     {[]Token{admin}, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "401"},
		"body of an unreadable type":    {nil, "POST /jobs HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\n{", "415"},
		"body of an action on a job":    {nil, fmt.Sprintf("POST /jobs/%s/cancel HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", lanegateID(1)), "4"},
		"body of a change of a class":   {nil, "PUT /job-classes/c HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", "408"},
		"body behind a wrong parameter": {nil, "POST /jobs?x=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "400"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGateway(t, func(s *setup) { s.api.Tokens, s.api.BodyTimeout = tt.tokens, short })
			s := g.listen(func(s *http.Server) { s.ReadHeaderTimeout = short })
			slow := dialSend(t, s.URL, tt.text)
			res, err := http.Get(s.URL + "/livez")
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("others are not served: %v %v", res, err)
			}
			res.Body.Close()
			said := cutOff(t, slow)
			if !strings.HasPrefix(said, "HTTP/1.1 "+tt.status) && tt.status != "" {
				t.Errorf("answer %q, want status %s", said, tt.status)
			}
		})
	}
}

// A client that does not fetch its answer is cut off as well.
func TestSlowReaderIsCutOff(t *testing.T) {
	g := newGateway(t, func(s *setup) { s.api.BodyTimeout, s.api.WriteTimeout = 100*time.Millisecond, 300*time.Millisecond })
	s := g.listen(func(s *http.Server) {})
	// Requests in one pipe, whose answers are far more than the buffers on the way hold.
	c := dialSend(t, s.URL, "")
	done := make(chan error, 1)
	go func() {
		request := "GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nHost: x\r\n\r\n"
		for range 100_000 { // until the gateway gives up
			if _, err := io.WriteString(c, request); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("every request was taken although no answer was fetched")
		}
	case <-time.After(20 * time.Second):
		t.Error("a client that fetches no answer is not cut off")
		_ = c.Close()
		<-done
	}
}

// Slow clients hold no memory for what they only announce.
func TestAnnouncedLengthReservesNothing(t *testing.T) {
	g := newGateway(t)
	s := g.listen(func(s *http.Server) {})
	const clients, announced = 20, 15 << 20
	for range clients {
		c := dialSend(t, s.URL, fmt.Sprintf("POST /jobs/batch HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", announced))
		line, err := bufio.NewReader(c).ReadString('\n') // it asks for the body: its buffer is made
		if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
			t.Fatalf("%q, %v", line, err)
		}
	}
	if heap := heapInUse(); heap > clients*announced/4 {
		t.Errorf("%d clients that sent nothing hold %d MiB", clients, heap>>20)
	}
}

func heapInUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
