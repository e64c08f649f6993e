"""Talking to a lanegate gateway with nothing but Python's standard library."""

import json
import random
import time
import urllib.error
import urllib.request


class Refused(Exception):
    """An answer that asking again can't change; code is stable, e.g. attempt_lost."""

    def __init__(self, status, code, detail):
        super().__init__("%d %s: %s" % (status, code, detail))
        self.status, self.code = status, code


def post(base, path, token, body, timeout=10):
    """Send one POST and return the decoded answer, None for an empty one.

    OSError means that no answer came, or one that asks for patience: try again.
    Refused means that trying again is of no use.
    """
    request = urllib.request.Request(
        base.rstrip("/") + path,
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
        method="POST",
    )
    if token:
        request.add_header("Authorization", "Bearer " + token)
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            text = answer.read()
            return json.loads(text) if text else None
    except urllib.error.HTTPError as err:
        with err:
            text = err.read()
        if err.code in (408, 425, 429) or err.code >= 500:
            raise OSError("the gateway answered %d" % err.code) from err
        try:
            problem = json.loads(text)
        except ValueError:
            problem = {}
        raise Refused(err.code, problem.get("code", ""), problem.get("detail", "")) from err


def persist(base, path, token, body):
    """post again and again until there is an answer: what is reported must arrive.

    Reports may be repeated: the very same completion counts once.
    """
    wait = 0.2
    while True:
        try:
            return post(base, path, token, body)
        except OSError:
            time.sleep(wait * random.uniform(0.5, 1))
            wait = min(wait * 2, 15)
