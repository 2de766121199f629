"""A perceptual hash behind an address, to try out attacks that can only ask.

    python scripts/benchmarks/hash_server.py --port 8765

POST a PNG file; the answer is a JSON list of 64 numbers, 1 for a bit that is set and -1 for one that is not.
"""

import argparse
import io
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
from PIL import Image

from attacks.encoders.phash import Phash, bits


@torch.no_grad()
def phash(pixels: np.ndarray) -> list[int]:
    """A picture (H,W,3) uint8 -> its bits (64,) as 1 and -1, row by row."""
    images = torch.tensor(pixels).permute(2, 0, 1)[None] / 255
    return torch.where(bits(Phash()(images))[0], 1, -1).tolist()


class HashHandler(BaseHTTPRequestHandler):
    wbufsize = 2**16  # one packet: a second one would wait for the first to be acknowledged

    def do_POST(self) -> None:
        file = self.rfile.read(int(self.headers["Content-Length"]))
        with Image.open(io.BytesIO(file)) as picture:
            pixels = np.asarray(picture.convert("RGB"))
        content = json.dumps(phash(pixels)).encode()
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
