#!/usr/bin/env python3
"""A small agent for lanegate: asks for work, runs one command, reports.

    class:  {"run": {"kind": "agent", "command": "heavy"}}
    start:  python3 agent.py --gateway http://127.0.0.1:8080 heavy python3 heavy.py

The payload comes on the command's standard input. `lanegate agent` does more: it
also ends a command whose agent was killed. Run this one under something that does,
such as systemd.
"""

import argparse
import hashlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
import uuid

import gateway

MARGIN = 0.25  # the last part of the lease, before which runs must be gone


def now():
    """A clock that nobody can set and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Run:
    """One attempt and its process group."""

    def __init__(self, agent, grant):
        self.agent, self.grant = agent, grant
        self.why = None  # the outcome to report when it was stopped; "" reports nothing
        self.process = None
        self.lock = threading.Lock()
        threading.Thread(target=self.work).start()

    def work(self):
        environ = dict(os.environ, LANEGATE_JOB_ID=self.grant["job"], LANEGATE_ATTEMPT=str(self.grant["attempt"]))
        completion = {"outcome": "interrupted"}
        try:
            with self.lock:
                if self.why is None:
                    self.process = subprocess.Popen(
                        self.agent.argv, env=environ, start_new_session=True,
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            if self.process:
                limit = self.grant.get("timeout_seconds") or None
                try:
                    output, _ = self.process.communicate(self.grant["payload"].encode(), timeout=limit)
                except subprocess.TimeoutExpired:
                    self.stop("timed_out")
                    output, _ = self.process.communicate()
                completion = self.judge(output)
        except OSError as err:
            completion = {"outcome": "failed", "error": str(err)}
        if self.why != "":
            self.agent.report(self.grant, completion)
        self.agent.ended(self)

    def judge(self, output):
        code = self.process.returncode
        done = {"output": output.decode("utf-8", "replace"), "exit_code": max(code, 0)}
        if self.why:
            return dict(done, outcome=self.why)
        if code == 75:
            return dict(done, outcome="deferred")
        return dict(done, outcome="succeeded" if code == 0 else "failed", error="" if code == 0 else "exit %d" % code)

    def stop(self, why):
        """End the process group; whoever says why first is reported."""
        with self.lock:
            if self.why is None:
                self.why = why
            if self.process and self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)


class Agent:
    def __init__(self, options):
        self.options, self.argv = options, options.argv
        self.worker = str(uuid.uuid4())
        self.digest = hashlib.sha256("\0".join(options.argv).encode()).hexdigest()
        self.lock = threading.Lock()
        self.runs = {}  # token of the attempt: Run; guarded by lock, as is the rest
        self.asked = self.answered = 0  # requests for work that were begun and that are over
        self.strays = {}  # token of an attempt that is not here: how many had been begun when it was first listed
        self.seen = set()  # the strays of the beat before
        self.lease, self.beaten = 60.0, now()
        self.leaving = threading.Event()

    def post(self, path, body, timeout=10):
        return gateway.post(self.options.gateway, path, self.options.token, dict(body, worker=self.worker), timeout)

    def report(self, grant, completion):
        path = "/jobs/%s/attempts/%d/complete" % (grant["job"], grant["attempt"])
        try:
            gateway.persist(self.options.gateway, path, grant["token"], completion)
        except gateway.Refused as err:
            print("completion refused:", err, flush=True)

    def ended(self, run):
        with self.lock:
            self.runs.pop(run.grant["token"], None)

    def ask(self):
        """One request for work; it is held until there is some."""
        with self.lock:
            busy = len(self.runs) > 0
            self.asked += 1
        sent = now()
        try:
            answer = self.post("/grants", {
                "host": socket.gethostname(), "slots": 1, "commands": {self.options.command: self.digest},
                "lanes": ["serial", "parallel"], "free": 0 if busy else 1, "serial_free": not busy, "wait": "5s",
            }, timeout=30)
            with self.lock:
                self.lease, self.beaten = answer["lease_seconds"], max(self.beaten, sent)
                for grant in answer["grants"]:
                    self.runs[grant["token"]] = Run(self, grant)
        finally:
            with self.lock:
                self.answered += 1

    def beat(self):
        sent = now()
        with self.lock:
            before = dict(self.runs)  # one that is granted meanwhile is not in the answer
        answer = self.post("/grants/heartbeat", {})
        listed = {a["token"]: a for a in answer["attempts"]}
        with self.lock:
            self.lease, self.beaten = answer["lease_seconds"], max(self.beaten, sent)
            self.strays = {t: self.strays.get(t, self.asked) for t in listed if t not in self.runs and t not in before}
            # Granted, but no request that could have brought it is still open.
            lost = [t for t, asked in self.strays.items() if self.answered >= asked and t in self.seen]
            self.seen = set(self.strays)
        for token, run in before.items():
            if token not in listed:
                run.stop("")
            elif listed[token]["cancel_requested"]:
                run.stop("cancelled")
        for token in lost:
            self.report(listed[token], {"outcome": "interrupted"})

    def watch(self):
        """Beats, and ends all runs when beats have not been answered for too long."""
        while not (self.leaving.is_set() and not self.runs):
            try:
                self.beat()
            except (OSError, gateway.Refused) as err:
                print("beat:", err, flush=True)
            if now() - self.beaten > self.lease * (1 - MARGIN):
                for run in list(self.runs.values()):
                    run.stop("interrupted")
            time.sleep(self.lease / 10)

    def serve(self):
        watcher = None
        while not self.leaving.is_set():
            try:
                self.ask()
                if watcher is None:  # it is known to the gateway now
                    watcher = threading.Thread(target=self.watch)
                    watcher.start()
            except OSError as err:
                print("ask:", err, flush=True)
                time.sleep(1)
        for run in list(self.runs.values()):
            run.stop("interrupted")
        if watcher:
            watcher.join()
            self.post("/grants/leave", {})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gateway", default="http://127.0.0.1:8080", help="URL of lanegate")
    parser.add_argument("--token", default=os.environ.get("LANEGATE_TOKEN"), help="of role agent")
    parser.add_argument("command", help="name that classes run it by")
    parser.add_argument("argv", nargs=argparse.REMAINDER, help="the command itself")
    options = parser.parse_args()
    if not options.argv:
        parser.error("the command itself is missing, e.g. heavy python3 heavy.py")
    agent = Agent(options)
    signal.signal(signal.SIGTERM, lambda *_: agent.leaving.set())
    signal.signal(signal.SIGINT, lambda *_: agent.leaving.set())
    print("agent", agent.worker, json.dumps(options.argv), flush=True)
    agent.serve()


if __name__ == "__main__":
    main()
