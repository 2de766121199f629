"""A perceptual hash behind an address, to try out attacks that can only ask: `imagehash.phash` in numpy.

    python scripts/benchmarks/hash_server.py --port 8765

POST a PNG file; the answer is a JSON list of 64 numbers, 1 for a bit that is set and -1 for one that is not.
"""

import argparse
import io
import json
import math
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
from PIL import Image

SIDE, FREQUENCIES = 32, 8


def phash(pixels: np.ndarray) -> np.ndarray:
    """Pictures (N,H,W,3) uint8 -> bits (N,64) as 1 and -1, row by row."""
    grey = np.floor((pixels @ np.array([19595.0, 38470.0, 7471.0]) + 2**15) / 2**16)
    frequency, down = (lanczos(size) for size in (grey.shape[2], grey.shape[1]))
    narrow = np.clip(np.floor(grey @ frequency.T + 0.5), 0, 255)
    small = np.clip(np.floor(down @ narrow + 0.5), 0, 255)
    cosines = np.cos(math.pi / SIDE * np.outer(np.arange(FREQUENCIES), np.arange(SIDE) + 0.5))
    lowest = (cosines @ small @ cosines.T).reshape(len(pixels), -1)
    return np.where(lowest > np.median(lowest, axis=1, keepdims=True), 1, -1)


@lru_cache(maxsize=8)
def lanczos(size: int) -> np.ndarray:
    """Pillow's antialiased Lanczos from `size` to SIDE pixels, as a matrix (SIDE,size)."""
    scale = size / SIDE
    wide = max(scale, 1.0)
    residual = (np.arange(size) + 0.5 - (np.arange(SIDE)[:, None] + 0.5) * scale) / wide
    weights = np.where(np.abs(residual) < 3, np.sinc(residual) * np.sinc(residual / 3), 0.0)
    matrix: np.ndarray = weights / weights.sum(1, keepdims=True)
    return matrix


class HashHandler(BaseHTTPRequestHandler):
    """Answers each POST of a PNG file."""

    wbufsize = 2**16  # one packet: a second one would wait for the first to be acknowledged

    def do_POST(self) -> None:
        file = self.rfile.read(int(self.headers["Content-Length"]))
        with Image.open(io.BytesIO(file)) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        content = json.dumps(phash(pixels[None])[0].tolist()).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=8765)
    ThreadingHTTPServer(("127.0.0.1", parser.parse_args().port), HashHandler).serve_forever()


if __name__ == "__main__":
    main()
