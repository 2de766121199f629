"""The smallest radius of each picture: against bisection by independent runs, and against attacks of minimum norm."""

import math
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks import EOT, L2, Linf, Wiener, bank
from attacks.eot.bank import Bank
from attacks.eot.problem import Options, Problem
from attacks.experiment.build.pipeline import preset
from attacks.objectives.retrieval import Retrieval
from attacks.perturbations.ball import Ball
from attacks.perturbations.radii import Radii
from attacks.solvers.radius import HALF, LEAST, Trial, radius, views_of
from attacks.solvers.solver import watch
from transforms import Compose

from .case import known
from .table import MISSING, Row, Table

#: Side of the pictures, and independent runs of the bisection.
SIZE, RUNS = 64, 8
SETS: dict[str, Ball] = {"linf": Linf(8 / 255), "l2": L2(2.0)}
#: Views that judge the files.
HELD_OUT = 256
COLUMNS = {"broken": ".0f", "median": ".4f", "ratio": ".3f", "most": ".3f"}
NOTE = "ratio, most: median and largest of the radius over"
#: Gradients that a peer has, over those of the search with the run before it; the second time for more.
SHARES = 1, 3


def run(norm: tuple[str, ...] = tuple(SETS), pictures: int = 20, steps: int = 64, views: int = 1) -> list[Table]:
    """Smallest radii of the pocket encoder by one search, by bisection with independent runs, and by DDN and FMN.

    Bisection: the views of the preset `camera`, 8-bit files. DDN and FMN (adversarial-library): the identity view and
    no rounding, because they know neither views nor files. Success is a nearest picture that is another one; all
    minimise the margin to it.
    """
    tables = []
    for name in norm:
        tables += [_peers(name, SETS[name], pictures, steps), _bisected(name, SETS[name], pictures, steps, views)]
    return tables


class _Case:
    """Some tiles, and the attack on them within a set."""

    def __init__(self, inner: Ball, pictures: int, views: Compose, options: Options) -> None:
        self.network, everything, self.gallery = known(SIZE)
        self.rows = torch.arange(0, len(everything.names), max(1, len(everything.names) // pictures))[:pictures]
        self.images = everything.images[self.rows]
        self.problem = Problem(self.images, self.rows, self.network, Retrieval(self.gallery), inner)
        self.options = options
        self.passes = 2 * options.steps * options.eot.views
        count = views_of(2 * self.passes) if views.dims else 1
        self.bank = bank(views, count, seed=0, purpose="radius")

    def success(self, delta: Tensor, views: Bank | None = None) -> Tensor:
        """The share of the bank's views whose nearest picture is another."""
        shares = []
        for row, picture in zip(self.rows, (self.images + delta).split(1), strict=True):
            features = (views or self.bank).features(picture, self.network, 64)[0]
            nearest = (F.normalize(features, dim=1) @ F.normalize(self.gallery, dim=1).T).argmax(1)
            shares.append((nearest != row).double().mean())
        return torch.stack(shares)

    def searched(self, files: bool) -> tuple[Tensor, Tensor, float]:
        """The radii, the deltas, and the passes over those of one run."""
        *_, (_, best) = watch(self.problem, self.options)
        assert best is not None  # the last iterate is always compared
        trial = Trial(self.success, len(self.bank.u), files)
        *_, state = radius(self.problem, self.options, trial, best.delta, passes=2 * self.passes)
        return state.least, state.delta, 1 + state.passes / self.passes

    def bisected(self) -> tuple[Tensor, Tensor]:
        """The radii by `RUNS` runs of their own at one radius after the other, and the deltas."""
        inner = self.problem.perturbation
        assert isinstance(inner, Ball)
        low, high = (
            torch.zeros(len(self.rows), dtype=torch.float64),
            torch.full((len(self.rows),), inner.eps).double(),
        )
        least, found, at = torch.full_like(high, math.inf), torch.zeros_like(self.images), high
        for number in range(RUNS):
            start = inner.start(self.images, torch.Generator().manual_seed(number))
            sets = Radii(inner, at, start * (at / inner.eps).to(start)[:, None, None, None])
            own = replace(self.options, seed=number + 1)
            *_, (_, best) = watch(replace(self.problem, perturbation=sets), own)
            assert best is not None
            saved = sets.quantise(best.delta, self.images)
            hit, norm = self.success(saved) >= HALF, inner.norm(saved).double()
            better = hit & (norm < least)
            least, found = torch.where(better, norm, least), torch.where(better[:, None, None, None], saved, found)
            low, high = torch.where(hit, low, torch.maximum(low, at)), torch.minimum(high, least)
            at = inner.in_files(((low + high) / 2).clamp(min=LEAST * inner.eps))
        return least, found


def _bisected(name: str, inner: Ball, pictures: int, steps: int, views: int) -> Table:
    pipeline = preset("camera")
    case = _Case(inner, pictures, pipeline, Options(Wiener(), EOT(pipeline, views=views), steps=steps))
    ours, our_delta, passes = case.searched(files=True)
    theirs, their_delta = case.bisected()
    held_out = bank(pipeline, HELD_OUT, seed=0, purpose="evaluate")
    rows: dict[str, Row] = {}
    for label, radii, delta, cost in (
        ("one search", ours, our_delta, passes),
        (f"bisection, {RUNS} runs", theirs, their_delta, float(RUNS)),
    ):
        success = case.success(delta, held_out)[radii.isfinite()].mean()
        rows[label] = (cost, *_row(radii, theirs), float(success))
    what = f"{pictures} pictures of {SIZE} px, runs of {steps} steps of {views} views"
    notes = (f"{NOTE} bisection's", f"success: of the files that were found, in {HELD_OUT} held-out views")
    columns = {"passes / run": ".2f"} | COLUMNS | {"success": ".3f"}
    return Table(f"Smallest radii with views, {name}: {what}", columns, rows, notes=notes)


def _row(radii: Tensor, reference: Tensor) -> tuple[float, ...]:
    ratio = (radii / reference)[reference.isfinite() & (reference > 0)]
    ratio = ratio if len(ratio) else torch.full((1,), math.nan)  # none is broken
    return float(radii.isfinite().sum()), float(radii.median()), float(ratio.median()), float(ratio.max())


def _peers(name: str, inner: Ball, pictures: int, steps: int) -> Table:
    case = _Case(inner, pictures, Compose(), Options(Wiener(), EOT(views=1), steps=steps))
    ours, _, passes = case.searched(files=False)
    gradients = round(passes * case.passes / 3)  # where a trial costs a forward pass for each step
    peers = _by_peers(name, case, gradients)
    best = torch.stack([radii for radii, _ in peers.values()] or [ours]).min(0).values
    best = torch.where(best <= inner.eps, best, torch.inf)  # ours looks no further
    found = {"one search": (ours, float(gradients))} | peers
    rows: dict[str, Row] = {label: (cost, *_row(radii, best)) for label, (radii, cost) in found.items()}
    rows |= {} if peers else {"adversarial-library": MISSING}
    title = f"Smallest radii without views, {name}: {pictures} pictures of {SIZE} px"
    return Table(title, {"gradients": ".0f"} | COLUMNS, rows, notes=(f"{NOTE} the smallest of all peers",))


def _by_peers(name: str, case: _Case, gradients: int) -> dict[str, tuple[Tensor, float]]:
    """By peer and setting the radii and the gradients; empty where the library is missing."""
    sys.modules.setdefault("visdom", types.ModuleType("visdom"))  # imported for its plots, and not needed
    try:
        from adv_lib.attacks import ddn, fmn
    except ImportError:
        return {}
    gallery = F.normalize(case.gallery, dim=1)

    def model(pixels: Tensor) -> Tensor:
        return 10 * F.normalize(case.network(pixels), dim=1) @ gallery.T

    order = math.inf if name == "linf" else 2
    runs: dict[str, tuple[Callable[..., Tensor], int]] = {}
    for n in (share * gradients for share in SHARES):
        for first in (1.0, 10.0) if name == "linf" else (1.0, 0.3):
            own = partial(fmn, norm=order, α_init=first)
            runs[f"FMN, {n}, first step {first:g}"] = (own, n)
        if name == "l2":
            runs[f"DDN, {n}"] = (partial(ddn, levels=None), n)
    found = {}
    for label, (attack, n) in runs.items():
        delta = attack(model, case.images, case.rows, steps=n).detach() - case.images
        norm = case.problem.perturbation.norm(delta).double()
        found[label] = (torch.where(case.success(delta) >= HALF, norm, math.inf), float(n))
    return found
