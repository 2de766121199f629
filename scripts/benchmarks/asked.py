"""Bits of a hash that can only be asked, against the white-box attack on the same hash and against ART."""

import importlib
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import ThreadingHTTPServer
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks import EOT, NES, Away, Linf, Square, Wiener, solve
from attacks.data.gallery import tiles
from attacks.encoders import Phash
from attacks.encoders.black_box.asked import BlackBox
from attacks.encoders.black_box.endpoint import endpoint
from attacks.eot.problem import Options, Problem
from attacks.objectives.bits import Bits
from attacks.solvers.search import loop_of
from transforms import Compose

from .contest import installed
from .hash_server import Handler, phash
from .table import MISSING, Row, Table

#: The L-inf radius, gradients of the white-box attack, and the bits that make another picture for HopSkipJump.
EPS, GRADIENTS, OTHER = 8 / 255, 400, 10


class Spent(Exception):  # not an error
    """The budget of a peer is used up."""


def run(pictures: int = 4, queries: tuple[int, ...] = (1000, 10000), size: int = 128) -> list[Table]:
    """Bits of a perceptual hash that change (L-inf 8/255), asked over HTTP, as a share of those of the white-box
    attack on the same hash; ours, and ART's SquareAttack and HopSkipJump.

    A query is one 8-bit picture. Ours are judged by their last iterate; of ART's attacks the best of all pictures
    counts that they asked about within the radius, or that their queries become when they are clipped to it.
    """
    every = tiles(size).images
    images = every[torch.linspace(0, len(every) - 1, pictures).long()]
    hashed = Phash()
    white = solve(
        *(images, hashed(images)),
        encoder=hashed,
        objective=Bits(),
        perturbation=Linf(EPS),
        optimiser=Wiener(),
        eot=EOT(Compose(), views=1),
        steps=GRADIENTS,
    )
    top = float(flipped(images, images + white.delta).mean())
    rows: dict[str, list[float | None] | str] = {"white box": [top, 1.0] * len(queries)}
    for name, attack in ATTACKS.items():
        if name.startswith("ART") and not installed("art"):
            rows[name] = MISSING
            continue
        row: list[float | None] = []
        for count in queries:
            with served() as url:
                bits = float(attack(endpoint(url), images, count).mean())
            row += [bits, bits / top]
        rows[name] = row
    columns = {f"{what}, {count:,}": form for count in queries for what, form in (("bits", ".1f"), ("share", ".2f"))}
    made: dict[str, Row] = {name: row if isinstance(row, str) else tuple(row) for name, row in rows.items()}
    notes = (f"{pictures} pictures of {size} pixels; white box: {GRADIENTS} gradients",)
    return [Table("Bits of 64 that change, by queries of a picture", columns, made, notes=notes)]


@contextmanager
def served() -> Iterator[str]:
    """The address of the hash, served by a thread."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def bytes_of(images: Tensor) -> np.ndarray:
    """(N,3,H,W) in [0,1] -> (N,H,W,3) uint8."""
    array: np.ndarray = (images.clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).numpy()
    return array


def flipped(images: Tensor, attacked: Tensor) -> Tensor:
    """The number of bits (N,) that differ."""
    return torch.from_numpy((phash(bytes_of(images)) != phash(bytes_of(attacked))).sum(1)).double()


def ours(optimiser: NES | Square, views: int) -> Callable[[BlackBox, Tensor, int], Tensor]:
    def attack(encoder: BlackBox, images: Tensor, queries: int) -> Tensor:
        problem = Problem(images, encoder(images), encoder, Away(), Linf(EPS))
        options = Options(optimiser, EOT(Compose(), views=views), steps=queries // views)
        (last,) = deque(loop_of(optimiser)(problem, options, None), maxlen=1)  # a list of 10,000 steps fills a memory
        return flipped(images, images + last.delta)

    return attack


class Oracle:
    """A picture's hash for ART: `classes` of pictures (N,3,H,W) as numpy, until the budget is spent."""

    def __init__(self, encoder: BlackBox, image: Tensor, queries: int, decision: bool) -> None:
        self.encoder, self.image, self.left, self.decision = encoder, image, queries, decision
        self.clean, self.best = encoder(image), 0.0

    def __call__(self, x: np.ndarray) -> np.ndarray:
        rows = []
        for picture in torch.from_numpy(np.asarray(x, dtype=np.float32)):
            if not self.left:
                raise Spent
            self.left -= 1
            bits = float((self.encoder(picture[None]) != self.clean).sum())
            within = self.image + (picture[None] - self.image).clamp(-EPS, EPS)
            self.best = max(self.best, float(flipped(self.image, within)))
            other = float(bits >= OTHER) if self.decision else bits / 64
            rows.append([1 - other, other if self.decision else -9.0])  # a score never makes it another class
        return np.array(rows, dtype=np.float32)


def peer(name: str, decision: bool, **options: Any) -> Callable[[BlackBox, Tensor, int], Tensor]:
    """An attack of ART by name, picture by picture."""

    def attack(encoder: BlackBox, images: Tensor, queries: int) -> Tensor:
        evasion: Any = importlib.import_module("art.attacks.evasion")
        classifiers: Any = importlib.import_module("art.estimators.classification")
        best = []
        for image in images[:, None]:
            oracle = Oracle(encoder, image, queries, decision)
            shape = tuple(image.shape[1:])
            classifier = classifiers.BlackBoxClassifierNeuralNetwork(
                oracle, shape, 2, channels_first=True, clip_values=(0.0, 1.0)
            )
            made = getattr(evasion, name)(classifier, norm=np.inf, verbose=False, batch_size=1, **options)
            made.max_iter = queries
            with suppress(Spent):
                made.generate(image.numpy(), y=np.array([[1.0, 0.0]]))
            best.append(oracle.best)
        return torch.tensor(best, dtype=torch.float64)

    return attack


ATTACKS: dict[str, Callable[[BlackBox, Tensor, int], Tensor]] = {
    "ours, nes": ours(NES(), 20),
    "ours, square": ours(Square(), 1),
    "ART SquareAttack": peer("SquareAttack", False, eps=EPS),
    "ART HopSkipJump": peer("HopSkipJump", True, targeted=False),
}
