"""Answers that only say same or not: changed within a budget, and by how little, against ART's HopSkipJump."""

import importlib
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attacks import EOT, NES, Away, LabelOnly, Linf
from attacks.data.gallery import tiles
from attacks.encoders.black_box.asked import BlackBox
from attacks.eot.problem import Options, Problem
from attacks.solvers.search import loop_of
from transforms import Compose

from .asked import EPS, Spent, bytes_of
from .contest import installed
from .hash_server import phash
from .table import MISSING, Row, Table

#: Views of a step: losses, of one picture each.
VIEWS = 20


def run(pictures: int = 8, queries: tuple[int, ...] = (400, 1000), size: int = 128, within: int = 14) -> list[Table]:
    """A hash service that answers whether two pictures are the same `within` some of 64 bits: the share of pictures
    whose answer changes within L-inf 8/255, and the median over pictures of the smallest change, in levels of 255,
    that changed an answer among all pictures asked about; ours, and ART's HopSkipJump at equal queries.

    Ours succeed by their last iterate; ART's by any picture asked about, also when it is clipped to the radius.
    """
    every = tiles(size).images
    images = every[torch.linspace(0, len(every) - 1, pictures).long()]
    tables = []
    for name, hashed in {"imagehash.phash": phash, "dHash": dhash}.items():
        rows: dict[str, Row] = {}
        for title, attack in ATTACKS.items():
            if title.startswith("ART") and not installed("art"):
                rows[title] = MISSING
                continue
            rows[title] = tuple(
                figure for count in queries for figure in _figures(hashed, attack, images, count, within)
            )
        kinds = (("success", ".2f"), ("size", ".1f"))
        columns = {f"{what}, {count:,}": form for count in queries for what, form in kinds}
        notes = (f"{pictures} pictures of {size} pixels; the same within {within} of 64 bits; L-inf 8/255",)
        tables.append(Table(f"Changed answers of {name}, by queries of a picture", columns, rows, notes=notes))
    return tables


Hash = Callable[[np.ndarray], np.ndarray]


class Service:
    """The answers about one picture (1,3,H,W), until the budget is spent, and the smallest change that was seen to
    change one."""

    def __init__(self, hashed: Hash, image: Tensor, queries: float, within: int) -> None:
        self.hashed, self.left, self.within = hashed, queries, within
        self.own, self.bits, self.least = bytes_of(image).astype(int), hashed(bytes_of(image)), 256.0

    def same(self, pixels: np.ndarray) -> np.ndarray:
        """8-bit pictures (N,H,W,3) -> 1 or 0 (N,)."""
        self.left -= len(pixels)
        if self.left < 0:
            raise Spent
        alike: np.ndarray = (self.hashed(pixels) != self.bits).sum(1) <= self.within
        sizes = np.abs(pixels - self.own).reshape(len(pixels), -1).max(1)
        self.least = min([self.least, *sizes[~alike].tolist()])
        return alike.astype(np.float32)


Attack = Callable[[Service, Tensor, int], bool]


def _figures(hashed: Hash, attack: Attack, images: Tensor, queries: int, within: int) -> tuple[float, float]:
    """The share of successes, and the median smallest change (256: none)."""
    successes, sizes = [], []
    for image in images[:, None]:
        service = Service(hashed, image, math.inf, within)
        successes.append(attack(service, image, queries))
        sizes.append(service.least)
    return float(np.mean(successes)), float(np.median(sizes))


def ours(optimiser: NES) -> Attack:
    """One of our attacks; its last iterate must change the answer."""

    def attack(service: Service, image: Tensor, queries: int) -> bool:
        encoder = BlackBox(service.same, answer="same")
        problem = Problem(image, torch.tensor([[1.0, 0.0]]), encoder, Away(), Linf(EPS))
        options = Options(optimiser, EOT(Compose(), views=VIEWS), steps=queries // VIEWS)
        *_, last = loop_of(optimiser)(problem, options, None)
        return not service.same(bytes_of(image + last.delta))[0]

    return attack


def hop_skip_jump(service: Service, image: Tensor, queries: int) -> bool:
    """ART's HopSkipJump in the L-inf norm, to the end of the budget."""
    evasion: Any = importlib.import_module("art.attacks.evasion")
    classifiers: Any = importlib.import_module("art.estimators.classification")
    np.random.seed(0)  # noqa: NPY002  # which ART draws from
    free, changed = Service(service.hashed, image, math.inf, service.within), []
    service.left = queries

    def classes(x: np.ndarray) -> np.ndarray:
        rows = []
        for picture in torch.from_numpy(np.asarray(x, dtype=np.float32))[:, None]:
            same = float(service.same(bytes_of(picture))[0])
            changed.append(not free.same(bytes_of(image + (picture - image).clamp(-EPS, EPS)))[0])
            rows.append([same, 1 - same])
        return np.array(rows, dtype=np.float32)

    classifier = classifiers.BlackBoxClassifierNeuralNetwork(
        classes, tuple(image.shape[1:]), 2, channels_first=True, clip_values=(0.0, 1.0)
    )
    made = evasion.HopSkipJump(classifier, targeted=False, norm=np.inf, verbose=False, batch_size=1, max_iter=queries)
    with suppress(Spent):
        made.generate(image.numpy(), y=np.array([[1.0, 0.0]]))
    return any(changed)


def dhash(pixels: np.ndarray) -> np.ndarray:
    """Pictures (N,H,W,3) uint8 -> 64 bits as 1 and -1: whether a block mean exceeds its left neighbour (8 x 9)."""
    grey = (torch.from_numpy(pixels).double() @ torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64))[:, None]
    small = torch.nn.functional.adaptive_avg_pool2d(grey, (8, 9))[:, 0].round()
    return np.where((small.diff(dim=2) > 0).flatten(1).numpy(), 1, -1)


ATTACKS: dict[str, Attack] = {
    "ours, label_only": ours(LabelOnly()),
    "ours, nes": ours(NES()),
    "ART HopSkipJump": hop_skip_jump,
}
