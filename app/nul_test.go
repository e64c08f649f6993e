package app_test

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/lanegate/lanegate"
)

// C53: U+0000 and other control characters, whole way: a payload with NUL is
// refused at the door, other control characters reach the job as they were sent,
// and whatever a run prints, its state is final and its output can be shown.
func TestNULAndControlCharacters(t *testing.T) {
	writeConfig(t, baseConfig+`
commands:
  echo: {argv: [sh, -c, "cat"]}
  nul: {argv: [sh, -c, "printf '{\"a\": \"\\\\u0000\\\\u001b\\\\ud800\"}'"]}
  raw: {argv: [sh, -c, "printf 'a\\000b\\001\\033[31m\\377\\n'; printf '\\000' >&2; exit 3"]}
classes:
  echo: {run: {kind: exec, command: echo}}
  nul: {run: {kind: exec, command: nul}}
  raw: {run: {kind: exec, command: raw}}
`)
	g := newGateway(t, nil)
	for _, payload := range []string{`"\u0000"`, `{"a":["\u0000"]}`, `{"\u0000":1}`} {
		status, text := g.do("POST", "/jobs", fmt.Sprintf(`{"class":"echo","payload":%s}`, payload))
		if status != http.StatusUnprocessableEntity || !bytes.Contains(text, []byte(`"nul_character"`)) || !bytes.Contains(text, []byte(`"/payload`)) {
			t.Errorf("payload %s: %d %s, want 422 that names the field", payload, status, text)
		}
	}
	controls := `"\u0001\b\t\u001b\u007f\u0085\ufeff\u202e"`
	if j := g.ended(g.submit("echo", controls).ID); j.State != lanegate.StateSucceeded || string(j.Result) != controls {
		t.Errorf("%s came back as %s, state %s", controls, j.Result, j.State)
	}

	t.Run("in a result", func(t *testing.T) {
		j := g.ended(g.submit("nul", "null").ID)
		if want := `{"a": "\u0000\u001b\ud800"}`; j.State != lanegate.StateSucceeded || string(j.Result) != want {
			t.Errorf("state %s, result %s, want succeeded and %s", j.State, j.Result, want)
		}
		if status, text := g.do("GET", "/jobs?class=nul", ""); status != http.StatusOK || !bytes.Contains(text, []byte(j.ID)) {
			t.Errorf("the list: %d %s", status, text)
		}
	})
	t.Run("in the output", func(t *testing.T) {
		j := g.ended(g.submit("raw", "null").ID)
		if j.State != lanegate.StateFailed {
			t.Errorf("state %s, want failed", j.State)
		}
		status, text := g.do("GET", "/jobs/"+j.ID+"/output", "")
		if status != http.StatusOK || bytes.IndexByte(text, 0) >= 0 || !strings.Contains(string(text), `a\x00b`) {
			t.Errorf("output: %d %q, want NUL escaped", status, text)
		}
		if status, text := g.do("GET", "/jobs/"+j.ID+"/attempts", ""); status != http.StatusOK || !bytes.Contains(text, []byte(`"exit_code":3`)) {
			t.Errorf("attempts: %d %s", status, text)
		}
	})
}
