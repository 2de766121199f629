"""The probability of a rare failure over the unit cube of views: a limit without assumption, and an estimate.

The limit is that of plain draws. For the estimate, independent runs of adaptive multilevel splitting (Cerou & Guyader
2007) look for failures; a proposal is fitted to them, and fresh draws of it are weighted. It assumes that every part
of the failures that matters was reached."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy  # its parts are loaded when first used

from attacks.evaluation.rare.proposal import Floats, clipped, fit, scores

#: Points (n,d) of the cube to scores (n,). A score of 0 or less is a failure.
Score = Callable[[Floats], Floats]
#: The share of particles that the next level keeps, the moves of each particle there, and the independent runs.
LEVEL_SHARE, MOVES, RUNS = 0.5, 6, 8
#: Draws that choose the number of plain draws, as a multiple of the particles; from so many failures among them on,
#: plain sampling is enough; and the plain draws where there are fewer.
FIRST, COMMON, PLAIN = 5, 5, 50
#: Failures that an estimate should be worth; the most plain and weighted draws as multiples of the particles.
WORTH, MAX_DRAWS, MAX_WEIGHTED = 200, 100, 30
#: Fits of the proposal, and draws for each as a multiple of the particles.
FITS, DRAWS = 3, 5
#: Levels of a smaller probability are not looked for.
FLOOR = 1e-10
#: The error of each limit; and the share of an estimate in parts that one run reached alone that is doubtful.
ALPHA, DOUBT = 0.025, 0.1
Method = Literal["plain", "importance", "splitting", "none found"]


@dataclass(frozen=True)
class RareFigures:
    """The share `p` of `draws` plain draws that fail, with its 95 % interval [`low`, `high`] of Clopper & Pearson
    (1934), which assumes nothing. Beside it an `estimate` with an interval of its own, which holds if every part of
    the failures that matters was reached; 0 where the search found none; that of the plain draws where they suffice.
    `singleton`: the share of the estimate in parts that one run reached alone."""

    p: float
    low: float
    high: float
    draws: int
    estimate: float
    estimate_low: float
    estimate_high: float
    singleton: float
    method: Method

    @property
    def limit(self) -> str:
        """What plain draws show, without any assumption."""
        share = f"p {self.p:.2g} [{self.low:.2g}, {self.high:.2g}]" if self.p else f"p <= {self.high:.2g}"
        return f"{share} at 95 % from {self.draws:,} random views"

    @property
    def doubts(self) -> list[str]:
        """What speaks against the estimate, beside its assumption."""
        doubts = {
            "the random views met failures that the search missed": 0 < self.estimate_high < self.low,
            "the random views met fewer": self.estimate_low > self.high,
            f"one run of {RUNS} found {100 * self.singleton:.0f} % of it, so others may be missing": self.singleton
            > DOUBT,
        }
        return [doubt for doubt, is_true in doubts.items() if is_true]

    @property
    def words(self) -> str:
        """One sentence: the limit, then the estimate with its assumption and with what would break it."""
        if self.method == "plain":
            return self.limit
        figures = f"estimate {self.estimate:.2g} [{self.estimate_low:.2g}, {self.estimate_high:.2g}]"
        found = ", but ".join([f"{figures} if every part of the failures was reached", *self.doubts])
        text = found if self.estimate else "the search found none, so there is no estimate"
        remainder = f"islands that were not reached may add {max(0.0, self.high - self.estimate_low):.2g}"
        return f"{self.limit}; {text}; {remainder}"


@dataclass(frozen=True)
class RareEstimate(RareFigures):
    """The figures, the calls of the score, and the failures (k,d), the least score first, or the nearest points."""

    passes: int
    worst: Floats


def rare(score: Score, dims: int, particles: int = 1000, seed: int = 0) -> RareEstimate:
    """The probability that `score` is 0 or less for a point of the unit cube of `dims` coordinates.

    Raises ValueError for scores that are not finite numbers."""
    random, counter = np.random.default_rng(seed), _Counter(score)
    u = random.random((FIRST * particles, dims))
    values = counter(u)
    is_common = (values <= 0).sum() >= COMMON or dims == 0
    n = WORTH / max((values <= 0).mean(), 1e-9) if is_common else PLAIN * particles
    draws = random.random((int(min(max(n, len(u)), MAX_DRAWS * particles)), dims))  # fresh: no result has chosen them
    u, values = np.concatenate([draws, u]), np.concatenate([counter(draws), values])
    failed = values[: len(draws)] <= 0
    ends = scipy.stats.binomtest(int(failed.sum()), len(draws)).proportion_ci(1 - 2 * ALPHA, "exact")
    plain = float(failed.mean()), float(ends.low), float(ends.high)
    if is_common:
        result = _Result(plain, 0.0, "plain", u[np.argsort(values)][: max(1, int((values <= 0).sum()))])
    else:
        result = _search(counter, u, values, particles, random)
    return RareEstimate(
        *plain, len(draws), *result.ends, result.singleton, result.method, counter.passes, result.worst
    )


class _Result(NamedTuple):
    """An estimate with its interval, and the rest of `RareEstimate`."""

    ends: tuple[float, float, float]
    singleton: float
    method: Method
    worst: Floats


def _search(counter: "_Counter", u: Floats, values: Floats, particles: int, random: np.random.Generator) -> _Result:
    """The estimate of the failures that runs from plain draws `u` reach."""
    runs = split_levels(counter, u, values, particles, random)
    arrivals = [run for run in runs if run.level <= 0]
    if not arrivals:
        nearest = min(runs, key=lambda run: float(run.values.min()))
        return _Result((0.0, 0.0, 0.0), 0.0, "none found", nearest.u[np.argsort(nearest.values)])
    points = np.concatenate([run.u for run in arrivals])
    label = np.repeat(range(len(arrivals)), len(arrivals[0].u))
    shares = np.array([run.probability for run in arrivals]) * len(arrivals) / len(runs)
    # An ideal run has the relative variance levels / particles; moves that do not mix fully about double it.
    floor = -2 * np.log2(shares.mean()) / len(arrivals[0].u)
    ends = _lognormal(shares, floor)
    worst = points[np.argsort(np.concatenate([run.values for run in arrivals]))]
    splitting = _Result(ends, float(len(arrivals) == 1), "splitting", worst)
    weighted = _importance(counter, points, label, particles, random)
    return splitting if weighted is None else weighted


def _importance(
    counter: "_Counter", failures: Floats, label: npt.NDArray[np.int64], particles: int, random: np.random.Generator
) -> _Result | None:
    """The estimate from fresh draws of a proposal that is fitted to failures, which the runs `label` reached; None
    where too few draws would fail. Its limits are those of Fay & Feuer (1997) for weighted sums. The variance is that
    of the sample or, if larger, the one that the weights of the failures imply: a part that the draws hardly meet
    shows there."""
    proposal, rate, spread = fit(failures, random), 0.0, np.inf
    for _ in range(FITS):
        points = proposal.draw(DRAWS * particles, random)
        weights = proposal.weights(points) * (counter(points) <= 0)
        total, square = float(weights.sum()), float((weights**2).sum())
        worth = total**2 / max(square, 1e-300)
        mean_weight = max(float(proposal.weights(failures).mean()), square / max(total, 1e-300))
        if worth and mean_weight < spread:
            rate, best, spread = worth / len(points), proposal, mean_weight
        if worth < 50:
            break
        picks = random.choice(len(points), 5 * particles, p=weights / total)
        proposal = fit(np.concatenate([points[picks], failures]), random)
    if 2 * rate * MAX_WEIGHTED * particles < WORTH:
        return None
    n = int(min(max(WORTH / rate, 5 * particles), MAX_WEIGHTED * particles))
    points = best.draw(n, random)
    values = counter(points)
    good = values <= 0
    weights = best.weights(points) * good
    p, largest = float(weights.mean()), float(weights.max()) / n
    if p == 0:
        return None
    variance = max(float(weights.var(ddof=1)), p * (spread - p)) / n
    part, parts = best.part(points), best.part(failures)
    single = [len(np.unique(label[parts == k])) <= 1 for k in range(len(best.components))]
    singleton = float(weights[np.array(single)[part]].sum() / weights.sum())
    ends = _gamma(p, variance, ALPHA), min(1.0, _gamma(p + largest, variance + largest**2, 1 - ALPHA))
    return _Result((p, *ends), singleton, "importance", points[good][np.argsort(values[good])])


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


@dataclass(frozen=True)
class SplitRun:
    """A run of splitting: its particles (n,d) with their scores, the level up to which they are spread uniformly,
    approximately, and about the probability of that level."""

    u: Floats
    values: Floats
    level: float = np.inf
    probability: float = 1.0

    def next_level(self, count: int, random: np.random.Generator) -> "SplitRun | None":
        """`count` particles of the next level; None after the last."""
        if self.level <= 0 or self.probability < FLOOR:
            return None
        order = np.sort(self.values)
        edge = order[int(min(LEVEL_SHARE * len(order), count))]
        if edge == order[0] > 0:  # a plateau: the next level is its end
            edge = order[min(np.searchsorted(order, edge, "right"), len(order) - 1)]
        level = max(0.0, float(np.nextafter(edge, -np.inf)))  # strictly below a particle's score: no bias
        good = np.flatnonzero(self.values <= level)
        if not len(good):
            return None
        picks = np.resize(random.permutation(good), count)
        probability = self.probability * len(good) / len(self.u)
        return SplitRun(self.u[picks], self.values[picks], level, probability)


def split_levels(
    score: Score, u: Floats, values: Floats, particles: int, random: np.random.Generator
) -> list[SplitRun]:
    """The last levels of independent runs, each from its part of plain draws (n,d); 0 is that of failures."""
    count, step = max(1, particles // RUNS), 0.5
    runs = [SplitRun(u[k::RUNS], values[k::RUNS]) for k in range(RUNS)]
    while moving := {k: run for k, old in enumerate(runs) if (run := old.next_level(count, random))}:
        parts = [np.concatenate([getattr(run, key) for run in moving.values()]) for key in ("u", "values")]
        levels = np.repeat([run.level for run in moving.values()], count)
        u, values, step = move(score, parts[0], parts[1], levels, step, random)
        for i, (k, run) in enumerate(moving.items()):
            block = slice(i * count, (i + 1) * count)
            runs[k] = replace(run, u=u[block], values=values[block])
    return runs


def move(
    score: Score, u: Floats, values: Floats, levels: Floats, step: float, random: np.random.Generator
) -> tuple[Floats, Floats, float]:
    """Particles after Metropolis moves that keep the uniform law on the points with a score of at most their level,
    with their scores and the step of the next moves.

    Half of the moves are autoregressive in the normal scores, with a step that follows the accepted share; the others
    draw some coordinates anew, which also moves those that choose among a few."""
    n, d = u.shape
    for turn in range(MOVES):
        if turn % 2 == 0:
            z = np.sqrt(1 - step**2) * scores(u) + step * random.standard_normal((n, d))
            candidates = clipped(scipy.special.ndtr(z))
        else:
            anew = random.random((n, d)) < random.choice([1 / d, 2 / d, 0.3], size=(n, 1))
            anew[np.arange(n), random.integers(d, size=n)] = True
            candidates = np.where(anew, random.random((n, d)), u)
        candidate_values = score(candidates)
        good = candidate_values <= levels
        u, values = np.where(good[:, None], candidates, u), np.where(good, candidate_values, values)
        if turn % 2 == 0:
            step = float(np.clip(step * np.exp(good.mean() - 0.35), 1e-4, 0.99))
    return u, values, step


def _lognormal(values: Floats, floor: float) -> tuple[float, float, float]:
    """The mean of values that are about lognormal, with logarithms of at least the variance `floor`, and Cox's 95 %
    interval of it with Student's t (Olsson 2005)."""
    n, logs = len(values), np.log(values)
    if n == 1:
        return float(values[0]), 0.0, 1.0
    variance = max(float(logs.var(ddof=1)), floor)
    half = scipy.stats.t.ppf(1 - ALPHA, n - 1) * np.sqrt(variance / n + variance**2 / (2 * (n - 1)))
    centre, p = logs.mean() + variance / 2, float(values.mean())
    return p, min(p, float(np.exp(centre - half))), max(p, float(np.exp(min(centre + half, 0.0))))


def _gamma(mean: float, variance: float, level: float) -> float:
    """A quantile of the gamma distribution."""
    if variance <= 0:
        return mean
    return float(scipy.stats.gamma.ppf(level, mean**2 / variance, scale=variance / mean))
