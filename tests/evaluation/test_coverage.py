"""The coverage of the 95 % intervals on a part of the grid of `python scripts/benchmark.py coverage`."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.evaluation.intervals import interval, median, rate
from attacks.evaluation.significance import paired_shares
from scripts.benchmarks.coverage import DIFFERENCES, KINDS, MEANS, MINIMUM_COVERAGE, SHARES, coverage_and_width

REPEATS = 1000
#: Three standard errors of a simulated coverage of `MINIMUM_COVERAGE`.
ERROR = 3 * (MINIMUM_COVERAGE * (1 - MINIMUM_COVERAGE) / REPEATS) ** 0.5


def worst_coverage(name, method, clusters):
    """The coverage in the worst population."""
    kind = replace(KINDS[name], methods={method: KINDS[name].methods[method]})
    return min(
        (coverage_and_width(population, kind, clusters, REPEATS)[method][0], population.name)
        for population in kind.populations
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("clusters", [4, 8, 12, 28, 30, 50, 100])
def test_intervals_keep_their_coverage_in_every_population(name, clusters):
    if clusters < KINDS[name].fewest:
        pytest.skip("the range is given")
    coverage, population = worst_coverage(name, "ours", clusters)
    assert coverage >= MINIMUM_COVERAGE - ERROR, population


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("method", ["t", "bootstrap"])
def test_textbook_intervals_fail_the_same_test(name, method):
    assert worst_coverage(name, method, 20)[0] < 0.9


@pytest.mark.slow
def test_no_mean_of_fewer_clusters_keeps_its_coverage():
    # With 20 clusters, a tenth of the population is missed with a probability of 0.12: the ends agree.
    assert worst_coverage("means", "ours", 20)[0] < 0.9


def test_the_simulated_intervals_are_those_of_the_report():
    random = np.random.default_rng(0)
    for population, clusters in ((SHARES[8], 9), (MEANS[1], 40), (DIFFERENCES[3], 9)):
        sample = population.draw(random, (3, clusters))
        name = next(name for name, kind in KINDS.items() if population in kind.populations)
        low, high = KINDS[name].methods["ours"](sample)
        for row, (first, other) in enumerate(zip(*map(torch.from_numpy, sample[:2]), strict=True)):
            trials = int(sample.trials[row])
            single = interval(first) if name == "means" else rate(first, trials) if name == "shares" else None
            single = single or paired_shares(first, other, trials)
            assert single.kind == "interval"
            assert single[1:3] == pytest.approx((min(low[row], single.mean), max(high[row], single.mean)), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [15, 6, 40])
def test_medians_have_at_least_95_percent_coverage(clusters):
    values = torch.from_numpy(np.random.default_rng(0).exponential(size=(1000, clusters)))
    result = [median(row) for row in values]
    assert np.mean([low <= np.log(2) <= high for _, low, high, _ in result]) >= 0.935
