"""Rare failures: sets of known probability, the laws of moves and weights, and what is refused."""

import numpy as np
import pytest
import scipy.stats

from attacks.evaluation.rare.proposal import SHAPES, UNIFORM, Component, fit, scores
from attacks.evaluation.rare.splitting import ALPHA, PLAIN, RareFigures, move, rare
from scripts.benchmarks.rare import SETS as SETS_OF_STUDY
from scripts.benchmarks.rare import TRAPS, planes


def discrete(d, p):
    """Two coordinates choose among three each, and one choice of both fails near a corner of the others."""
    side = (9 * p) ** (1 / (d - 2))

    def score(u):
        wrong = ((u[:, :2] * 3).astype(int) != [1, 2]).sum(1)
        shift = u[:, 2:].max(1) - side
        return np.where(wrong == 0, shift, shift.clip(0) + 0.2 + 0.1 * wrong)

    return score


#: Scores of sets of the probability p in d coordinates, all of whose parts a slope leads to.
SETS = {"discrete": discrete}
SETS |= {name: score for name, score in SETS_OF_STUDY.items() if name not in TRAPS}


def samples(kind, n, d=3):
    random = np.random.default_rng(0)
    if kind == "corner":
        return random.random((n, d)) * 0.3
    z = random.standard_normal((n, d)) * 0.5 + np.where(random.random((n, 1)) < 0.5, 2, -2)
    return scipy.stats.norm.cdf(z)


@pytest.mark.parametrize("kind", ["corner", "lobes"])
def test_weights_are_bounded_with_mean_1(kind):
    random = np.random.default_rng(1)
    proposal = fit(samples(kind, 900), random)
    points = proposal.draw(40_000, random)
    weights = proposal.weights(points)
    assert weights.max() <= 1 / UNIFORM * (1 + 1e-9) and weights.min() > 0
    assert weights.mean() == pytest.approx(1, abs=5 * weights.std() / 200)
    assert (np.abs(points - 0.5) <= 0.5).all()
    inside = points[:, 0] < 0.5  # any event has its uniform probability
    assert (weights * inside).mean() == pytest.approx(0.5, abs=5 * weights.std() / 200)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_component_is_a_density(shape):
    z = np.random.default_rng(0).standard_normal((600, 2)) * [0.6, 0.9] + [0.5, 0]
    component = Component.from_points(scipy.stats.norm.cdf(z @ [[1, 0.4], [0, 1]]), shape)
    grid = (np.arange(800) + 0.5) / 800
    u = np.stack([axis.ravel() for axis in np.meshgrid(grid, grid)], 1)
    assert np.exp(component.log_density(u, scores(u))).mean() == pytest.approx(1, abs=0.02)
    points = component.draw(20_000, np.random.default_rng(0))
    share = np.exp(component.log_density(u, scores(u)))[u[:, 0] < 0.25].sum() / len(u)
    assert (points[:, 0] < 0.25).mean() == pytest.approx(share, abs=0.02)


def test_moves_keep_the_uniform_law_on_the_level():
    def score(u):
        return u.sum(1) - 1.0

    random = np.random.default_rng(0)
    u = random.random((20_000, 3))
    u = u[score(u) <= 0]
    particles, values, _ = move(score, u, score(u), np.zeros(len(u)), 0.5, random)
    assert (score(particles) <= 0).all() and np.array_equal(score(particles), values)
    assert (np.abs(particles - u).max(1) > 0).mean() > 0.9
    for j in range(3):  # Beta(1, 3) margins of the simplex
        assert scipy.stats.kstest(particles[:, j], scipy.stats.beta(1, 3).cdf).pvalue > 1e-3


@pytest.mark.parametrize("p", [1e-2, 1e-5])
@pytest.mark.parametrize("name", ["discrete", "thin-shell", "corners", "quantised"])
def test_limit_and_estimate_of_a_known_probability(name, p):
    estimate = rare(SETS[name](6, p), 6, 500, seed=2)
    assert estimate.low <= p <= estimate.high and estimate.low <= estimate.p <= estimate.high
    assert estimate.estimate == pytest.approx(p, rel=0.4) and estimate.estimate_low <= p <= estimate.estimate_high
    assert ((SETS[name](6, p)(estimate.worst) <= 0).all() and estimate.method == "plain") or p == 1e-5
    assert ("p <=" in estimate.words) == (estimate.p == 0) and ("reached" in estimate.words) == (p == 1e-5)
    if p == 1e-5:  # the limit is that of Clopper & Pearson, never a smaller one
        assert not estimate.doubts and estimate.high > 3.6 / estimate.draws > 10 * p
        assert estimate.passes < 400 * 500


@pytest.mark.slow
@pytest.mark.parametrize("p", [1e-4, 1e-7])
@pytest.mark.parametrize("name", sorted(SETS))
def test_estimates_hold_in_most_repeats(name, p):
    estimates = [rare(SETS[name](20, p), 20, 500, seed) for seed in range(10)]
    assert np.mean([result.estimate_low <= p <= result.estimate_high for result in estimates]) >= 0.7
    assert np.median([result.estimate for result in estimates]) == pytest.approx(p, rel=0.3)


@pytest.mark.parametrize("d", [1, 20])
def test_one_and_twenty_coordinates(d):
    estimate = rare(planes(1, d, 1e-6), d, 200)
    assert estimate.estimate_low <= 1e-6 <= estimate.estimate_high < estimate.high


def test_the_same_seed_gives_the_same_estimate():
    first, second = (rare(planes(1, 4, 1e-4), 4, particles=200, seed=3) for _ in range(2))
    assert (first.estimate, first.high, first.passes) == (second.estimate, second.high, second.passes)
    assert np.array_equal(first.worst, second.worst)


@pytest.mark.parametrize(
    "score",
    [lambda u: u[:, 0] + 0.5, lambda u: np.ones(len(u)), lambda u: 1.0 + (u[:, 0] > 0.5)],
    ids=["slope", "plateau", "steps"],
)
def test_without_a_failure_there_is_the_limit_of_the_plain_draws(score):
    estimate = rare(score, 3, particles=200)
    assert estimate.method == "none found" and estimate.p == estimate.low == estimate.estimate == 0
    assert estimate.high == pytest.approx(1 - ALPHA ** (1 / (PLAIN * 200)))
    assert (
        "; the search found none, so there is no estimate; " in estimate.words
        and f"may add {estimate.high:.2g}" in estimate.words
    )


def test_a_limit_holds_where_an_estimate_misses_an_island():
    """The plain draws alone speak of an island that no slope leads to."""
    for name in TRAPS:
        for seed in range(2):
            estimate = rare(SETS_OF_STUDY[name](6, 2e-5), 6, 100, seed)
            assert estimate.low <= 2e-5 <= estimate.high and estimate.high > 3.6 / (PLAIN * 100)
            assert estimate.estimate > 1e-5 or "islands that were not reached may add" in estimate.words


def test_what_the_plain_draws_met_is_in_the_estimate():
    """Some of 10,000 draws meet the island of 2e-4, and its mass is found in one part of few runs."""
    score = SETS_OF_STUDY["island-plateau"](3, 2e-4)
    estimates = [rare(score, 3, 200, seed) for seed in range(10)]
    meetings = [result for result in estimates if result.p and result.method != "plain"]
    assert len(meetings) > 5 and all(result.estimate > 0 and result.low > 0 for result in meetings)
    assert sum(result.estimate_low <= 2e-4 <= result.estimate_high for result in meetings) >= len(meetings) - 1


def test_doubts_are_in_the_words():
    figures = RareFigures(2e-4, 1e-4, 3e-4, 50_000, 1e-6, 9e-7, 1.1e-6, 0.5, "importance")
    assert figures.words.count(", but ") == 2 and "one run of 8 found 50 % of it" in figures.words
    assert figures.words.startswith("p 0.0002 [0.0001, 0.0003] at 95 % from 50,000 random views; estimate 1e-06 [")
    assert figures.words.endswith("; islands that were not reached may add 0.0003")


def test_scores_that_are_no_numbers_are_refused():
    with pytest.raises(ValueError, match="finite number for each of the"):
        rare(lambda u: np.full(len(u), np.nan), 2)
