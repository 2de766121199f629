"""An address that pictures are sent to, as a black box.

One picture: POST, `Content-Type: image/png`, the PNG file as the body; the response is JSON, the answer itself or
{"answer": ...}, null for none. With a `batch` above 1: POST, `application/json`, {"pictures": [PNG files in base64]};
the response is a list of answers or {"answers": [...]}. A key is sent as `Authorization: Bearer KEY`.
"""

import base64
import http.client
import json
import math
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from typing import Any

import numpy as np

from attacks.encoders.black_box.asked import MOST_BYTES, AnswerError, BlackBox, png

#: Seconds before the first retry, twice as many before each next one, and the most.
PAUSE, LONGEST = 0.5, 60.0
#: Statuses that may pass.
PASSING = (408, 425, 429, 500, 502, 503, 504)


def endpoint(
    model: str,
    answer: str = "vector",
    key: str | None = None,
    batch: int = 1,
    rate: float | None = None,
    retries: int = 5,
    timeout: float = 30.0,
) -> BlackBox:
    """The address `model`, http:// or https://; nothing is sent before the first picture.

    Use: a service of your own, or one that you are allowed to test.
    Not: a service that you have no permission for; pictures are sent to it.
    Source: this project's own.
    Cost: one request for each `batch` of new pictures.
    Oracle: the hash behind an address, tests/encoders/black_box/test_endpoint.py.
    With: encoder.model=http://localhost:8000/embed

    Args:
        answer: as of `BlackBox`.
        key: the environment variable that holds the key; None: no key is sent.
        batch: the most pictures of one request.
        rate: the most requests in a second; None: as they come.
        retries: of a request that is not answered, is refused for the moment (429, 503, ...) or answered by no JSON.
        timeout: seconds for a connection, and then for the whole request and response.

    Raises ValueError: no such address, variable, or a number out of its range. Of a picture: `AnswerError`.
    """
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", model):
        raise ValueError(
            f"`model` must be an address without a query, http://HOST/PATH or https://HOST/PATH; got {model!r}"
        )
    if key is not None and not re.fullmatch(r"VIEWPROOF_[A-Z0-9_]+", key):
        raise ValueError(
            "`key` must be the name of an environment variable that begins with VIEWPROOF_, such as VIEWPROOF_KEY, "
            "and never a key itself: no preset and no run directory can choose another secret to be sent"
        )
    if key is not None and not re.fullmatch("[\x20-\x7e]+", os.environ.get(key, "")):
        raise ValueError(f"`key`: the environment variable {key} is empty, or not ASCII on one line: export it anew")
    if rate is not None and not 0 < rate < math.inf:
        raise ValueError(f"`rate` must be a number of requests in a second, above 0; got {rate}")
    if type(retries) is not int or retries < 0:
        raise ValueError(f"`retries` must be a whole number, at least 0; got {retries!r}")
    if not 0 < timeout < math.inf:
        raise ValueError(f"`timeout` must be a number of seconds, above 0; got {timeout}")
    secret = None if key is None else os.environ[key]
    interval = 0.0 if rate is None else 1 / rate
    client = _Client(model, secret, interval, retries, timeout, batch * MOST_BYTES)

    def ask(pixels: np.ndarray) -> Any:
        files = [png(picture) for picture in pixels]
        if batch == 1:
            return [_entry(client.post(files[0], "image/png"), "answer")]
        content = {"pictures": [base64.b64encode(file).decode() for file in files]}
        return _entry(client.post(json.dumps(content).encode(), "application/json"), "answers")

    return BlackBox(ask, f"http:{model}", answer=answer, batch=batch)


class _Client:
    """Posts to one address, at most so often, and again where that may help. No message quotes the server: it may
    have sent the key back."""

    def __init__(
        self, url: str, secret: str | None, interval: float, retries: int, timeout: float, limit: int
    ) -> None:
        self.url, self.interval, self.retries, self.timeout, self.limit = url, interval, retries, timeout, limit
        self.headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        self.next = 0.0  # when the next request may be sent

    def post(self, body: bytes, kind: str) -> Any:
        """The JSON that answers a body. Raises AnswerError in one line."""
        for attempt in range(self.retries + 1):
            pause = PAUSE * 2**attempt
            try:
                return json.loads(self._send(body, kind))
            except AnswerError:
                raise
            except urllib.error.HTTPError as error:
                error.close()
                seconds = error.headers.get("Retry-After") or ""
                reason, pause = f"status {error.code}", max(pause, float(seconds) if seconds.isdecimal() else 0.0)
                if error.code not in PASSING:
                    raise AnswerError(f"encoder http:{self.url}: the server refuses a picture ({reason})") from None
            except (http.client.HTTPException, ConnectionError) as error:
                reason = f"no whole HTTP response ({type(error).__name__})"
            except OSError as error:  # URLError is one
                cause = getattr(error, "reason", error)
                reason = getattr(cause, "strerror", None) or f"no answer in {self.timeout:g} s"
            except (ValueError, RecursionError):
                reason = "an answer that is not JSON"
            if attempt < self.retries:
                time.sleep(min(pause, LONGEST))
        raise AnswerError(
            f"encoder http:{self.url}: no answer in {self.retries + 1} attempts, at last {reason}; the answers so "
            "far are kept (resume=DIRECTORY goes on)"
        )

    def _send(self, body: bytes, kind: str) -> bytes:
        time.sleep(max(0.0, self.next - time.monotonic()))
        self.next = time.monotonic() + self.interval
        headers = {"Content-Type": kind, "Accept": "application/json", **self.headers}
        request = urllib.request.Request(self.url, body, headers, method="POST")
        deadline = _Deadline(self.timeout)
        with deadline, _opener(deadline).open(request, timeout=self.timeout) as response:
            data: bytes = response.read(self.limit + 1)
        if deadline.is_over:  # what was read may be cut
            raise TimeoutError
        if len(data) > self.limit:
            raise AnswerError(f"encoder http:{self.url}: an answer of more than {self.limit} bytes")
        if response.length:  # as many are missing
            raise http.client.IncompleteRead(data, response.length)
        return data


class _Deadline:
    """Ends the connections that are opened in a block when the time of a connection is over, however slowly the other
    side answers: the time-out of a socket begins anew with each byte."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.is_over = seconds, False
        self.timers: list[threading.Timer] = []

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for timer in self.timers:
            timer.cancel()

    def begin(self, connection: socket.socket) -> None:
        """The time of a connection begins."""
        self.timers.append(threading.Timer(self.seconds, self._end, (connection,)))
        self.timers[-1].daemon = True
        self.timers[-1].start()

    def _end(self, connection: socket.socket) -> None:
        self.is_over = True
        with suppress(OSError):  # it has ended
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # of a TLS socket too, without a farewell


def _opener(deadline: _Deadline) -> urllib.request.OpenerDirector:
    """Opens addresses with connections that the deadline ends."""

    class Http(http.client.HTTPConnection):
        def connect(self) -> None:
            super().connect()
            deadline.begin(self.sock)

    class Https(http.client.HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            deadline.begin(self.sock)

    class Handler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
        def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Http, request)

        def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Https, request)

    return urllib.request.build_opener(_Stay(), Handler())


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: the key would go along to another host."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def _entry(content: Any, name: str) -> Any:
    return content.get(name, content) if isinstance(content, dict) else content
