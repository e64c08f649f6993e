package main

import (
	"bytes"
	"strings"
	"testing"
)

const stream = `
{"config":{"protocol_version":"v1.0.0"}}
{"osv":{"id":"GO-1","summary":"a parser loops"}}
{"osv":{"id":"GO-2","summary":"a header is split"}}
{"osv":{"id":"GO-3","summary":"a key is short"}}
{"finding":{"osv":"GO-1","fixed_version":"v1.2.3","trace":[{"module":"example.org/a","version":"v1.2.0"}]}}
{"finding":{"osv":"GO-1","fixed_version":"v1.2.3","trace":[{"module":"example.org/a","version":"v1.2.0","package":"example.org/a/p","function":"Parse"},{"module":"example.org/us","function":"main"}]}}
{"finding":{"osv":"GO-2","fixed_version":"v1.26.9","trace":[{"module":"stdlib","version":"v1.26.8","package":"net/http","function":"Get"}]}}
{"finding":{"osv":"GO-3","trace":[{"module":"example.org/b","version":"v0.1.0","package":"example.org/b"}]}}
`

func TestReportCountsWhatIsCalledOutsideTheStandardLibrary(t *testing.T) {
	findings, summaries, err := read(strings.NewReader(stream))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if n := report(&out, findings, summaries); n != 1 {
		t.Errorf("%d to mend, want 1", n)
	}
	want := `CALLED GO-1 example.org/a@v1.2.0 (fixed in v1.2.3): a parser loops
called; wants a newer Go GO-2 stdlib@v1.26.8 (fixed in v1.26.9): a header is split
not called GO-3 example.org/b@v0.1.0 (fixed in no release): a key is short
vulnerabilities: 3 findings, 1 to mend here
`
	if out.String() != want {
		t.Errorf("report:\n%swant:\n%s", out.String(), want)
	}
}

func TestReadRefusesSilence(t *testing.T) {
	for name, in := range map[string]string{"nothing": "", "broken": `{"finding":`} {
		if _, _, err := read(strings.NewReader(in)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
