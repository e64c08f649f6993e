// Package sqstest gives tests a real SQS-speaking server without docker, and a
// proxy in front of it that injects what such a server never does by itself:
// throttling, refusals, faults, latency, lost answers, doubled messages.
//
// Where node or the server's package is missing a test that asks is skipped with
// one line that says what to do; with LANEGATE_TEST_SQS=require it fails.
package sqstest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// Region of the test servers.
const Region = "us-east-1"

const startWait = time.Minute

// Server is an SQS-speaking server on loopback. It keeps everything in memory and
// ends with the test process, however that ends.
type Server struct {
	URL string

	node, script string
	cmd          *exec.Cmd
	stdin        io.Closer
}

var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Shared is the test binary's one server: its queues are everybody's, so a test
// makes its own. It ends with the process.
func Shared(tb testing.TB) *Server {
	tb.Helper()
	node, script := programs(tb)
	shared.once.Do(func() { shared.server, shared.err = start(node, script, "0") })
	if shared.err != nil {
		tb.Fatalf("start an SQS server: %v", shared.err)
	}
	return shared.server
}

// New starts a server of the test's own, for tests that stop it.
func New(tb testing.TB) *Server {
	tb.Helper()
	node, script := programs(tb)
	s, err := start(node, script, "0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = s.Stop() })
	return s
}

// Stop kills the server; its queues and messages are lost.
func (s *Server) Stop() error {
	if s.cmd == nil {
		return nil
	}
	err := errors.Join(s.cmd.Process.Kill(), s.stdin.Close())
	_ = s.cmd.Wait() // it was killed
	s.cmd = nil
	return err
}

// Start starts it again, empty, at the same address.
func (s *Server) Start() error {
	u, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	again, err := start(s.node, s.script, u.Port())
	if err != nil {
		return err
	}
	s.cmd, s.stdin = again.cmd, again.stdin
	return nil
}

func start(node, script, port string) (*Server, error) {
	cmd := exec.Command(node, script)
	cmd.Env = append(os.Environ(), "PORT="+port, "WATCH_STDIN=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &Server{node: node, script: script, cmd: cmd, stdin: stdin}
	line := make(chan error, 1)
	go func() {
		text, err := bufio.NewReader(stdout).ReadBytes('\n')
		if err == nil {
			var ready struct {
				URL string `json:"url"`
			}
			err = json.Unmarshal(text, &ready)
			s.URL = ready.URL
		}
		line <- err
	}()
	select {
	case err = <-line:
	case <-time.After(startWait):
		err = fmt.Errorf("the SQS server was not ready within %v", startWait)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s %s: %w", node, script, err), s.Stop())
	}
	return s, nil
}

// programs returns node and the server's script; without them the test ends.
func programs(tb testing.TB) (node, script string) {
	tb.Helper()
	node, script, err := find(tb.Context())
	if err == nil {
		return node, script
	}
	if os.Getenv("LANEGATE_TEST_SQS") == "require" {
		tb.Fatal(err)
	}
	tb.Skip(err)
	return "", ""
}

func find(ctx context.Context) (node, script string, err error) {
	root, err := moduleRoot()
	if err != nil {
		return "", "", err
	}
	dir := filepath.Join(root, "test", "sqs")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "fauxqs")); err != nil {
		return "", "", errors.New("the SQS-speaking test server is not installed: make deps")
	}
	node = os.Getenv("LANEGATE_TEST_NODE")
	if node == "" {
		out, err := exec.CommandContext(ctx, filepath.Join(root, "scripts", "find-node.sh")).Output()
		if err != nil {
			return "", "", errors.New("no node of version 20 or newer found: make deps, or set LANEGATE_TEST_NODE")
		}
		node = string(out[:max(len(out)-1, 0)])
	}
	return node, filepath.Join(dir, "serve.mjs"), nil
}

// moduleRoot is the folder of go.mod above the test's.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("there is no go.mod above the working directory")
		}
		dir = up
	}
}

// Isolate sets this process's environment so that its clients know the test
// server's credentials and no others, and search no machine for any. TestMain calls it.
func Isolate() {
	for name, value := range map[string]string{
		"AWS_REGION": Region, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_SESSION_TOKEN": "",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_SQS": "", "AWS_PROFILE": "",
	} {
		if err := os.Setenv(name, value); err != nil {
			panic(err) // the names above are wrong
		}
	}
}

// FreeAddress is a loopback address that nobody listens on.
func FreeAddress(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return "http://" + l.Addr().String()
}
