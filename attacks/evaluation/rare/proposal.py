"""A density over the unit cube that is fitted to failures: a mixture, from which the estimate draws."""

import warnings
from collections.abc import Iterator
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
WIDER, AXIAL = 1.2, 1.6
#: Components that are tried, the fewest points of each (with any covariance, or in a copula: at least three a
#: coordinate), the most points that are clustered pairwise, and the most that compare mixtures.
COMPONENTS, FEWEST, POINTS, PAIRWISE, TESTS = (1, 2, 4, 8, 16, 32), 4, 40, 1200, 600
#: Shapes of components: a normal with any covariance, one whose spread differs along its mean alone (Masri, Morio
#: & Simatos 2021; it needs few points in many coordinates), and a copula.
Shape = Literal["full", "axial", "copula"]
SHAPES: tuple[Shape, ...] = ("full", "axial", "copula")


@dataclass(frozen=True)
class Component:
    """A density of points (n,d) whose normal scores are normal. With histograms `heights` (d,BINS) of the coordinates
    it is a copula: for corners, and for coordinates that choose; without, for sets that a plane or an ellipsoid cuts
    off. `factor` is the Cholesky factor of the covariance."""

    mean: Floats
    factor: Floats
    heights: Floats | None

    @classmethod
    def from_points(cls, u: Floats, shape: Shape) -> "Component":
        if shape != "copula":
            z = scores(u)
            spread = covariance(z) if shape == "full" else _axial(z)
            return cls(z.mean(0), np.asarray(np.linalg.cholesky(spread), np.float64), None)
        columns = [np.bincount(column, minlength=BINS) for column in _bins(u).T]
        heights: Floats = (1 - SMOOTH) * np.stack(columns).astype(np.float64) * (BINS / len(u)) + SMOOTH
        spread = covariance(scores(_cumulative(heights, u)))
        deviations = np.sqrt(np.diag(spread))
        return cls(np.zeros(u.shape[1]), np.linalg.cholesky(spread / np.outer(deviations, deviations)), heights)

    def draw(self, n: int, random: np.random.Generator) -> Floats:
        z = self.mean + random.standard_normal((n, len(self.mean))) @ self.factor.T
        u = clipped(scipy.special.ndtr(z))
        return u if self.heights is None else clipped(_quantile(self.heights, u))

    def log_density(self, u: Floats, z: Floats) -> Floats:
        """With respect to the uniform density, (n,), of points with the normal scores z."""
        marginal = np.zeros(len(u))
        if self.heights is not None:
            z = scores(_cumulative(self.heights, u))
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

    def logs(self, u: Floats) -> Floats:
        """Of each component the logarithm of its share times its density, (k,n)."""
        z = scores(u)
        return np.stack([component.log_density(u, z) for component in self.components]) + np.log(self.shares)[:, None]

    def part(self, u: Floats) -> npt.NDArray[np.int64]:
        """The likeliest component of each point (n,)."""
        return np.asarray(self.logs(u).argmax(0))

    def weights(self, u: Floats) -> Floats:
        """The uniform density over that of the mixture (n,), at most 1 / `UNIFORM`."""
        mixture = np.exp(np.minimum(scipy.special.logsumexp(self.logs(u), axis=0), 700))
        return np.asarray(1 / (UNIFORM + (1 - UNIFORM) * mixture))


def fit(u: Floats, random: np.random.Generator) -> Proposal:
    """The mixture, of those tried, under which held-out points are likeliest; `u` (n,d) are failures."""
    u = clipped(u)
    _, point = np.unique(u, axis=0, return_inverse=True)  # copies of a point must not be held out from each other
    is_test = point % 3 == 0
    test_points, best = u[is_test][:TESTS], (-np.inf, _mixture(u, np.zeros(len(u), np.int64), "full"))
    worse = 0
    for labels in _clusters(u, random):
        fit_points, groups = u[~is_test], labels[~is_test]
        small = labels.any() and np.bincount(groups).min() < max(POINTS, 3 * u.shape[1])
        for shape in ("axial",) if small else SHAPES if len(test_points) and len(fit_points) else ():
            likelihood = -float(np.log(_mixture(fit_points, groups, shape).weights(test_points)).mean())
            if likelihood > best[0]:
                best, worse = (likelihood, _mixture(u, labels, shape)), -1
        worse += 1
        if worse == 2:  # numbers of components in a row
            break
    return best[1]


def _mixture(u: Floats, labels: npt.NDArray[np.int64], shape: Shape) -> Proposal:
    groups = [u[labels == k] for k in np.unique(labels)]
    shares = np.array([len(group) for group in groups]) / len(u)
    return Proposal(tuple(Component.from_points(group, shape) for group in groups), shares)


def _clusters(u: Floats, random: np.random.Generator) -> Iterator[npt.NDArray[np.int64]]:
    """For each number of clusters the labels (n,) of points: Ward's clusters of normal scores, moved by k-means."""
    yield np.zeros(len(u), np.int64)
    z = scores(u)
    counts = [count for count in COMPONENTS[1:] if count * FEWEST <= len(u)]
    sample = z[random.permutation(len(z))[:PAIRWISE]]
    tree = scipy.cluster.hierarchy.ward(sample) if counts else None
    for count in counts:
        groups = scipy.cluster.hierarchy.fcluster(tree, count, "maxclust")
        means = np.stack([sample[groups == k].mean(0) for k in np.unique(groups)])
        with warnings.catch_warnings(action="ignore"):  # an empty cluster keeps its mean
            _, labels = scipy.cluster.vq.kmeans2(z, means, 5, minit="matrix")
        sizes = np.bincount(labels, minlength=len(means))
        if sizes.min() < FEWEST:  # points of a small cluster go to the nearest large one
            means = means[sizes >= FEWEST]
            labels = scipy.cluster.vq.vq(z, means)[0]
        yield np.asarray(labels, np.int64)


def scores(u: Floats) -> Floats:
    return np.asarray(scipy.special.ndtri(clipped(u)))


def clipped(u: Floats) -> Floats:
    return np.clip(u, EDGE, 1 - EDGE)


def covariance(z: Floats) -> Floats:
    """The covariance (d,d) of points (n,d), with a little added to its diagonal."""
    n, spread = len(z), z - z.mean(0)
    sample = spread.T @ spread / max(1, n - 1)
    return np.asarray(sample * WIDER**2 + (1e-6 + 0.5 / max(n, 1)) * np.eye(z.shape[1]))


def _axial(z: Floats) -> Floats:
    """The covariance (d,d) with one variance along the mean of points (n,d), and one across."""
    z = np.unique(z, axis=0)
    n, d, mean = *z.shape, z.mean(0)
    length = max(float(np.linalg.norm(mean)), 1e-12)
    axis = mean / length
    total, axial = float(z.var(0).sum()), float((z @ axis).var())
    across = (n * (total - axial) / max(d - 1, 1) * 1.1**2 + 4) / (n + 4)  # few points are as those beyond a plane
    tilt = d * across**2 / (n * length**2)  # the axis is not exact
    axial = (n * axial + 0.1) / (n + 1) * AXIAL**2 + tilt
    return np.asarray(across * np.eye(d) + (axial - across) * np.outer(axis, axis))


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
