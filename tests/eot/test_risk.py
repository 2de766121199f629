"""Laws of the risks, each against an independent computation."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp

from attacks.eot.risk import CVaR, Mean, SoftMax, WorstOf

N = 12
RISKS = [Mean(), CVaR(0.05), CVaR(0.3), CVaR(0.5), CVaR(1.0), WorstOf(1), WorstOf(4), WorstOf(N), SoftMax(0.2)]

every_risk = pytest.mark.parametrize("risk", RISKS, ids=repr)
some_cases = settings(max_examples=15, deadline=None, derandomize=True)
seeds = st.integers(0, 2**31)


def random_losses(seed, rows=5, n=N, dtype=torch.float64):
    return torch.randn(rows, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tied_losses(seed, rows=5, n=N):
    """Few distinct values, so that every boundary has ties; the last row is constant."""
    losses = torch.randint(0, 3, (rows, n), generator=torch.Generator().manual_seed(seed)).double()
    losses[-1] = 1.0
    return losses


def close(result, expected, atol=1e-12):
    expected = torch.as_tensor(expected, dtype=result.dtype)
    torch.testing.assert_close(result, expected, rtol=0, atol=atol)


def slope(risk, losses):
    """The derivative of the value by autograd."""
    leaf = losses.clone().requires_grad_()
    (grad,) = torch.autograd.grad(risk.value(leaf).sum(), leaf)
    return grad


@every_risk
@pytest.mark.parametrize("make", [random_losses, tied_losses])
@given(seed=seeds)
@some_cases
def test_weights_sum_to_one_and_are_the_gradient_of_the_value(risk, make, seed):
    losses = make(seed)
    weights = risk.weights(losses)
    assert weights.shape == (5, N) and (weights >= 0).all()
    close(weights.sum(1), torch.ones(5), atol=1e-14)
    close(slope(risk, losses), weights, atol=1e-14)
    assert torch.equal(torch.cat([risk.weights(row[None]) for row in losses]), weights)


@every_risk
@given(seeds, st.floats(-3, 3))
@some_cases
def test_the_value_is_between_mean_and_maximum_and_monotone(risk, seed, shift):
    losses = random_losses(seed)
    value = risk.value(losses)
    assert value.shape == (5,)
    assert (value >= losses.mean(1) - 1e-12).all() and (value <= losses.amax(1) + 1e-12).all()
    close(risk.value(losses + shift), value + shift)
    worse = losses + random_losses(seed + 1).abs()
    assert (risk.value(worse) >= value - 1e-12).all()


@pytest.mark.parametrize("risk", [r for r in RISKS if not isinstance(r, WorstOf)], ids=repr)
@given(seeds)
@some_cases
def test_the_order_of_the_views_does_not_matter(risk, seed):
    losses = random_losses(seed)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    close(risk.value(losses[:, order]), risk.value(losses))
    close(risk.weights(losses[:, order]), risk.weights(losses)[:, order])


@given(st.integers(0, 2**31), st.integers(1, 30), st.fractions(Fraction(1, 50), 1, max_denominator=50))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_cvar_is_the_mean_of_the_worst_share(seed, n, alpha):
    # Each view is split into `denominator` equal pieces, so that the share is a whole number of pieces.
    losses = random_losses(seed, n=n)
    pieces = np.sort(np.repeat(losses.numpy(), alpha.denominator, axis=1), axis=1)[:, ::-1]
    close(CVaR(float(alpha)).value(losses), pieces[:, : n * alpha.numerator].mean(1).copy())


@given(seeds, st.integers(1, 30), st.floats(0.01, 1))
@some_cases
def test_cvar_is_the_minimum_of_rockafellar_and_uryasev(seed, n, alpha):
    for losses in (random_losses(seed, n=n), tied_losses(seed, n=n)):
        # Convex and piecewise linear in the threshold: the minimum is at one of the losses.
        excess = (losses[:, None, :] - losses[:, :, None]).clamp(min=0).mean(2)
        close(CVaR(alpha).value(losses), (losses + excess / alpha).amin(1))


@pytest.mark.slow
def test_the_tail_of_cvar_has_no_spurious_views():
    # Every view with a weight costs a backward pass; (k/n) n is not k for every k and n.
    assert any((k / n) * n != k for n in range(1, 100) for k in range(1, n))
    for n in range(1, 100):
        losses = random_losses(n, rows=1, n=n)
        for k in range(1, n + 1):
            weights = CVaR(k / n).weights(losses)
            assert int((weights > 0).sum()) == k
            assert weights.sum() == pytest.approx(1, abs=1e-14)


def test_ties_are_resolved_by_view_order():
    losses = torch.tensor([[1.0, 2.0, 2.0, 2.0, 1.0, 0.0]])
    close(CVaR(0.25).weights(losses), [[0, 2 / 3, 1 / 3, 0, 0, 0]])
    close(CVaR(4 / 6).weights(losses), [[1 / 4, 1 / 4, 1 / 4, 1 / 4, 0, 0]])
    close(WorstOf(3).weights(losses), [[0, 1 / 2, 0, 1 / 2, 0, 0]])
    close(SoftMax(1.0).weights(torch.ones(1, 4)), [[1 / 4] * 4])


@given(seeds, st.sampled_from([(1, 5), (2, 3), (3, 1), (4, 8), (7, 2)]))
@some_cases
def test_worst_of_is_the_mean_over_the_groups_of_their_maxima(seed, sizes):
    k, groups = sizes
    losses = random_losses(seed, n=k * groups)
    expected = [np.mean([max(row[i : i + k]) for i in range(0, k * groups, k)]) for row in losses.tolist()]
    close(WorstOf(k).value(losses), expected)


@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_worst_of_has_no_bias(k):
    # Over all orders of the views, the mean equals the mean of the maximum over all subsets of k views.
    losses = random_losses(k, rows=1, n=6)[0]
    orders = losses[torch.tensor(list(itertools.permutations(range(6))))]
    expected = np.mean([max(sample) for sample in itertools.combinations(losses.tolist(), k)])
    assert float(WorstOf(k).value(orders).mean()) == pytest.approx(expected, abs=1e-12)


@given(seeds, st.floats(-3, 3).map(lambda power: 10.0**power))
@some_cases
def test_softmax_is_the_log_of_a_mean_of_exponentials(seed, temperature):
    losses = random_losses(seed)
    expected = temperature * (logsumexp(losses.numpy() / temperature, axis=1) - math.log(N))
    close(SoftMax(temperature).value(losses), expected, atol=1e-10)


@given(seeds)
@some_cases
def test_limits_are_the_mean_and_the_maximum(seed):
    losses = random_losses(seed)
    mean, worst = losses.mean(1), losses.amax(1)
    for risk in (CVaR(1.0), WorstOf(1), SoftMax(1e9)):
        close(risk.value(losses), mean, atol=1e-8)
        close(risk.weights(losses), Mean().weights(losses), atol=1e-8)
    for risk in (CVaR(1 / N), CVaR(1e-12), WorstOf(N), SoftMax(1e-9)):
        close(risk.value(losses), worst, atol=1e-7)
        close(risk.weights(losses), WorstOf(N).weights(losses))


@given(seeds)
@some_cases
def test_the_smaller_the_share_or_the_temperature_the_higher_the_risk(seed):
    losses = random_losses(seed)
    for risks in (
        [CVaR(alpha) for alpha in (1.0, 0.7, 0.5, 0.1, 0.01)],
        [SoftMax(t) for t in (100.0, 1.0, 0.1, 1e-3)],
    ):
        values = torch.stack([risk.value(losses) for risk in risks])
        assert (values.diff(dim=0) >= -1e-12).all()


@every_risk
def test_a_single_view_is_its_own_risk(risk):
    if not (isinstance(risk, WorstOf) and risk.k > 1):
        losses = random_losses(1, n=1)
        close(risk.value(losses), losses[:, 0])
        close(risk.weights(losses), torch.ones(5, 1))


@every_risk
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_dtypes_give_the_weights_and_value_of_double(risk, dtype):
    losses = random_losses(1, dtype=dtype)
    assert torch.equal(risk.weights(losses), risk.weights(losses.double()))
    assert torch.equal(risk.value(losses), risk.value(losses.double()))
    close(slope(risk, losses), risk.weights(losses), atol=torch.finfo(dtype).eps)


def test_losses_far_beyond_the_temperature_stay_finite():
    losses = torch.tensor([[1e6, -1e6, 0.0], [-1e6, -1e6, -1e6]])
    for temperature in (1e-9, 1.0, 1e9):
        risk = SoftMax(temperature)
        assert risk.value(losses).isfinite().all()
        close(slope(risk, losses), risk.weights(losses).float(), atol=1e-6)


def test_only_the_weights_of_the_mean_ignore_the_losses():
    for risk in RISKS:
        equal = torch.equal(risk.weights(random_losses(1)), risk.weights(random_losses(2)))
        assert equal or not risk.uniform
        assert risk.uniform == isinstance(risk, Mean)


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (CVaR, [0, -0.1, 1.01, math.nan, math.inf], r"`alpha` must lie in \(0, 1\]"),
        (WorstOf, [0, -1, 2.0, True], "`k` must be a whole number of views"),
        (SoftMax, [0, -1.0, 1e-10, 1e10, math.nan, math.inf], "`temperature` must lie in"),
    ],
)
def test_arguments_out_of_range_are_refused(make, values, message):
    for value in values:
        with pytest.raises(ValueError, match=message):
            make(value)


@pytest.mark.parametrize("method", ["weights", "value"])
def test_k_must_divide_the_views(method):
    with pytest.raises(ValueError, match="multiple of `k`; got 12 views for k=5"):
        getattr(WorstOf(5), method)(random_losses(1))
