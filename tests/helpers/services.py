"""A hash behind a local address, which counts what it has answered and can misbehave."""

import base64
import hashlib
import io
import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image

from scripts.benchmarks.hash_server import phash


class Server(ThreadingHTTPServer):
    """`odd` is called with the number of each request, from 0, and returns what to do instead of an answer: a
    function of the handler, or None."""

    daemon_threads = True

    def __init__(self, odd=lambda number: None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.odd, self.requests, self.answered, self.headers = odd, 0, Counter(), []
        self.lock = threading.Lock()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/hash"


class Handler(BaseHTTPRequestHandler):
    wbufsize = 2**16  # one packet: a second one would wait for the first to be acknowledged

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            odd = self.server.odd(self.server.requests)
            self.server.requests += 1
            self.server.headers.append(dict(self.headers))
        if odd is not None:
            odd(self)
            return
        several = self.headers["Content-Type"] == "application/json"
        files = [base64.b64decode(text) for text in json.loads(body)["pictures"]] if several else [body]
        pixels = [np.asarray(Image.open(io.BytesIO(file))) for file in files]
        with self.server.lock:
            self.server.answered.update(hashlib.sha256(picture.tobytes()).hexdigest() for picture in pixels)
        rows = [phash(picture) for picture in pixels]
        self.reply(200, json.dumps({"answers": rows} if several else rows[0]).encode())

    def reply(self, status, content, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def serving(odd=lambda number: None):
    """A server in a thread."""
    with Server(odd) as server, ThreadPoolExecutor() as pool:
        pool.submit(server.serve_forever, 0.01)
        try:
            yield server
        finally:
            server.shutdown()
