"""How often intervals hold, their width, wrong verdicts, and the agreement of interval and p: by simulation."""

from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import NamedTuple

import numpy as np
import scipy.stats
import torch

from attacks.inference import interval, sign_flips
from attacks.inference.bounded import LIMIT, Floats, is_above, log_capital

from .table import BenchmarkTable, Row

#: Of an interval against a bar, and of a comparison.
CLUSTERS, PAIRS = (4, 6, 8, 10, 12, 16, 20, 30, 50, 100, 200, 400), (6, 8, 12, 16, 40)
#: Views of a cluster, the samples of a cell whose widths are measured, and the photographs of a sorted gallery.
VIEWS, WIDTHS, GALLERY = 128, 40, 500

Random = np.random.Generator
Shape = tuple[int, int]
Ends = tuple[Floats, Floats]


class Population(NamedTuple):
    """What clusters are drawn from: `draw` gives B samples of n values (B,n) in `low`..1 of expectation `truth`.

    Shares of success, of so many `trials`, have bars "at most"; the others, which stand for cosines, "at least"."""

    name: str
    truth: float
    draw: Callable[[Random, Shape], Floats]
    trials: int | None = None
    low: float = 0.0

    def sample(self, study: int, n: int, repeats: int) -> Floats:
        """Samples of n values, the same ones for the same study."""
        return self.draw(np.random.default_rng([study, n]), (repeats, n))

    def both_ways(self, sample: Floats, level: float) -> tuple[tuple[Floats, float], tuple[Floats, float]]:
        """Samples and a level from `low`..1 in 0..1, and both mirrored: below a level is above its mirror image."""
        units, unit = ((np.asarray(values) - self.low) / (1 - self.low) for values in (sample, level))
        return (units, float(unit)), (1 - units, 1 - float(unit))

    def verdicts(self, above: float, below: float) -> tuple[float, float]:
        """Wrong PASS and wrong FAIL, from the shares of intervals above a bar and below."""
        return (below, above) if self.trials else (above, below)


class PairedPopulation(NamedTuple):
    """`draw` gives the values of two arms (B,n); symmetric differences have a `centre`."""

    name: str
    centre: float | None
    draw: Callable[[Random, Shape], tuple[Floats, Floats]]


def run(repeats: int = 2000) -> list[BenchmarkTable]:
    """Coverage, width, wrong PASS and wrong FAIL of the intervals of bounded means, and of those
    of textbooks; P(p < 0.05) of sign flips; and how often interval, p and verdict contradict one another."""
    cells = {(population.name, n): errors(population, n, repeats) for population in POPULATIONS for n in CLUSTERS}
    return [_summary(cells), _looks(repeats), _bars(repeats), _comparisons(repeats), contradictions(50 * repeats)]


# --- Means against a bar


def t_ends(values: Floats) -> Ends:
    """Of textbooks: Student's t of the clusters."""
    half = scipy.stats.t.ppf(0.975, values.shape[1] - 1) * scipy.stats.sem(values, axis=1)
    return values.mean(1) - half, values.mean(1) + half


NAMES = ("new", "t")
FIELDS = ("coverage", "width", "wrong PASS", "wrong FAIL")
#: Of the figures of a field in several cells.
PICKS: tuple[Callable[[list[float]], float], ...] = (min, fmean, max, max)
#: The `FIELDS` by method, of a population and a number of clusters.
Cells = dict[tuple[str, int], dict[str, tuple[float, ...]]]


def errors(population: Population, n: int, repeats: int) -> dict[str, tuple[float, ...]]:
    """The `FIELDS` of each method for n clusters; verdicts have a bar just on the wrong side of the truth."""
    sample, truth = population.sample(0, n, repeats), population.truth
    above, below = refuted_shares(population, sample, truth)
    spans = [interval(torch.from_numpy(row), population.low) for row in sample[:WIDTHS]]
    result = {"new": (above, below, float(np.mean([high - low for _, low, high, _ in spans])))}
    low, high = t_ends(sample)
    shares = float((low > truth + 1e-12).mean()), float((high < truth - 1e-12).mean())
    result["t"] = (*shares, float((high - low).mean()))
    return {name: (1 - a - b, width, *population.verdicts(a, b)) for name, (a, b, width) in result.items()}


def refuted_shares(population: Population, sample: Floats, bar: float) -> tuple[float, float]:
    """The shares of (B,n) samples whose interval lies above a bar, and below."""
    above, below = (
        float(np.mean([is_above(row, level) for row in units])) for units, level in population.both_ways(sample, bar)
    )
    return above, below


def _summary(cells: Cells) -> BenchmarkTable:
    rows: dict[str, Row] = {}
    notes, shares = [], {population.name for population in POPULATIONS if population.trials}
    for method in NAMES:
        results = {key: cell[method] for key, cell in cells.items()}
        for i, (field, pick) in enumerate(zip(FIELDS, PICKS, strict=True)):
            columns = [
                [x[i] for (name, m), x in results.items() if m == n and (i != 1 or name in shares)] for n in CLUSTERS
            ]
            rows[f"{method}: {field}"] = tuple(pick(column) for column in columns)
            if i > 1:
                (name, n), worst = max(results.items(), key=lambda item: item[1][i])
                notes.append(f"worst {field} of {method}: {worst[i]:.4f} ({name}, {n} clusters)")
    title = f"The worst of {len(POPULATIONS)} populations, and the mean width for shares"
    return BenchmarkTable(title, dict.fromkeys(map(str, CLUSTERS), ".3f"), rows, tuple(notes), "clusters")


def _looks(repeats: int) -> BenchmarkTable:
    n, rows = CLUSTERS[-1], {}
    weights = np.ones((1, n))
    for population in POPULATIONS:
        above, below = (
            float(np.mean([log_capital(max(level, 1e-12), row[None], weights, True) > LIMIT for row in units]))
            for units, level in population.both_ways(population.sample(1, n, repeats), population.truth)
        )
        rows[population.name] = population.verdicts(above, below)
    columns = dict.fromkeys(FIELDS[2:], ".4f")
    return BenchmarkTable(f"A sequence with a look after each of {n} clusters: any wrong verdict", columns, rows)


def _bars(repeats: int) -> BenchmarkTable:
    rows: dict[str, Row] = {}
    for population, bar, sizes in BARS:
        for n in sizes:
            sample = population.sample(2, n, repeats)
            low, high = t_ends(sample)
            shares = refuted_shares(population, sample, bar), (float((low > bar).mean()), float((high < bar).mean()))
            rows[f"{population.name}: bar {bar:g}, {n}"] = tuple(population.verdicts(*share)[0] for share in shares)
    return BenchmarkTable("Wrong PASS at bars that the truth misses by more", dict.fromkeys(NAMES, ".4f"), rows)


# --- Comparisons

AGREEMENT = ("P(p < 0.05)", "coverage", "disagree")


def _comparisons(repeats: int) -> BenchmarkTable:
    rows: dict[str, Row] = {}
    for population in PAIRED_POPULATIONS:
        counts = {n: repeats if n <= 12 else max(1, repeats // 4) for n in PAIRS}  # to save time
        columns = [agreement(population, n, count) for n, count in counts.items()]
        for field, row in zip(AGREEMENT, zip(*columns, strict=True), strict=True):
            if None not in row:
                rows[f"{population.name}: {field}"] = row
    title = "Sign flips: p, the coverage of the centre, and how often interval and p disagree"
    return BenchmarkTable(title, dict.fromkeys(map(str, PAIRS), ".3f"), rows, across="clusters")


def agreement(population: PairedPopulation, n: int, repeats: int) -> tuple[float | None, ...]:
    """The fields of `AGREEMENT` for n clusters, None where a population has no such figure."""
    arms = population.draw(np.random.default_rng([3, n]), (repeats, n))
    results = [sign_flips(*pair) for pair in zip(*map(torch.from_numpy, arms), strict=True)]
    ends = np.array([x.difference[1:3] for x in results]).T
    is_small, centre = np.array([x.p for x in results]) < 0.05, population.centre
    return (
        float(is_small.mean()),
        None if centre is None else float(((ends[0] <= centre) & (centre <= ends[1])).mean()),
        float((is_small == ((ends[0] <= 0) & (ends[1] >= 0))).mean()),
    )


def contradictions(studies: int) -> BenchmarkTable:
    """Random studies in which interval, p and verdict of one statement do not say the same."""
    random, wrong = np.random.default_rng(4), np.zeros(2)
    for _ in range(studies):
        n, tests, step = int(random.integers(1, 15)), int(random.choice([1, 3, 6])), random.choice([0.5, 0.25, 1e-9])
        arms = (
            np.round(random.beta(random.choice([0.3, 1, 3]), random.choice([0.3, 1, 3]), n) / step) * step
            for _ in range(2)
        )
        first, second = (torch.from_numpy(values.clip(0, 1)) for values in arms)
        result = sign_flips(first, second, tests)
        mean, low, high, kind = result.difference
        significant, is_outside = (
            result.p is not None and result.p < 0.05,
            kind == "interval" and not low <= 0 <= high,
        )
        wrong[1] += significant != is_outside or not low <= mean <= high
        mean, low, high, _ = interval(first)
        bar = float(random.choice([random.random(), low - 1e-6, low + 1e-6, high + 1e-6]).clip(1e-9, 1 - 1e-9))
        verdicts = is_above(first.numpy(), bar), is_above(1 - first.numpy(), 1 - bar)
        is_end = min(abs(bar - low), abs(bar - high)) < 1e-9  # ends have a tolerance of 1e-10
        wrong[0] += not (is_end or verdicts == (bar < low, high < bar)) or not low <= mean <= high
    rows: dict[str, Row] = {"against a bar": (float(wrong[0]),), "between arms": (float(wrong[1]),)}
    return BenchmarkTable(f"Contradictions in {studies} random studies", {"studies": ".0f"}, rows)


# --- Populations


def _two(usual: float, other: float, share: float, random: Random, shape: Shape) -> Floats:
    return random.binomial(VIEWS, np.where(random.random(shape) < share, other, usual)) / VIEWS


def _constant(value: float, _: Random, shape: Shape) -> Floats:
    return np.full(shape, value)


def _failing(name: str, usual: float, other: float, share: float) -> Population:
    """A `share` of the clusters has another rate."""
    return Population(name, usual + (other - usual) * share, partial(_two, usual, other, share), VIEWS)


def _beta(rate: float, alike: float, views: int = VIEWS) -> Population:
    """The rates of clusters are beta distributed, with a correlation `alike` of the views of one."""

    def draw(random: Random, shape: Shape) -> Floats:
        size = 1 / alike - 1
        return random.binomial(views, random.beta(rate * size, (1 - rate) * size, size=shape)) / views

    return Population(f"beta, rate {rate}, correlation {alike}, {views} views", rate, draw, views)


def _unequal(random: Random, shape: Shape) -> Floats:
    """Clusters of 1 to 16 pictures, whose rates vary within a cluster, too."""
    pictures, level = random.integers(1, 17, size=shape), random.beta(2.1, 0.9, size=(*shape, 1)).clip(1e-9, 1 - 1e-9)
    rates = random.beta(2 * level, 2 * (1 - level), size=(*shape, 16)) * (np.arange(16) < pictures[..., None])
    return random.binomial(VIEWS * pictures, (rates.sum(2) / pictures).clip(0, 1)) / (VIEWS * pictures)


def _cosines(usual: float, other: float, share: float, noise: float) -> Population:
    def draw(random: Random, shape: Shape) -> Floats:
        level = np.where(random.random(shape) < share, other, usual)
        return (level + noise * random.standard_normal(shape)).clip(-1, 1)

    name = f"cosine {usual}, {100 * share:g} % at {other}, noise {noise}"
    return Population(name, usual + (other - usual) * share, draw, None, -1)


def _gallery(random: Random, shape: Shape) -> Floats:
    """Of a gallery sorted by difficulty, in a shuffled order, without repeats."""
    return np.stack([random.permutation(np.linspace(0, 1, GALLERY) ** 3)[: shape[1]] for _ in range(shape[0])])


#: Populations with a bar that their truth misses, tried with some numbers of clusters.
BARS: list[tuple[Population, float, tuple[int, ...]]] = [
    (_failing("80 % lose 5 %, 20 % all", 0.05, 1, 0.2), 0.2, (6, 8, 10, 12)),
    (_failing("85 % lose 10 %, 15 % all", 0.1, 1, 0.15), 0.23, (8, 10, 12, 14)),
    (_failing("95 % lose 5 %, 5 % all", 0.05, 1, 0.05), 0.09, (28, 29, 30, 40, 50)),
    (_failing("90 % lose 5 %, 10 % all", 0.05, 1, 0.1), 0.12, (28, 29, 30, 40, 50)),
    (_failing("98 % lose 2 %, 2 % all", 0.02, 1, 0.02), 0.035, (60, 100, 200)),
    (_failing("Bernoulli, 0.3", 0, 1, 0.3), 0.28, (8, 20, 60)),
    (_beta(0.1, 0.3), 0.09, (8, 20, 60)),
    (_cosines(0.85, -0.2, 0.05, 0.03), 0.82, (30, 40, 50, 60)),
    (_cosines(0.85, -0.2, 0.07, 0.03), 0.8, (30, 40, 50)),
]
POPULATIONS = [
    *(population for population, *_ in BARS),
    *(_failing(f"Bernoulli, {rate}", 0, 1, rate) for rate in (0.0005, 0.005, 0.02, 0.05, 0.5, 0.95)),
    _failing("97 % lose 1 %, 3 % all", 0.01, 1, 0.03),
    _failing("92 % lose 30 %, 8 % all", 0.3, 1, 0.08),
    _failing("90 % lose 90 %, a tenth nothing", 0.9, 0, 0.1),
    _failing("zeros, and a tenth at 0.3", 0, 0.3, 0.1),
    _failing("zeros, and a fifth at 0.9", 0, 0.9, 0.2),
    _failing("two halves, 0.1 and 0.9", 0.1, 0.9, 0.5),
    _failing("all at 0.1", 0.1, 0.1, 0),
    *(_beta(*pair) for pair in ((0.5, 0.05), (0.9, 0.3), (0.05, 0.6), (0.99, 0.05), (0.8, 0.9), (0.7, 0.2, 4))),
    Population("unequal clusters, rate 0.7", 0.7, _unequal, VIEWS),
    Population("gallery sorted by difficulty, shuffled", float((np.linspace(0, 1, GALLERY) ** 3).mean()), _gallery),
    _cosines(0.7, 0.1, 0.1, 0.1),
    _cosines(0.9, -0.5, 0.02, 0.03),
    _cosines(0.3, 0.8, 0.2, 0.05),
    _cosines(0.85, 0, 0, 0.03),
    Population("cosine 1 - 2 beta(0.5, 6)", 1 - 1 / 6.5, lambda r, s: 1 - 2 * r.beta(0.5, 6, s), low=-1),
    Population("cosine 2 beta(6, 1.2) - 1", 12 / 7.2 - 1, lambda r, s: 2 * r.beta(6, 1.2, s) - 1, low=-1),
    Population("uniform", 0.5, lambda r, s: r.random(s)),
    Population("two peaks, beta(0.2, 0.2)", 0.5, lambda r, s: r.beta(0.2, 0.2, s)),
    Population("zeros, and 15 % beta(2, 5)", 0.3 / 7, lambda r, s: r.beta(2, 5, s) * (r.random(s) < 0.15)),
    Population("ties at quarters", 0.4, lambda r, s: r.binomial(4, 0.4, s) / 4),
    Population("0.2, and 0.1 % at 1", 0.2008, lambda r, s: np.where(r.random(s) < 0.001, 1, 0.2)),
    *(Population(f"constant {x:g}", x, partial(_constant, x)) for x in (0.0, 0.4)),
]


def _same_rates(rates: Callable[[Random, Shape], Floats], effect: float, random: Random, shape: Shape) -> Ends:
    """Two arms of the same rates of clusters, but for an `effect`."""
    base = rates(random, shape)
    first, second = (random.binomial(VIEWS, (base + by).clip(0, 1)) / VIEWS for by in (effect, 0))
    return first, second


def _differences(name: str, centre: float | None, draw: Callable[[Random, Shape], Floats]) -> PairedPopulation:
    return PairedPopulation(name, centre, lambda random, shape: (draw(random, shape), np.zeros(shape)))


def _tenth(noise: float, random: Random, shape: Shape) -> Floats:
    return np.where(random.random(shape) < 0.1, 0.45, -0.05) + noise * random.standard_normal(shape)


PAIRED_POPULATIONS = (
    PairedPopulation("exchangeable", 0, partial(_same_rates, lambda r, s: r.beta(2, 2, s), 0)),
    PairedPopulation("exchangeable, a tenth fails", 0, partial(_same_rates, partial(_two, 0.05, 1, 0.1), 0)),
    PairedPopulation("an effect of 0.06", None, partial(_same_rates, lambda r, s: r.beta(2, 2, s), 0.06)),
    _differences("normal", 0, lambda r, s: r.normal(size=s)),
    _differences("t, 3 degrees", 0, lambda r, s: r.standard_t(3, size=s)),
    _differences("1 or -1", 0, lambda r, s: r.choice([-1.0, 1.0], s)),
    _differences("symmetric, 70 % zeros", 0, lambda r, s: r.normal(size=s) * (r.random(s) < 0.3)),
    _differences("skewed: a tenth at +0.45, the rest at -0.05", None, partial(_tenth, 0)),
    _differences("the same with noise of 0.1", None, partial(_tenth, 0.1)),
    _differences("skewed: exponential - 1", None, lambda r, s: r.exponential(size=s) - 1),
)
