"""Laws of the risks, each against an independent computation."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.eot.risk import CVaR, Mean

N = 12
RISKS = [Mean(), CVaR(0.05), CVaR(0.3), CVaR(0.5), CVaR(1.0)]

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


@every_risk
@given(seeds)
@some_cases
def test_the_order_of_the_views_does_not_matter(risk, seed):
    losses = random_losses(seed)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(seed))
    close(risk.value(losses[:, order]), risk.value(losses))
    close(risk.weights(losses[:, order]), risk.weights(losses)[:, order])


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


@given(seeds)
@some_cases
def test_limits_are_the_mean_and_the_maximum(seed):
    losses = random_losses(seed)
    mean, worst = losses.mean(1), losses.amax(1)
    close(CVaR(1.0).value(losses), mean, atol=1e-8)
    close(CVaR(1.0).weights(losses), Mean().weights(losses), atol=1e-8)
    for risk in (CVaR(1 / N), CVaR(1e-12)):
        close(risk.value(losses), worst, atol=1e-7)
        close(risk.weights(losses), losses == worst[:, None])
    values = torch.stack([CVaR(alpha).value(losses) for alpha in (1.0, 0.7, 0.5, 0.1, 0.01)])
    assert (values.diff(dim=0) >= -1e-12).all()


@every_risk
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_narrow_dtypes_give_the_weights_and_value_of_double(risk, dtype):
    losses = random_losses(1, dtype=dtype)
    assert torch.equal(risk.weights(losses), risk.weights(losses.double()))
    assert torch.equal(risk.value(losses), risk.value(losses.double()))
    close(slope(risk, losses), risk.weights(losses), atol=torch.finfo(dtype).eps)


@pytest.mark.parametrize("alpha", [0, -0.1, 1.01, math.nan, math.inf])
def test_a_share_out_of_range_is_refused(alpha):
    with pytest.raises(ValueError, match=r"`alpha` must lie in \(0, 1\]"):
        CVaR(alpha)
