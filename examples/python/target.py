#!/usr/bin/env python3
"""An asynchronous target for lanegate: takes a job with 202, works, reports.

    class:  {"run": {"kind": "http", "mode": "async", "url": "http://127.0.0.1:9000/"}}
    start:  python3 target.py --listen 127.0.0.1:9000 --gateway http://127.0.0.1:8080

The payload says how long the work takes: {"seconds": 5}. Put your own into work().
"""

import argparse
import http.server
import json
import threading
import time

import gateway


def work(job, payload, stop):
    """Do the job; return a completion. Look at stop now and then: it means cancelled."""
    if stop.wait(float((payload or {}).get("seconds", 1))):
        return {"outcome": "cancelled"}
    if (payload or {}).get("fail"):
        return {"outcome": "failed", "error": "the payload asked for a failure"}
    return {"outcome": "succeeded", "result": {"done": job["id"]}, "output": "worked on %s\n" % job["id"]}


class Run:
    """One attempt: its work in one thread, its heartbeats in another."""

    def __init__(self, options, job, payload):
        self.options, self.job, self.payload = options, job, payload
        self.path = "/jobs/%s/attempts/%s/" % (job["id"], job["attempt"])
        self.stop, self.done = threading.Event(), threading.Event()

    def start(self):
        threading.Thread(target=self.run, daemon=True).start()
        threading.Thread(target=self.beat, daemon=True).start()

    def run(self):
        self.note("start")
        try:
            completion = work(self.job, self.payload, self.stop)
        except Exception as err:  # a fault of the work is its outcome, not the target's end
            completion = {"outcome": "failed", "error": repr(err)}
        self.note("end")
        self.done.set()
        try:
            gateway.persist(self.options.gateway, self.path + "complete", self.job["token"], completion)
        except gateway.Refused as err:
            print("completion refused:", err, flush=True)

    def beat(self):
        # Three tries before the deadline: one lost beat must not cost the run.
        while not self.done.wait(self.job["heartbeat"] / 3):
            try:
                answer = gateway.post(self.options.gateway, self.path + "heartbeat", self.job["token"], {})
                if answer["cancel_requested"]:
                    self.stop.set()
            except gateway.Refused:
                self.stop.set()  # the attempt is over for the gateway; someone else may have the job
            except OSError:
                pass  # the next beat tries again

    def note(self, what):
        if self.options.journal:
            line = "%s %s %s %s %d\n" % (what, self.job["class"], self.job["id"], self.job["attempt"], time.time_ns())
            with open(self.options.journal, "a") as journal:
                journal.write(line)


class Handler(http.server.BaseHTTPRequestHandler):
    """Takes jobs. The gateway may send one twice: the token tells."""

    known = set()
    lock = threading.Lock()

    def do_POST(self):
        payload = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        job = {
            "id": self.headers["Lanegate-Job-Id"],
            "attempt": self.headers["Lanegate-Attempt"],
            "class": self.headers["Lanegate-Class"],
            "token": self.headers["Lanegate-Token"],
            "heartbeat": float(self.headers["Lanegate-Heartbeat-Seconds"]),
        }
        with self.lock:
            new = job["token"] not in self.known
            self.known.add(job["token"])
        if new:
            Run(self.server.options, job, payload).start()
        self.send_response(202)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--listen", default="127.0.0.1:9000", help="host:port")
    parser.add_argument("--gateway", default="http://127.0.0.1:8080", help="URL of lanegate")
    parser.add_argument("--journal", help="file that takes a line at each start and end of work")
    options = parser.parse_args()
    host, port = options.listen.rsplit(":", 1)
    server = http.server.ThreadingHTTPServer((host, int(port)), Handler)
    server.options = options
    print("listening on %s:%d" % server.server_address, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
