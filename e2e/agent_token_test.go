package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// Who comes with no token, one of another role, or one that the gateway does not
// know, gets nothing and is told why; the right one works beside them.
func TestAgentAndRunNeedTheirTokens(t *testing.T) {
	t.Parallel()
	w := agentWorld(t, "")
	w.start()
	w.write("stranger.token", "a-token-of-some-other-gateway\n")
	w.write("none.token", "\n")
	agent := []string{"agent", "--config", w.path("commands.yaml"), "--lanes", "serial,parallel"}
	run := []string{"run", "--class", "far", "--beat", "500ms", "--kill-grace", "1s"}
	for _, c := range []struct {
		command []string
		token   string
		code    int
		says    string
	}{
		{run, "submit", 125, "has role submit; this call needs agent"},
		{run, "agent", 125, "has role agent; this call needs submit"},
		{run, "stranger", 125, "this token is not known here"},
		{run, "none", 2, "none.token is empty"},
		{agent, "submit", 2, "has role submit; this call needs agent"},
		{agent, "view", 2, "has role view; this call needs agent"},
		{agent, "stranger", 2, "this token is not known here"},
		{agent, "none", 2, "none.token is empty"},
	} {
		w.log.forget()
		args := append(c.command[:len(c.command):len(c.command)], "--url", w.url(""), "--token-file", w.path(c.token+".token"))
		if c.command[0] == "run" {
			args = append(args, "--", "sh", w.path("probe.sh"))
		}
		if code := w.spawn(args...).code(t, 20*time.Second); code != c.code || !w.log.contains(c.says) {
			t.Errorf("%s with the token %s: exited with %d, want %d and %q; it said:\n%s", c.command[0], c.token, code, c.code, c.says, w.log.tail(2000))
		}
	}
	if events := w.events(); len(events) > 0 {
		t.Errorf("somebody was let in: %v", events)
	}
	w.agent()
	if j := w.final(w.submit("far", "").ID, 20*time.Second); j.State != "succeeded" {
		t.Errorf("with the right token: %s: %s", j.State, j.Reason)
	}
}

// An agent's token opens nothing but what an agent needs.
func TestAgentTokenOpensNothingElse(t *testing.T) {
	t.Parallel()
	w := agentWorld(t, "")
	w.start()
	for path, body := range map[string]string{"/jobs": `{"class": "far"}`, "/lanes/serial/pause": "", "/job-classes/far/promote": "{}"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url(path), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+w.tokens["agent"])
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusForbidden {
			t.Errorf("POST %s with an agent's token: %s", path, resp.Status)
		}
	}
}
