"""The probability of a rare failure over the unit cube of views, with limits that hold.

Adaptive multilevel splitting (Cerou & Guyader 2007) finds where failures lie; a proposal is fitted to them; the
probability is then estimated by importance sampling with fresh draws. So the limits do not rest on the splitting: it
only makes them narrow."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when first used

Floats = npt.NDArray[np.float64]
#: The share of uniform draws in every proposal. It bounds each weight by its inverse.
UNIFORM = 0.1
#: Quantiles of coordinates stay this far from 0 and 1, where normal scores are infinite.
EDGE = 1e-12
#: Bins of a marginal distribution, and the share of the uniform distribution in each.
BINS, SMOOTH = 24, 0.05
#: Components are wider than the points that they are fitted to, by this factor of each normal score: draws beyond
#: them are cheaper than weights that vary.
WIDER = 1.2
#: Components that are tried, and the fewest points of each.
COMPONENTS, FEWEST = (1, 2, 4), 40


@dataclass(frozen=True)
class Component:
    """A density of points (n,d) whose normal scores are normal. With histograms `heights` (d,BINS) of the coordinates
    it is a copula: for corners, and for coordinates that choose; without, for sets that a plane or an ellipsoid cuts
    off. `factor` is the Cholesky factor of the covariance."""

    mean: Floats
    factor: Floats
    heights: Floats | None

    @classmethod
    def from_points(cls, u: Floats, is_copula: bool) -> "Component":
        if not is_copula:
            z = scores(u)
            return cls(z.mean(0), np.asarray(np.linalg.cholesky(covariance(z)), np.float64), None)
        columns = [np.histogram(column, BINS, (0, 1))[0] for column in u.T]
        heights = (1 - SMOOTH) * (np.stack(columns) * (BINS / len(u))) + SMOOTH
        spread = covariance(scores(_cumulative(heights, u)))
        deviations = np.sqrt(np.diag(spread))
        return cls(np.zeros(u.shape[1]), np.linalg.cholesky(spread / np.outer(deviations, deviations)), heights)

    def draw(self, n: int, random: np.random.Generator) -> Floats:
        z = self.mean + random.standard_normal((n, len(self.mean))) @ self.factor.T
        u = clipped(scipy.special.ndtr(z))
        return u if self.heights is None else clipped(_quantile(self.heights, u))

    def log_density(self, u: Floats) -> Floats:
        """With respect to the uniform density, (n,)."""
        z, marginal = scores(u if self.heights is None else _cumulative(self.heights, u)), np.zeros(len(u))
        if self.heights is not None:
            marginal = np.log(np.take_along_axis(self.heights, _bins(u).T, 1)).sum(0)
        white = np.linalg.solve(self.factor, (z - self.mean).T).T
        return np.asarray(marginal + 0.5 * (z**2 - white**2).sum(1) - np.log(np.diag(self.factor)).sum())


@dataclass(frozen=True)
class Proposal:
    """A mixture of components with a share `UNIFORM` of the uniform density."""

    components: tuple[Component, ...]
    shares: Floats

    def draw(self, n: int, random: np.random.Generator) -> Floats:
        counts = random.multinomial(n, [UNIFORM, *((1 - UNIFORM) * self.shares)])
        parts = [random.random((counts[0], len(self.components[0].mean)))]
        parts += [component.draw(k, random) for component, k in zip(self.components, counts[1:], strict=True)]
        return np.asarray(random.permutation(np.concatenate(parts)))

    def weights(self, u: Floats) -> Floats:
        """The uniform density over that of the mixture (n,), at most 1 / `UNIFORM`."""
        logs = np.stack([component.log_density(u) for component in self.components]) + np.log(self.shares)[:, None]
        mixture = np.exp(np.minimum(scipy.special.logsumexp(logs, axis=0), 700))
        return np.asarray(1 / (UNIFORM + (1 - UNIFORM) * mixture))


def fit(u: Floats, random: np.random.Generator) -> Proposal:
    """The mixture, of those tried, under which held-out points are likeliest; `u` (n,d) are failures."""
    u = clipped(u)
    _, point = np.unique(u, axis=0, return_inverse=True)  # copies of a point must not be held out from each other
    test_points, fit_points = u[point % 3 == 0], u[point % 3 != 0]
    best = (-np.inf, 1, False)
    for count in COMPONENTS:
        if len(fit_points) < count * max(FEWEST, 3 * u.shape[1]) and count > 1:
            break
        labels = _clusters(fit_points, count, random)
        for is_copula in (False, True):
            proposal = _mixture(fit_points, labels, is_copula)
            likelihood = -float(np.log(proposal.weights(test_points)).mean())
            best = max(best, (likelihood, count, is_copula), key=lambda trial: trial[0])
    return _mixture(u, _clusters(u, best[1], random), best[2])


def _mixture(u: Floats, labels: npt.NDArray[np.int64], is_copula: bool) -> Proposal:
    groups = [u[labels == k] for k in np.unique(labels)]
    shares = np.array([len(group) for group in groups]) / len(u)
    return Proposal(tuple(Component.from_points(group, is_copula) for group in groups), shares)


def _clusters(u: Floats, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Labels (n,) of clusters of the normal scores."""
    if count == 1:
        return np.zeros(len(u), dtype=np.int64)
    try:
        _, labels = scipy.cluster.vq.kmeans2(scores(u), count, minit="++", seed=random, missing="raise")
    except scipy.cluster.vq.ClusterError:  # one is empty
        return _clusters(u, count - 1, random)
    is_large = np.bincount(labels, minlength=count).min() >= FEWEST
    return np.asarray(labels, np.int64) if is_large else _clusters(u, count - 1, random)


def scores(u: Floats) -> Floats:
    return np.asarray(scipy.special.ndtri(clipped(u)))


def clipped(u: Floats) -> Floats:
    return np.clip(u, EDGE, 1 - EDGE)


def covariance(z: Floats) -> Floats:
    """The covariance (d,d) of points (n,d), with a little added to its diagonal."""
    n, spread = len(z), z - z.mean(0)
    sample = spread.T @ spread / max(1, n - 1)
    return np.asarray(sample * WIDER**2 + (1e-6 + 0.5 / max(n, 1)) * np.eye(z.shape[1]))


def _bins(u: Floats) -> npt.NDArray[np.int64]:
    return np.asarray(np.minimum((u * BINS).astype(int), BINS - 1))


def _edges(heights: Floats) -> Floats:
    return np.concatenate([np.zeros((len(heights), 1)), np.cumsum(heights, 1) / BINS], 1)


def _cumulative(heights: Floats, u: Floats) -> Floats:
    """Each coordinate's distribution function at (n,d)."""
    bins = _bins(u)
    below, height = (np.take_along_axis(table, bins.T, 1).T for table in (_edges(heights), heights))
    return np.asarray(below + (u - bins / BINS) * height)


def _quantile(heights: Floats, p: Floats) -> Floats:
    result = np.empty_like(p)
    for j, (edges, height) in enumerate(zip(_edges(heights), heights, strict=True)):
        at = np.clip(np.searchsorted(edges, p[:, j], side="right") - 1, 0, BINS - 1)
        result[:, j] = at / BINS + (p[:, j] - edges[at]) / height[at]
    return result


#: Points (n,d) of the cube to scores (n,). A score of 0 or less is a failure.
Score = Callable[[Floats], Floats]
#: The share of particles that the next level keeps, and the moves of each particle there.
LEVEL_SHARE, MOVES = 0.2, 12
#: Plain draws before anything else, as a multiple of the particles; from so many failures among them on, plain
#: sampling is used.
FIRST, COMMON = 10, 5
#: Failures that an estimate should be worth, and the most draws for it as a multiple of the particles.
WORTH, MAX_DRAWS = 200, 100
#: Fits of the proposal, and draws for each as a multiple of the particles.
FITS, DRAWS = 4, 3
#: Levels of a smaller probability are not looked for.
FLOOR = 1e-10
#: The error of each limit.
ALPHA = 0.025


@dataclass(frozen=True)
class RareEstimate:
    """The probability `p` of a failure with the limits of its 95 % interval, the number of failures that plain
    sampling would need for one as narrow, the calls of the score that it took, and the method. `worst`: failures, the
    least score first, (k,d). Without a failure p is 0 and `high` an upper 95 % limit."""

    p: float
    low: float
    high: float
    worth: float
    passes: int
    method: Literal["plain", "importance", "none found"]
    worst: Floats


def rare(score: Score, dims: int, particles: int = 1000, seed: int = 0) -> RareEstimate:
    """The probability that `score` is 0 or less for a point of the unit cube of `dims` coordinates.

    Raises ValueError for scores that are not finite numbers."""
    random, counter = np.random.default_rng(seed), _Counter(score)
    u = random.random((FIRST * particles, dims))
    values = counter(u)
    failed = values <= 0
    if failed.sum() >= COMMON or dims == 0:
        n = int(min(max(WORTH / max(failed.mean(), 1e-9), len(u)), MAX_DRAWS * particles))
        draws = random.random((n, dims))
        return _plain(draws, counter(draws), counter, np.concatenate([u[failed], u[:0]]))
    particles_below, level, probability = split_levels(counter, u, values, particles, random)
    estimate = None
    if level <= 0 or probability <= 1 / len(u):  # else a plateau: nothing is known below it but the plain draws
        estimate = _importance(counter, particles_below, level, particles, random)
    if not failed.any():
        high = 1 - (2 * ALPHA) ** (1 / len(u))  # Clopper & Pearson (1934), of no failure in the plain draws
        return estimate or RareEstimate(0.0, 0.0, high, 0.0, counter.passes, "none found", particles_below)
    plain = _plain(u, values, counter, particles_below)
    if estimate is None or estimate.method == "none found":
        return plain
    # A proposal that misses a part of the failures may contradict those that the plain draws met.
    return estimate if estimate.low <= plain.high and plain.low <= estimate.high else plain


def _importance(
    counter: "_Counter", particles_below: Floats, level: float, particles: int, random: np.random.Generator
) -> RareEstimate | None:
    """The estimate from fresh draws of a proposal that is fitted to points below a level; None where the draws miss
    everything below it."""
    proposal, rate = fit(particles_below, random), 0.0
    for _ in range(FITS):
        points = proposal.draw(DRAWS * particles, random)
        good = counter(points) <= level
        weights = proposal.weights(points) * good
        worth = weights.sum() ** 2 / max((weights**2).sum(), 1e-300)
        if worth / len(points) > rate:
            rate, best = worth / len(points), proposal
        if worth < 50:
            break
        picks = random.choice(len(points), 4 * particles, p=weights / weights.sum())
        proposal = fit(np.concatenate([points[picks], particles_below]), random)
    if rate == 0.0:
        return None
    n = int(min(max(WORTH / rate, 2 * particles), MAX_DRAWS * particles))
    points = best.draw(n, random)
    values = counter(points)
    return _weighted(points, values, best, level, counter) if (values <= level).any() else None


class _Counter:
    """A score that counts its calls and refuses what is no number."""

    def __init__(self, score: Score) -> None:
        self.score, self.passes = score, 0

    def __call__(self, u: Floats) -> Floats:
        values = np.asarray(self.score(u), dtype=np.float64)
        if values.shape != (len(u),) or not np.isfinite(values).all():
            raise ValueError(f"`score` must give a finite number for each of the {len(u)} points; got {values.shape}")
        self.passes += len(u)
        return values


def split_levels(
    score: Score, u: Floats, values: Floats, particles: int, random: np.random.Generator
) -> tuple[Floats, float, float]:
    """Particles (n,d) that are distributed uniformly over the failures, approximately; or, where none is found, over
    the last level that was reached. Also that level, 0 for failures, and about its probability."""
    probability, level = 1.0, np.inf
    while True:
        threshold = max(0.0, float(np.quantile(values, LEVEL_SHARE)))
        if threshold >= level:  # a plateau: values at it are equal
            below = values[values < level]
            if not len(below):
                return u, level, probability
            threshold = max(0.0, float(below.max()))
        good = values <= threshold
        probability *= good.mean()
        u, values, level = u[good], values[good], threshold
        picks = random.integers(len(u), size=particles)
        if level > 0:  # a failure that has been met is not lost
            failures = np.flatnonzero(values <= 0)[:particles]
            picks[: len(failures)] = failures
        u, values = move(score, u[picks], values[picks], level, random)
        if level <= 0 or probability < FLOOR:
            return u, level, probability


def move(score: Score, u: Floats, values: Floats, level: float, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Particles after Metropolis moves that keep the uniform law on the points with a score of at most `level`.

    Half of the moves are autoregressive in the normal scores, with a step that follows the accepted share; the others
    draw some coordinates anew, which also moves those that choose among a few."""
    (n, d), step = u.shape, np.full(len(u), 0.5)
    for turn in range(MOVES):
        if turn % 2 == 0:
            z = scores(u)
            z = np.sqrt(1 - step[:, None] ** 2) * z + step[:, None] * random.standard_normal((n, d))
            candidates = clipped(scipy.special.ndtr(z))
        else:
            anew = random.random((n, d)) < random.choice([1 / d, 2 / d, 0.3], size=(n, 1))
            anew[np.arange(n), random.integers(d, size=n)] = True
            candidates = np.where(anew, random.random((n, d)), u)
        candidate_values = score(candidates)
        good = candidate_values <= level
        u, values = np.where(good[:, None], candidates, u), np.where(good, candidate_values, values)
        if turn % 2 == 0:
            step = np.clip(step * np.exp(good.mean() - 0.35), 0.02, 0.99)
    return u, values


def _plain(u: Floats, values: Floats, counter: _Counter, particles: Floats) -> RareEstimate:
    """The share of failures among plain draws, with the limits of Clopper & Pearson (1934). They hold only if no
    earlier results have chosen these draws."""
    failed = values <= 0
    ends = scipy.stats.binomtest(int(failed.sum()), len(u)).proportion_ci(1 - 2 * ALPHA, "exact")
    worst = u[failed][np.argsort(values[failed])] if failed.any() else particles
    p = float(failed.mean())
    return RareEstimate(p, float(ends.low), float(ends.high), float(failed.sum()), counter.passes, "plain", worst)


def _weighted(u: Floats, values: Floats, proposal: Proposal, level: float, counter: _Counter) -> RareEstimate:
    """The weighted share of points up to `level`, with the limits of Fay & Feuer (1997) for weighted sums. Their
    variance is that of the sample, since failures are not rare among these points."""
    good = values <= level
    weights = proposal.weights(u) * good
    p, variance, largest = float(weights.mean()), float(weights.var(ddof=1)) / len(u), float(weights.max()) / len(u)
    order = np.argsort(values[good])
    if level > 0:  # it contains all failures: only its upper limit says something about them
        high = _gamma(p + largest, variance + largest**2, 1 - 2 * ALPHA)
        return RareEstimate(0.0, 0.0, min(1.0, high), 0.0, counter.passes, "none found", u[good][order][:100])
    low, high = _gamma(p, variance, ALPHA), _gamma(p + largest, variance + largest**2, 1 - ALPHA)
    return RareEstimate(p, low, min(1.0, high), p**2 / variance, counter.passes, "importance", u[good][order])


def _gamma(mean: float, variance: float, level: float) -> float:
    return float(scipy.stats.gamma.ppf(level, mean**2 / variance, scale=variance / mean))
