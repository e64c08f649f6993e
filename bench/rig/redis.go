package rig

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Redis is a private redis-server on a unix socket that syncs every write before
// it answers (appendfsync always): what PostgreSQL does by default.
type Redis struct {
	Socket string
	dir    string
	proc   *Process
}

// StartRedis starts a server in a folder of its own.
func StartRedis() (*Redis, error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, errors.New("redis-server is missing: run bench/setup.sh, or apt-get install -y redis-server")
	}
	dir, err := os.MkdirTemp("", "lgredis")
	if err != nil {
		return nil, err
	}
	r := &Redis{Socket: filepath.Join(dir, "s"), dir: dir}
	cmd := exec.Command(bin, "--port", "0", "--unixsocket", r.Socket, "--dir", dir,
		"--appendonly", "yes", "--appendfsync", "always", "--save", "", "--daemonize", "no")
	if r.proc, err = Start(cmd); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	err = r.proc.Await(20*time.Second, func() error {
		conn, err := net.Dial("unix", r.Socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Empty deletes all that is stored, as a database that is dropped takes its jobs along:
// what one measurement leaves queued would be run before the jobs of the next.
func (r *Redis) Empty() error {
	conn, err := net.Dial("unix", r.Socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write([]byte("FLUSHALL SYNC\r\n")); err != nil {
		return fmt.Errorf("empty redis: %w", err)
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("empty redis: %w", err)
	}
	if answer = strings.TrimSpace(answer); answer != "+OK" {
		return fmt.Errorf("empty redis: it answers %q", answer)
	}
	return nil
}

// RSS is the server's resident memory in bytes.
func (r *Redis) RSS() (float64, error) { return RSS(r.proc.PID()) }

// Close stops the server and removes its data.
func (r *Redis) Close() error {
	r.proc.Stop(syscall.SIGTERM)
	return os.RemoveAll(r.dir)
}
