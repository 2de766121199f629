"""Rare failures: how often the limit of plain draws holds, and how good the estimate is, on sets of exact truth."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import chi, norm

from attacks.evaluation.rare.proposal import Floats, scores
from attacks.evaluation.rare.splitting import Score, rare

from .table import BenchmarkTable

PROBABILITIES, DIMENSIONS = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7), (2, 6, 12, 20)


def planes(count: int, d: int, p: float) -> Score:
    """Beyond any of `count` planes that are orthogonal in the normal scores, each as probable."""
    axes = np.linalg.qr(np.random.default_rng(d).standard_normal((d, d)))[0][:, :count]
    distance = norm.isf(-np.expm1(np.log1p(-p) / count))
    return lambda u: distance - (scores(u) @ axes).max(1)


def steep(d: int, p: float) -> Score:
    """Two planes, of which one is hidden until it is near: its score rises five times as steeply."""
    distance = norm.isf(-np.expm1(np.log1p(-p) / 2))
    return lambda u: np.minimum(distance - scores(u[:, 0]), 5 * (distance - scores(u[:, d - 1])))


def shell(outside: float, d: int, p: float) -> Score:
    """Between two radii of the normal scores; thin where about `outside` times `p` lies beyond it."""
    tail = min(0.5, outside * p)
    inner, outer = chi(d).isf([tail, tail - p])
    return lambda u: np.abs(np.linalg.norm(scores(u), axis=1) - (inner + outer) / 2) - (outer - inner) / 2


def corners(d: int, p: float) -> Score:
    """In a corner of the cube of the first three coordinates."""
    sides = min(3, d)
    width = p ** (1 / sides) / 2
    return lambda u: np.minimum(u[:, :sides], 1 - u[:, :sides]).max(1) - width


def steps(d: int, p: float) -> Score:
    """Beyond a plane, with whole numbers as scores."""
    return lambda u: np.ceil(2 * (norm.isf(p) - scores(u[:, d // 2])))


def island(share: float, slope: Callable[[Floats], Floats], d: int, p: float) -> Score:
    """A box without a slope towards it, with this share of p, in a landscape `slope` of the first coordinate."""
    sides = min(3, d - 1)
    width, distance = (share * p) ** (1 / sides), norm.isf(1 - (1 - p) / (1 - share * p)) if share < 1 else np.inf

    def score(u: Floats) -> Floats:
        ahead = distance - scores(u[:, 0]) if share < 1 else slope(u[:, 0])
        return np.where(np.abs(u[:, 1 : 1 + sides] - 0.6).max(1) <= width / 2, -1.0, ahead)

    return score


#: Name -> the score of d coordinates and a probability, which is exact.
SETS: dict[str, Callable[[int, float], Score]] = {
    "1-plane": lambda d, p: planes(1, d, p),
    "2-planes": lambda d, p: planes(2, d, p),
    "8-planes": lambda d, p: planes(8, d, p),
    "16-planes": lambda d, p: planes(16, d, p),
    "steep-plane": steep,
    "shell": lambda d, p: shell(20, d, p),
    "thin-shell": lambda d, p: shell(2000, d, p),
    "corners": corners,
    "quantised": steps,
    "island-plane": lambda d, p: island(0.9, np.exp, d, p),
    "island-valley": lambda d, p: island(1.0, lambda u: 1.1 - u, d, p),
    "island-plateau": lambda d, p: island(1.0, np.ones_like, d, p),
}
#: Sets with failures that no slope leads to, or one only from near.
TRAPS = ("steep-plane", "island-plane", "island-valley", "island-plateau")
#: Name -> set, coordinates and probability: two probabilities of each set, and the numbers of coordinates in turn.
CELLS = {
    f"{name}-{p:.0e}-d{d}": (name, d, p)
    for i, name in enumerate(SETS)
    for j, p in enumerate(PROBABILITIES)
    if (i + j) % 3 == 0
    for d in (max(DIMENSIONS[(i + j // 3) % 4], int(name.split("-")[0]) if "planes" in name else 0),)
}
COLUMNS = {"limit": ".3f", "estimate": ".3f", "ratio": ".2f", "misses": ".3f", "doubted": ".2f", "calls": ".0f"}


def rare_cell(name: str, repeats: int, particles: int) -> tuple[float | None, ...]:
    """The columns: shares of repeats in which the limit and the interval of the estimate hold p, the median of
    estimate / p, the share of estimates below 0.7 p, that of these whose words doubt it, and calls of the score."""
    kind, d, p = CELLS[name]
    score = SETS[kind](d, p)
    results = [rare(score, d, particles, seed) for seed in range(repeats)]
    misses = [bool(result.doubts) or not result.estimate for result in results if result.estimate < 0.7 * p]
    return (
        float(np.mean([result.low <= p <= result.high for result in results])),
        float(np.mean([result.estimate_low <= p <= result.estimate_high for result in results])),
        float(np.median([result.estimate for result in results])) / p,
        len(misses) / repeats,
        float(np.mean(misses)) if misses else None,
        float(np.mean([result.passes for result in results])),
    )


def run(cells: Sequence[str] = ("all",), repeats: int = 200, particles: int = 500) -> list[BenchmarkTable]:
    """Rare failures of exact probability: coverage of the limit of plain draws; coverage and bias of the estimate;
    how often it misses a part, and whether its words say so."""
    rows = {name: rare_cell(name, repeats, particles) for name in (CELLS if "all" in cells else cells)}
    open_sets = {name: row for name, row in rows.items() if CELLS[name][0] not in TRAPS}
    worst = {"limit": (rows, 0), "estimate, where slopes lead to every failure": (open_sets, 1)}
    notes = (
        f"worst {key}: {min(group, key=lambda name: group[name][i] or 0)}"
        for key, (group, i) in worst.items()
        if group
    )
    return [BenchmarkTable(f"{repeats} repeats, {particles} particles", COLUMNS, dict(rows), tuple(notes))]
