"""Where rare failures lie in the unit cube: a density fitted to some of them, to draw more."""

from dataclasses import dataclass

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
class Normal:
    """A normal density of the normal scores of the coordinates: for sets that a plane or an ellipsoid cuts off. Its
    logarithm is with respect to the uniform density."""

    mean: Floats
    factor: Floats  # the Cholesky factor of the covariance

    @classmethod
    def from_points(cls, u: Floats) -> "Normal":
        z = scores(u)
        return cls(z.mean(0), np.asarray(np.linalg.cholesky(covariance(z)), dtype=np.float64))

    def draw(self, n: int, random: np.random.Generator) -> Floats:
        z = self.mean + random.standard_normal((n, len(self.mean))) @ self.factor.T
        return clipped(scipy.special.ndtr(z))

    def log_density(self, u: Floats) -> Floats:
        z = scores(u)
        white = np.linalg.solve(self.factor, (z - self.mean).T).T
        result: Floats = 0.5 * (z**2 - white**2).sum(1) - np.log(np.diag(self.factor)).sum()
        return result


@dataclass(frozen=True)
class Copula:
    """Histograms of the coordinates, joined by a normal copula: for corners, and for coordinates that choose."""

    heights: Floats  # (d,BINS), of densities
    factor: Floats  # the Cholesky factor of the correlation of the normal scores

    @classmethod
    def from_points(cls, u: Floats) -> "Copula":
        d = u.shape[1]
        heights = np.stack([np.histogram(u[:, j], BINS, (0, 1))[0] for j in range(d)]) * (BINS / len(u))
        heights = (1 - SMOOTH) * heights + SMOOTH
        z = scores(_cumulative(heights, u))
        spread = np.sqrt(np.diag(covariance(z)))
        return cls(heights, np.linalg.cholesky(covariance(z) / np.outer(spread, spread)))

    def draw(self, n: int, random: np.random.Generator) -> Floats:
        z = random.standard_normal((n, len(self.heights))) @ self.factor.T
        return clipped(_quantile(self.heights, clipped(scipy.special.ndtr(z))))

    def log_density(self, u: Floats) -> Floats:
        z = scores(_cumulative(self.heights, u))
        white = np.linalg.solve(self.factor, z.T).T
        bins = np.minimum((u * BINS).astype(int), BINS - 1)
        marginal = np.log(np.take_along_axis(self.heights, bins.T, 1)).sum(0)
        result: Floats = marginal + 0.5 * (z**2 - white**2).sum(1) - np.log(np.diag(self.factor)).sum()
        return result


@dataclass(frozen=True)
class Proposal:
    """A mixture of components with a share `UNIFORM` of the uniform density."""

    components: tuple[Normal | Copula, ...]
    shares: Floats

    def draw(self, n: int, random: np.random.Generator) -> Floats:
        """Points (n,d) of the mixture."""
        d = self.components[0].draw(1, np.random.default_rng(0)).shape[1]
        counts = random.multinomial(n, [UNIFORM, *((1 - UNIFORM) * self.shares)])
        parts = [random.random((counts[0], d))]
        parts += [component.draw(k, random) for component, k in zip(self.components, counts[1:], strict=True)]
        points: Floats = random.permutation(np.concatenate(parts))
        return points

    def weights(self, u: Floats) -> Floats:
        """The uniform density over that of the mixture (n,), at most 1 / `UNIFORM`."""
        logs = np.stack([component.log_density(u) for component in self.components]) + np.log(self.shares)[:, None]
        density = UNIFORM + (1 - UNIFORM) * np.exp(np.minimum(scipy.special.logsumexp(logs, axis=0), 700))
        result: Floats = 1 / density
        return result


def fit(u: Floats, random: np.random.Generator) -> Proposal:
    """The mixture, of those tried, under which held-out points are likeliest; `u` (n,d) are failures."""
    u = clipped(u)
    _, point = np.unique(u, axis=0, return_inverse=True)  # copies of a point must not be held out from each other
    test_points, fit_points = u[point % 3 == 0], u[point % 3 != 0]
    best: tuple[float, int, type[Normal] | type[Copula]] = (-np.inf, 1, Normal)
    for count in COMPONENTS:
        if len(fit_points) < count * max(FEWEST, 3 * u.shape[1]) and count > 1:
            break
        labels = _clusters(fit_points, count, random)
        for kind in (Normal, Copula):
            proposal = _mixture(fit_points, labels, kind)
            likelihood = -float(np.log(proposal.weights(test_points)).mean())
            best = max(best, (likelihood, count, kind), key=lambda trial: trial[0])
    _, count, best_kind = best
    return _mixture(u, _clusters(u, count, random), best_kind)


def _mixture(u: Floats, labels: npt.NDArray[np.int64], kind: type[Normal] | type[Copula]) -> Proposal:
    groups = [u[labels == k] for k in np.unique(labels)]
    shares = np.array([len(group) for group in groups]) / len(u)
    return Proposal(tuple(kind.from_points(group) for group in groups), shares)


def _clusters(u: Floats, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """Labels (n,) of clusters of the normal scores."""
    if count == 1:
        return np.zeros(len(u), dtype=np.int64)
    try:
        _, labels = scipy.cluster.vq.kmeans2(scores(u), count, minit="++", seed=random, missing="raise")
    except scipy.cluster.vq.ClusterError:  # one is empty
        return _clusters(u, count - 1, random)
    result: npt.NDArray[np.int64] = labels.astype(np.int64)
    sizes = np.bincount(result, minlength=count)
    return result if sizes.min() >= FEWEST else _clusters(u, count - 1, random)


def scores(u: Floats) -> Floats:
    result: Floats = scipy.special.ndtri(clipped(u))
    return result


def clipped(u: Floats) -> Floats:
    result: Floats = np.clip(u, EDGE, 1 - EDGE)
    return result


def covariance(z: Floats) -> Floats:
    """The covariance (d,d) of points (n,d), with a little added to its diagonal."""
    n, d = z.shape
    spread = z - z.mean(0)
    sample = spread.T @ spread / max(1, n - 1)
    result: Floats = sample * WIDER**2 + (1e-6 + 0.5 / max(n, 1)) * np.eye(d)
    return result


def _cumulative(heights: Floats, u: Floats) -> Floats:
    """Each coordinate's distribution function at (n,d)."""
    steps = np.concatenate([np.zeros((len(heights), 1)), np.cumsum(heights, 1) / BINS], 1)
    bins = np.minimum((u * BINS).astype(int), BINS - 1)
    below = np.take_along_axis(steps, bins.T, 1).T
    result: Floats = below + (u - bins / BINS) * np.take_along_axis(heights, bins.T, 1).T
    return result


def _quantile(heights: Floats, p: Floats) -> Floats:
    steps = np.concatenate([np.zeros((len(heights), 1)), np.cumsum(heights, 1) / BINS], 1)
    result: Floats = np.empty_like(p)
    for j, (edges, height) in enumerate(zip(steps, heights, strict=True)):
        at = np.clip(np.searchsorted(edges, p[:, j], side="right") - 1, 0, BINS - 1)
        result[:, j] = at / BINS + (p[:, j] - edges[at]) / height[at]
    return result
