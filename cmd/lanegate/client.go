package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// clientFlags say which gateway to talk to.
type clientFlags struct {
	URL       string        `default:"http://127.0.0.1:8080" placeholder:"URL" env:"LANEGATE_URL" help:"The gateway. Default: ${default}."`
	TokenFile string        `placeholder:"FILE" env:"LANEGATE_TOKEN_FILE" help:"File with the token; or put the token itself into $$LANEGATE_TOKEN."`
	RetryFor  time.Duration `default:"15m" placeholder:"15m" help:"How long to go on trying while the gateway is away or asks for patience (429, 503)."`
}

// client talks to a gateway and repeats what may be repeated.
type client struct {
	base     string
	token    string
	retryFor time.Duration
	http     *http.Client
	notef    func(format string, args ...any)
}

func (f clientFlags) client(t terminal) (*client, error) {
	u, err := url.Parse(f.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, usagef("--url %q is not an http or https URL", f.URL)
	}
	token := strings.TrimSpace(t.getenv("LANEGATE_TOKEN"))
	if f.TokenFile != "" {
		text, err := os.ReadFile(f.TokenFile)
		if err != nil {
			return nil, usagef("--token-file: %w", err)
		}
		if token = strings.TrimSpace(string(text)); token == "" {
			return nil, usagef("--token-file %s is empty", f.TokenFile)
		}
	}
	return &client{
		base: strings.TrimRight(f.URL, "/"), token: token, retryFor: f.RetryFor, notef: t.notef,
		http: &http.Client{
			// Never follow a redirect: it would turn a POST into a GET.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}, nil
}

// answer is a response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// maxAnswer bounds what is read of one response.
const maxAnswer = 32 << 20

// call sends one request; it must be one that may be repeated. It tries again,
// for retryFor at most, while no answer comes or the answer asks for patience.
// The returned error means that no answer came; limit bounds each try.
func (c *client) call(ctx context.Context, method, path string, body []byte, limit time.Duration) (answer, error) {
	began := time.Now()
	for wait := time.Second; ; wait = min(2*wait, 30*time.Second) {
		a, err := c.once(ctx, method, path, body, limit)
		if ctx.Err() != nil {
			return a, ctx.Err()
		}
		if err == nil && !patience(a.status) {
			return a, nil
		}
		pause := jittered(wait)
		why := "no answer"
		if err == nil {
			why = fmt.Sprintf("status %d", a.status)
			if asked, ok := retryAfter(a.header); ok {
				pause = asked
			}
		} else if uerr, ok := errors.AsType[*url.Error](err); ok {
			why = uerr.Err.Error()
		}
		if time.Since(began)+pause > c.retryFor {
			if err != nil {
				return a, err
			}
			return a, nil
		}
		c.notef("lanegate: %s from %s; trying again in %s\n", why, c.base, pause.Round(time.Second/10))
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-time.After(pause):
		}
	}
}

func (c *client) once(ctx context.Context, method, path string, body []byte, limit time.Duration) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("User-Agent", "lanegate/"+versionText())
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return answer{resp.StatusCode, resp.Header, text}, err
}

// patience says whether a status asks to try again.
func patience(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// jittered spreads clients that failed together: half of d to all of it.
func jittered(d time.Duration) time.Duration { return d/2 + rand.N(d/2) }

// retryAfter reads the header in its form of seconds; dates and absurd values are ignored.
func retryAfter(h http.Header) (time.Duration, bool) {
	n, err := strconv.Atoi(h.Get("Retry-After"))
	if err != nil || n < 0 || n > 3600 {
		return 0, false
	}
	// At least a little: "0" asks for no wait, but it was just refused.
	return max(time.Duration(n)*time.Second, 200*time.Millisecond), true
}

// problem is the part of an error body that people need.
type problem struct {
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Title  string `json:"title"`
	Errors []struct {
		Pointer string `json:"pointer"`
		Detail  string `json:"detail"`
	} `json:"errors"`
	Fields []struct {
		Pointer string `json:"pointer"`
		Detail  string `json:"detail"`
	} `json:"fields"`
}

// refusal is the error of an answer that is no success.
func (a answer) refusal() error {
	var p problem
	if json.Unmarshal(a.body, &p) != nil || (p.Detail == "" && p.Title == "") {
		text := strings.TrimSpace(string(a.body[:min(len(a.body), 300)]))
		return fmt.Errorf("the gateway answered %d: %s", a.status, text)
	}
	text := p.Detail
	if text == "" {
		text = p.Title
	}
	for _, f := range append(p.Errors, p.Fields...) {
		text += fmt.Sprintf("\n  %s %s", f.Pointer, f.Detail)
	}
	if p.Code != "" {
		text = p.Code + ": " + text
	}
	return fmt.Errorf("the gateway answered %d: %s", a.status, text)
}
