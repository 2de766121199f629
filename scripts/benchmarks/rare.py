"""Do the limits of rare failures hold, and what do they cost?"""

from collections.abc import Callable

import numpy as np
import scipy

from attacks.evaluation.rare.splitting import Floats, Score, rare, scores

from .table import BenchmarkTable, Row

#: Probabilities, and numbers of coordinates.
PROBABILITIES, DIMS = (1e-2, 1e-3, 1e-5, 1e-6, 1e-8), (2, 6, 16)


def half(d: int, p: float) -> Score:
    """Beyond a plane, in the normal scores of the coordinates."""
    far = -float(scipy.stats.norm.ppf(p))
    return lambda u: far - scores(u).sum(1) / np.sqrt(d)


def corner(d: int, p: float) -> Score:
    """Near a corner of the cube."""
    side = p ** (1 / d)
    return lambda u: u.max(1) - side


def lobes(d: int, p: float) -> Score:
    """Beyond either of two planes on opposite sides."""
    far = -float(scipy.stats.norm.ppf(p / 2))
    return lambda u: far - np.abs(scores(u).sum(1)) / np.sqrt(d)


def discrete(d: int, p: float) -> Score:
    """Two coordinates choose among three each, and one choice of both fails near a corner of the others."""
    side = (9 * p) ** (1 / (d - 2))

    def score(u: Floats) -> Floats:
        wrong = ((u[:, :2] * 3).astype(int) != [1, 2]).sum(1)
        shift = u[:, 2:].max(1) - side
        values: Floats = np.where(wrong == 0, shift, shift.clip(0) + 0.2 + 0.1 * wrong)
        return values

    return score


SETS: dict[str, Callable[[int, float], Score]] = {
    "half": half,
    "corner": corner,
    "lobes": lobes,
    "discrete": discrete,
}


def run(repeats: int = 500) -> list[BenchmarkTable]:
    """Sets of known probability: how often the 95 % interval, and its upper limit, hold; the views that an estimate
    takes (median); and how many times more plain sampling would take for an interval as narrow."""
    rows: dict[str, Row] = {}
    for d in DIMS:
        for p in PROBABILITIES:
            for name, make in SETS.items():
                if name == "discrete" and d == 2:
                    continue
                score = make(d, p)
                estimates = [rare(score, d, seed=len(rows) * repeats + k) for k in range(repeats)]
                holds = float(np.mean([estimate.low <= p <= estimate.high for estimate in estimates]))
                upper = float(np.mean([p <= estimate.high for estimate in estimates]))
                passes = float(np.median([estimate.passes for estimate in estimates]))
                ratio = float(np.median([estimate.worth / p / estimate.passes for estimate in estimates]))
                rows[f"{name}, d {d}, p {p:.0e}"] = (holds, upper, passes, ratio)
    columns = {"holds": ".3f", "upper holds": ".3f", "views": ",.0f", "of plain": ",.1f"}
    return [BenchmarkTable("Rare failures: do their limits hold", columns, rows, notes=(f"{repeats} repeats",))]
