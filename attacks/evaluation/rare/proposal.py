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
