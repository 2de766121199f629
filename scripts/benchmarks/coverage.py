"""The coverage and the width of 95 % intervals, by simulation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.special
import scipy.stats

from attacks.evaluation.intervals import FEWEST_MEANS, FEWEST_SHARES, Floats, mean_ends, share_ends
from attacks.evaluation.significance import difference_ends

from .table import BenchmarkTable, Row

CLUSTERS = (4, 5, 6, 8, 10, 12, 16, 20, 30, 50, 100, 200)
VIEWS = 64
RATES = (0.5, 0.8, 0.9, 0.95, 0.99)
CORRELATIONS = (0.0, 0.05, 0.3, 0.6, 0.9)
#: The most pictures of a cluster, where clusters are unequal.
PICTURES = 16
#: Coverage that an interval of nominally 0.95 must keep in every cell.
MINIMUM_COVERAGE = 0.93

#: Resamples of the bootstrap.
RESAMPLES = 1000

Ends = tuple[Floats, Floats]
Shape = tuple[int, int]
Random = np.random.Generator


class DrawnSample(NamedTuple):
    """Values, or shares, of B samples of n clusters, (B,n), in one arm or two; and the trials of a share, (B,)."""

    first: Floats
    other: Floats
    trials: Floats


@dataclass(frozen=True)
class Population:
    """What clusters are drawn from: `draw` gives a `Sample` of a shape (B,n), whose mean has the expectation
    `truth`."""

    name: str
    truth: float
    draw: Callable[[Random, Shape], DrawnSample]


@dataclass(frozen=True)
class MeasureKind:
    """A kind of measure: its populations, and methods by name, the report's first; used from `fewest` clusters on."""

    populations: Sequence[Population]
    methods: Mapping[str, Callable[[DrawnSample], Ends]]
    fewest: int


def run(repeats: int = 2000) -> list[BenchmarkTable]:
    """Coverage in the worst cell, and mean width, of 95 % intervals of shares, means and differences by number of
    clusters: the report's and textbook ones.

    A cell is a population and a number of clusters. There is a dash where the report gives no interval but the range.
    """
    tables = [_table(name, kind, repeats) for name, kind in KINDS.items()]
    limits: dict[str, Row] = {
        population.name: tuple(
            coverage_and_width(population, KINDS["means"], n, repeats)["ours"][0] if n >= FEWEST_MEANS else None
            for n in CLUSTERS
        )
        for population in LIMITS
    }
    title = "Outside of the promise: coverage of our interval of a mean"
    return [*tables, BenchmarkTable(title, dict.fromkeys(map(str, CLUSTERS), ".3f"), limits, across="clusters")]


def _table(name: str, kind: MeasureKind, repeats: int) -> BenchmarkTable:
    rows: dict[str, list[float | None]] = {}
    worst: dict[str, tuple[float, str]] = {}
    for n in CLUSTERS:
        cells = {member.name: coverage_and_width(member, kind, n, repeats) for member in kind.populations}
        for method in kind.methods:
            used = n >= kind.fewest or method != "ours"
            lowest_share = min(
                (cell[method][0], f"{population_name}, {n} clusters") for population_name, cell in cells.items()
            )
            width = float(np.mean([cell[method][1] for cell in cells.values()]))
            rows.setdefault(f"{method}: coverage", []).append(lowest_share[0] if used else None)
            rows.setdefault(f"{method}: width", []).append(width if used else None)
            worst[method] = min(worst.get(method, (2.0, "")), lowest_share) if used else worst.get(method, (2.0, ""))
    notes = tuple(f"worst cell of {method}: {cell_name}: {share:.3f}" for method, (share, cell_name) in worst.items())
    title = f"{name}: coverage in the worst of {len(kind.populations)} populations, and mean width"
    columns = dict.fromkeys(map(str, CLUSTERS), ".3f")
    return BenchmarkTable(title, columns, {key: tuple(row) for key, row in rows.items()}, notes, "clusters")


def coverage_and_width(
    population: Population, kind: MeasureKind, n: int, repeats: int, seed: int = 0
) -> dict[str, tuple[float, float]]:
    """Coverage and mean width of each method. Every interval is widened to hold the estimate, as in a report."""
    sample = population.draw(np.random.default_rng([seed, n]), (repeats, n))
    mean = (sample.first - sample.other).mean(1)
    result = {}
    for name, method in kind.methods.items():
        low, high = method(sample)
        low, high = np.minimum(low, mean), np.maximum(high, mean)
        covered_truths = (low <= population.truth + 1e-12) & (population.truth - 1e-12 <= high)
        result[name] = float(covered_truths.mean()), float((high - low).mean())
    return result


# --- Textbook intervals, which the report does not use: samples (B,n) -> their ends (B,)


def t_ends(values: Floats) -> Ends:
    """Student's t of the cluster means."""
    n, mean = values.shape[1], values.mean(1)
    half = scipy.stats.t.ppf(0.975, n - 1) * values.std(1, ddof=1) / n**0.5
    return mean - half, mean + half


def percentile(values: Floats) -> Ends:
    """The plain percentile bootstrap over clusters."""
    n = values.shape[1]
    times = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)  # the same for all B
    low, high = np.quantile(values @ times.T / n, (0.025, 0.975), axis=1)
    return low, high


def korn_graubard(shares: Floats, trials: Floats) -> Ends:
    """Clopper & Pearson's interval of the effective trials (Korn & Graubard 1998); all trials where they do not
    vary."""
    n, mean = shares.shape[1], shares.mean(1)
    variance = shares.var(1, ddof=1) / n
    worth = np.where(variance > 0, mean * (1 - mean) / np.where(variance > 0, variance, 1), n * trials)
    worth = worth * (scipy.stats.norm.ppf(0.975) / scipy.stats.t.ppf(0.975, n - 1)) ** 2
    hits = mean * worth
    low = scipy.special.betaincinv(np.maximum(hits, 1e-300), worth - hits + 1, 0.025)
    high = scipy.special.betaincinv(hits + 1, np.maximum(worth - hits, 1e-300), 0.975)
    return low, high


# --- Populations


def _levels(random: Random, rate: float, alike: float, shape: Shape) -> Floats:
    """The rates of clusters whose views have the correlation `alike`: beta distributed."""
    if rate in (0, 1) or alike == 0:
        return np.full(shape, rate)
    return random.beta(rate * (1 / alike - 1), (1 - rate) * (1 / alike - 1), size=shape)


def _shares_of_views(random: Random, first: Floats, other: Floats | None = None) -> DrawnSample:
    """Shares of VIEWS independent views of clusters with these rates."""
    shares = random.binomial(VIEWS, first) / VIEWS
    second = np.zeros_like(shares) if other is None else random.binomial(VIEWS, other) / VIEWS
    return DrawnSample(shares, second, np.full(len(first), float(VIEWS)))


def _shares(rate: float, alike: float) -> Population:
    def draw(random: Random, shape: Shape) -> DrawnSample:
        return _shares_of_views(random, _levels(random, rate, alike, shape))

    return Population(f"rate {rate}, correlation {alike}", rate, draw)


def _unequal(rate: float, alike: float, correlation_within: float = 0.3) -> Population:
    """Clusters of 1 to 16 pictures, whose views have the correlation `within` at the cluster's rate."""

    def draw(random: Random, shape: Shape) -> DrawnSample:
        pictures = random.integers(1, PICTURES + 1, size=shape)
        level = _levels(random, rate, alike, shape)[..., None].clip(1e-9, 1 - 1e-9)
        size = 1 / correlation_within - 1
        rates = random.beta(level * size, (1 - level) * size, size=(*shape, PICTURES))
        hits = random.binomial(VIEWS, rates) * (np.arange(PICTURES) < pictures[..., None])
        counts = VIEWS * pictures.astype(np.float64)
        return DrawnSample(hits.sum(2) / counts, np.zeros(shape), 1 / (1 / counts).mean(1))

    return Population(f"rate {rate}, correlation {alike}, unequal clusters", rate, draw)


def _mixture(rate: float, otherwise: float, alike: float) -> Population:
    """A tenth of the clusters has the rate `otherwise`."""

    def draw(random: Random, shape: Shape) -> DrawnSample:
        usual, odd = (_levels(random, member, alike, shape) for member in (rate, otherwise))
        return _shares_of_views(random, np.where(random.random(shape) < 0.1, odd, usual))

    return Population(f"rate {rate}, a tenth {otherwise}, correlation {alike}", 0.9 * rate + 0.1 * otherwise, draw)


def _pair(random: Random, rates: tuple[float, float], alike: float, arms: float, shape: Shape) -> tuple[Floats, ...]:
    """The clusters' rates in two arms whose normal scores have the correlation `arms`."""
    common = np.sqrt(arms) * random.normal(size=shape)
    at = np.linspace(0, 1, 2001)[1:-1]
    result = []
    for rate in rates:
        score = scipy.stats.norm.cdf(common + np.sqrt(1 - arms) * random.normal(size=shape))
        size = 1 / max(alike, 1e-9) - 1
        level = scipy.stats.beta.ppf(at, rate * size, (1 - rate) * size) if alike and 0 < rate < 1 else at * 0 + rate
        result.append(np.interp(score, at, level))
    return tuple(result)


def _pairs(rates: tuple[float, float], alike: float, arms: float) -> Population:
    def draw(random: Random, shape: Shape) -> DrawnSample:
        return _shares_of_views(random, *_pair(random, rates, alike, arms, shape))

    name = f"{rates[0]} and {rates[1]}, correlation {alike}, of arms {arms}"
    return Population(name, rates[0] - rates[1], draw)


def _mixed_pairs(rates: tuple[float, float], otherwise: tuple[float, float], alike: float) -> Population:
    """A tenth of the clusters has the rates `otherwise`."""

    def draw(random: Random, shape: Shape) -> DrawnSample:
        odd = random.random(shape) < 0.1
        largest_size, rest = (_pair(random, member, alike, 0.5, shape) for member in (rates, otherwise))
        return _shares_of_views(random, *(np.where(odd, b, a) for a, b in zip(largest_size, rest, strict=True)))

    truth = 0.9 * (rates[0] - rates[1]) + 0.1 * (otherwise[0] - otherwise[1])
    name = f"{rates[0]} and {rates[1]}, a tenth {otherwise[0]} and {otherwise[1]}, correlation {alike}"
    return Population(name, truth, draw)


def _values(name: str, truth: float, draw: Callable[[Random, Shape], Floats]) -> Population:
    """Values as they are: means of a cluster's views."""

    def sample(random: Random, shape: Shape) -> DrawnSample:
        return DrawnSample(draw(random, shape), np.zeros(shape), np.ones(shape[0]))

    return Population(name, truth, sample)


def _falling(share: float, noise: float, random: Random, shape: Shape) -> Floats:
    """Cosines near 0.9, but of a `share` of the clusters near 0.2."""
    return random.normal(np.where(random.random(shape) < share, 0.2, 0.9), noise)


def _beta(a: float, b: float, random: Random, shape: Shape) -> Floats:
    return random.beta(a, b, size=shape)


def _two(p: float, random: Random, shape: Shape) -> Floats:
    return (random.random(shape) < p).astype(np.float64)


MEANS = [
    _values("normal", 0, lambda random, shape: random.normal(size=shape)),
    _values("t, 3 degrees", 0, lambda random, shape: random.standard_t(3, size=shape)),
    _values("exponential", 1, lambda random, shape: random.exponential(size=shape)),
    _values("lognormal, 0.5", np.exp(0.125), lambda random, shape: random.lognormal(0, 0.5, size=shape)),
    *(
        _values(f"cosines beta({a}, {b})", a / (a + b), partial(_beta, a, b))
        for a, b in ((6, 1.2), (40, 1), (2, 0.5))
    ),
    _values("uniform", 0.5, lambda random, shape: random.random(shape)),
    *(_values(f"two points, {p}", p, partial(_two, p)) for p in (0.5, 0.8, 0.9)),
    *(_values(f"a tenth falls, noise {noise}", 0.83, partial(_falling, 0.1, noise)) for noise in (0.02, 0.2)),
]
#: Populations that no method covers from some tens of clusters: rare failures that are not in the sample, and a
#: skewness of 6.
LIMITS = (
    _values("3 % fall, noise 0.02", 0.9 - 0.03 * 0.7, partial(_falling, 0.03, 0.02)),
    _values("3 % fall, noise 0.2", 0.9 - 0.03 * 0.7, partial(_falling, 0.03, 0.2)),
    _values("lognormal, 1", np.exp(0.5), lambda random, shape: random.lognormal(0, 1, size=shape)),
)
SHARES = [
    *(_shares(rate, alike) for rate in RATES for alike in CORRELATIONS),
    _shares(1.0, 0.0),
    *(_unequal(rate, alike) for rate in (0.5, 0.9, 0.95) for alike in (0.05, 0.3, 0.6)),
    *(_mixture(0.98, *member) for member in ((0.1, 0.05), (0, 0), (0.5, 0.05))),
    *(_mixture(0.9, *member) for member in ((0, 0), (0.1, 0.3))),
    *(_mixture(0.6, *member) for member in ((0, 0), (0.05, 0.05))),
    _mixture(0.99, 0.5, 0.3),
]
DIFFERENCES = [
    *(
        _pairs(rates, alike, arms)
        for rates in ((0.98, 0.01), (0.9, 0.7), (0.6, 0.6), (0.99, 0.99), (0.95, 0.5))
        for alike in CORRELATIONS
        for arms in ((0.0, 0.8) if alike else (0.0,))
    ),
    _mixed_pairs((0.9, 0.7), (0.1, 0.7), 0.05),
    _mixed_pairs((0.9, 0.7), (0.7, 0.9), 0.3),
    _mixed_pairs((0.9, 0.7), (0.5, 0.5), 0.3),
    _mixed_pairs((0.98, 0.01), (0.05, 0.01), 0.05),
    _mixed_pairs((0.98, 0.7), (0, 0.7), 0),
    _mixed_pairs((0.98, 0.7), (1, 0), 0),
    _mixed_pairs((0.9, 0.9), (0.2, 0.9), 0.05),
]
#: By name. Differences of means are means of differences.
KINDS = {
    "shares": MeasureKind(
        SHARES,
        {
            "ours": lambda sample: share_ends(sample.first, sample.trials),
            "Korn-Graubard": lambda sample: korn_graubard(sample.first, sample.trials),
            "t": lambda sample: t_ends(sample.first),
            "bootstrap": lambda sample: percentile(sample.first),
        },
        FEWEST_SHARES,
    ),
    "means": MeasureKind(
        MEANS,
        {
            "ours": lambda sample: mean_ends(sample.first),
            "t": lambda sample: t_ends(sample.first),
            "bootstrap": lambda sample: percentile(sample.first),
        },
        FEWEST_MEANS,
    ),
    "differences of shares": MeasureKind(
        DIFFERENCES,
        {
            "ours": lambda sample: difference_ends(*sample),
            "t": lambda sample: t_ends(sample.first - sample.other),
            "bootstrap": lambda sample: percentile(sample.first - sample.other),
        },
        FEWEST_SHARES,
    ),
}
