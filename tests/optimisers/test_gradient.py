"""Optimisers against the libraries and formulas that they implement."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import L2, PGD, SGD, Linf
from attacks.eot.estimate import Estimate
from attacks.eot.protocols import Done
from attacks.optimisers.apgd import APGD
from attacks.optimisers.gradient import Adam, decay
from attacks.optimisers.square import Square
from attacks.optimisers.wiener import Wiener

SETS = [Linf(8 / 255), L2(4.0)]
every_set = pytest.mark.parametrize("perturbation", SETS, ids=["linf", "l2"])
double = torch.float64
SCHEDULES = ["constant", "cosine", "linear"]
OPTIMISERS = [Wiener(), PGD(), PGD(nesterov=True), SGD(1.0), SGD(1.0, nesterov=True), Adam(), APGD()]
names = ["wiener", "pgd", "nesterov", "sgd", "nag", "adam", "apgd"]
every_optimiser = pytest.mark.parametrize("optimiser", OPTIMISERS, ids=names)


def gradients(steps=6, count=3):
    return torch.randn(steps, count, 3, 5, 7, dtype=double, generator=torch.Generator().manual_seed(0))


def moves(optimiser, grads, perturbation, eps=None):
    """The moves along a fixed sequence of gradients without bounds, stacked."""
    origin = torch.zeros_like(grads[0])
    state = optimiser.init(origin, reach=eps or perturbation.eps, steps=len(grads))
    result = []
    for index, grad in enumerate(grads):
        share_of_run = share(index, len(grads), len(grad))
        move, state = optimiser.step(origin, estimate(grad), state, without_bound(perturbation), share_of_run)
        result.append(move)
    return torch.stack(result)


def share(step, steps, count):
    """How much of a run of `count` pictures is done before and after a step."""
    return Done(*(torch.full((count,), k / steps, dtype=double) for k in (step, step + 1)))


def without_bound(perturbation):
    """The constraint of a perturbation without its set."""

    def steepest(grad, length, at):
        return perturbation.descend(grad, length, at, at)

    def step(at, grad, length):
        return at + steepest(grad, length, at)

    return SimpleNamespace(steepest=steepest, project=torch.add, step=step)


def estimate(grad):
    zeros = torch.zeros(len(grad), dtype=grad.dtype)
    return Estimate(zeros, zeros, zeros, grad, 8, 8, zeros)


def path_of_torch(make, grads, schedule="constant"):
    """The points of an optimiser of torch along a sequence of gradients, from zero."""
    weight, path, steps = torch.zeros_like(grads[0]).requires_grad_(), [], len(grads)
    theirs = make([weight])
    scheduler = {
        "constant": torch.optim.lr_scheduler.ConstantLR(theirs, 1.0),
        "cosine": torch.optim.lr_scheduler.CosineAnnealingLR(theirs, steps),
        "linear": torch.optim.lr_scheduler.LinearLR(theirs, 1.0, 0.0, steps),
    }[schedule]
    for grad in grads:
        weight.grad = grad.clone()
        theirs.step()
        scheduler.step()
        path.append(weight.detach().clone())
    return torch.stack(path)


@pytest.mark.parametrize(
    ("momentum", "nesterov"), [(0.0, False), (0.5, False), (0.9, False), (0.5, True), (0.9, True)]
)
@every_set
def test_sgd_equals_torchs_sgd(momentum, nesterov, perturbation):
    grads = gradients()
    theirs = path_of_torch(lambda w: torch.optim.SGD(w, lr=0.3, momentum=momentum, nesterov=nesterov), grads)
    ours = moves(SGD(0.3, momentum, "constant", nesterov), grads, perturbation).cumsum(0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-14)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9), (0.5, 0.0)])
def test_adam_equals_torchs_adam_on_linf(betas, schedule):
    grads = gradients(30)
    theirs = path_of_torch(lambda w: torch.optim.Adam(w, lr=0.05 * 8 / 255, betas=betas, eps=0), grads, schedule)
    ours = moves(Adam(0.05, *betas, schedule), grads, Linf(8 / 255)).cumsum(0)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


@every_set
def test_adam_takes_the_steepest_step_of_the_norm_for_constant_gradients(perturbation):
    grads = gradients(1).expand(6, -1, -1, -1, -1)
    result = moves(Adam(0.25, schedule="constant"), grads, perturbation)
    torch.testing.assert_close(result, -0.25 * perturbation.eps * perturbation.steepest(grads[0]).expand_as(result))


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@every_set
def test_the_momentum_of_pgd_is_that_of_mi_fgsm(perturbation, momentum):
    # Dong et al. 2018, eq. 6: g <- mu g + grad / ||grad||_1, picture by picture.
    grads = gradients() * 10.0 ** torch.arange(6, dtype=double)[:, None, None, None, None]
    velocity, expected = torch.zeros_like(grads[0]), []
    for grad in grads:
        velocity = torch.stack([momentum * v + g / g.abs().sum() for v, g in zip(velocity, grad, strict=True)])
        expected.append(-0.25 * perturbation.eps * perturbation.steepest(velocity))
    result = moves(PGD(0.25, momentum, "constant"), grads, perturbation)
    torch.testing.assert_close(result, torch.stack(expected), rtol=1e-12, atol=1e-15)


class Bowl:
    """A loss whose gradient depends on the place: an uneven quadratic."""

    def __init__(self):
        self.curve = torch.linspace(0.1, 3, 105, dtype=double).view(1, 3, 5, 7)
        self.centre = torch.randn(2, 3, 5, 7, dtype=double, generator=torch.Generator().manual_seed(3))

    def grad(self, delta):
        return self.curve * (delta - self.centre)


@every_set
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_pgd_with_nesterov_evaluates_gradients_at_the_lookahead(perturbation, schedule):
    # Lin et al. 2020: the gradient at x + mu * (the next step of the momentum); none is taken at x itself.
    bowl, steps, rate, mu = Bowl(), 8, 0.3, 0.7
    x, velocity = torch.zeros_like(bowl.centre), torch.zeros_like(bowl.centre)
    for k in range(steps):
        length = rate * perturbation.eps * float(decay(schedule, torch.tensor(k / steps, dtype=double), x))
        ahead = x - mu * length * perturbation.steepest(velocity)
        grad = bowl.grad(ahead)
        velocity = mu * velocity + grad / grad.abs().sum((1, 2, 3), keepdim=True)
        x = x - length * perturbation.steepest(velocity)
    delta, optimiser = torch.zeros_like(x), PGD(rate, mu, schedule, nesterov=True)
    state = optimiser.init(delta, reach=perturbation.eps, steps=steps)
    for k in range(steps):
        grad, share_of_run = estimate(bowl.grad(delta)), share(k, steps, len(delta))
        delta, state = optimiser.step(delta, grad, state, without_bound(perturbation), share_of_run)
    torch.testing.assert_close(delta, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimiser", [Wiener(), PGD(), PGD(nesterov=True), Adam(), APGD()], ids=repr)
@every_set
@given(powers=st.lists(st.integers(-30, 30), min_size=3, max_size=3))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_all_but_sgd_are_invariant_to_the_scale_of_a_pictures_gradient(optimiser, perturbation, powers):
    # Every picture has its own scale, the same in all steps; powers of two scale floats exactly.
    grads = gradients()
    scaled = grads * 2.0 ** torch.tensor(powers, dtype=double)[:, None, None, None]
    assert torch.equal(moves(optimiser, scaled, perturbation), moves(optimiser, grads, perturbation))


@pytest.mark.parametrize("optimiser", [Wiener(), PGD(), Adam(), APGD()], ids=["wiener", "pgd", "adam", "apgd"])
@pytest.mark.parametrize("scale", [1e-30, 1e30])
@every_set
def test_a_very_small_or_large_gradient_moves_as_far_in_float32(optimiser, scale, perturbation):
    # Its squares are 0 or infinite there.
    grads = gradients().float()
    plain, scaled = moves(optimiser, grads, perturbation), moves(optimiser, scale * grads, perturbation)
    torch.testing.assert_close(scaled, plain, rtol=1e-3, atol=1e-3 * perturbation.eps)


@every_optimiser
@every_set
def test_pictures_are_independent(optimiser, perturbation):
    grads = gradients() * torch.tensor([100, 1, 0.01], dtype=double)[:, None, None, None]
    single = [moves(optimiser, grads[:, [i]], perturbation) for i in range(3)]
    batch = moves(optimiser, grads, perturbation)
    torch.testing.assert_close(torch.cat(single, dim=1), batch, rtol=1e-13, atol=1e-14)


@every_optimiser
def test_a_step_does_not_change_the_state_in_place(optimiser):
    # Pure functions: from one state, the same step twice.
    grads = gradients()
    origin, free = torch.zeros_like(grads[0]), without_bound(SETS[0])
    share_of_run = share(0, 9, len(origin))
    _, state = optimiser.step(
        origin, estimate(grads[0]), optimiser.init(origin, reach=0.1, steps=9), free, share_of_run
    )
    first, _ = optimiser.step(origin, estimate(grads[1]), state, free, share_of_run)
    repeat, _ = optimiser.step(origin, estimate(grads[1]), state, free, share_of_run)
    assert torch.equal(first, repeat)


@every_optimiser
@every_set
def test_a_gradient_of_zeros_moves_no_delta(optimiser, perturbation):
    zero_grads = torch.zeros(6, 2, 3, 5, 7)
    assert torch.equal(moves(optimiser, zero_grads, perturbation), zero_grads)


@every_optimiser
@every_set
def test_a_gradient_of_zeros_late_in_a_run_leaves_no_trace(optimiser, perturbation):
    grads = gradients(steps=9)
    grads[6, 0] = 0
    result = moves(optimiser, grads, perturbation)
    assert result.isfinite().all() and result[7:].any()
    assert (result[7:].diff(dim=0) != 0).any()


LENGTHS, SHARES, SCHEDULE = (0.0, -1.0, math.nan, math.inf), (-0.1, 1.0, math.nan), ("step",)
#: Optimiser -> argument -> values that are refused.
ERRORS = {
    Wiener: {"rel_step_size": LENGTHS, "schedule": SCHEDULE},
    PGD: {"rel_step_size": LENGTHS, "momentum": SHARES, "schedule": SCHEDULE},
    SGD: {"lr": LENGTHS, "momentum": SHARES, "schedule": SCHEDULE},
    Adam: {"rel_step_size": LENGTHS, "beta1": SHARES, "beta2": SHARES, "schedule": SCHEDULE},
    APGD: {"rel_step_size": LENGTHS, "momentum": (0.0, 1.1, math.nan), "rho": (-0.1, 1.1, math.nan)},
    Square: {"p_init": (0.0, 8.0)},
}


@pytest.mark.parametrize("make", ERRORS)
def test_arguments_out_of_range_are_named(make):
    for name, values in ERRORS[make].items():
        for value in values:
            with pytest.raises(ValueError, match=f"`{name}` must"):
                make(**{name: value})


@pytest.mark.parametrize("make", [PGD, SGD])
def test_nesterov_needs_momentum(make):
    with pytest.raises(ValueError, match="`nesterov` needs `momentum`"):
        make(momentum=0.0, nesterov=True)
