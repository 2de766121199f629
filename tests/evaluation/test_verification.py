"""Impostor pairs against all pairs, thresholds against scikit-learn's ROC curve."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_curve

from attacks.evaluation.retrieval_metrics import _spread, impostors, thresholds


def gallery(seed=0, rows=25):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 6, generator=generator), torch.randint(8, (rows,), generator=generator)


@pytest.mark.parametrize("named", [True, False])
def test_impostors_are_all_pairs_of_different_identities(named):
    rows, identity = gallery()
    result = impostors(rows, identity if named else None)
    unit = rows.double() / rows.double().norm(dim=1, keepdim=True)
    cosines = (unit @ unit.T).numpy()
    one, other = np.triu_indices(len(rows), 1)
    different = (identity[one] != identity[other]).numpy() if named else np.ones(len(one), bool)
    np.testing.assert_allclose(np.sort(result), np.sort(cosines[one, other][different]), atol=1e-6)


def test_too_many_pairs_are_sampled_evenly_and_deterministically():
    rows, identity = gallery(rows=60)
    everything, some = impostors(rows, identity), impostors(rows, identity, 500)
    assert len(some) == 500 < len(everything) and torch.equal(some, impostors(rows, identity, 500))
    left = list(everything.numpy().round(9))
    for value in some.numpy().round(9):
        left.remove(value)  # each is one of all pairs, and none is repeated
    assert float(some.mean()) == pytest.approx(float(everything.mean()), abs=4 * float(everything.std()) / 500**0.5)


@pytest.mark.parametrize(("count", "most"), [(0, 5), (5, 5), (6, 5), (7, 5), (99, 5), (10**13, 1000)])
def test_sampled_indices_are_spread_evenly(count, most):
    result = _spread(count, most).tolist()
    assert len(set(result)) == len(result) == min(count, most) and result == sorted(result)
    for i, place in enumerate(result):
        assert count * i // len(result) <= place < count * (i + 1) // len(result)
    if count > 1000 * most:  # at random within each interval
        assert np.mean([place * most % count / count for place in result]) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_without_two_identities_there_are_no_impostors(rows):
    pairs = impostors(torch.ones(rows, 3), torch.zeros(rows, dtype=torch.long))
    assert len(pairs) == 0 and thresholds(pairs) == {}


@pytest.mark.parametrize("digits", [2, 9])  # with many equal scores, and with none
def test_true_accept_rates_equal_the_sklearn_roc_curve(digits):
    generator = np.random.default_rng(digits)
    false, true = generator.normal(0, 0.2, 12_345).round(digits), generator.normal(0.4, 0.2, 3000).round(digits)
    labels = np.r_[np.zeros(len(false)), np.ones(len(true))]
    fpr, tpr, _ = roc_curve(labels, np.r_[false, true], drop_intermediate=False)
    result = thresholds(torch.from_numpy(false))
    assert list(result) == [1e-2, 1e-3]
    for far, limit in result.items():
        assert (true >= limit).mean() == pytest.approx(tpr[fpr <= far].max(), abs=1e-12)


@pytest.mark.parametrize("digits", [1, 9])
def test_a_threshold_is_the_smallest_with_its_false_accept_rate(digits):
    false = np.random.default_rng(0).normal(0, 0.3, 5000).round(digits)
    for far, limit in thresholds(torch.from_numpy(false)).items():
        assert (false >= limit).mean() <= far < (false >= math.nextafter(limit, -1)).mean()


def test_a_rate_needs_ten_impostors():
    scores = torch.linspace(-1, 1, 10_000)
    assert list(thresholds(scores)) == [1e-2, 1e-3]
    assert list(thresholds(scores[:9999])) == [1e-2]
    assert list(thresholds(scores[:999])) == []
    with pytest.raises(ValueError, match="`fars`"):
        thresholds(scores, (0.0,))
