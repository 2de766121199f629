"""Optimisers against the libraries and the formulas that they claim to be."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks import L2, PGD, SGD, Linf
from attacks.estimate import Estimate
from attacks.ground import Ground

SETS = [Linf(8 / 255), L2(4.0)]
every_set = pytest.mark.parametrize("perturbation", SETS, ids=["linf", "l2"])
double = torch.float64


def gradients(steps=6, count=3):
    return torch.randn(steps, count, 3, 5, 7, dtype=double, generator=torch.Generator().manual_seed(0))


def moves(optimiser, grads, perturbation, eps=None):
    """The moves along a fixed sequence of gradients, where nothing bounds them, as a stack."""
    origin = torch.zeros_like(grads[0])
    state = optimiser.init(origin, reach=eps or perturbation.eps, steps=len(grads))
    found = []
    for grad in grads:
        move, state = optimiser.step(origin, estimate(grad), state, open_ground(perturbation))
        found.append(move)
    return torch.stack(found)


def open_ground(perturbation):
    """The perturbation's steps without its set."""
    return Ground(lambda grad, length, at: perturbation.descend(grad, length, at, at), torch.add)


def estimate(grad):
    some = torch.zeros(len(grad), dtype=grad.dtype)
    return Estimate(some, some, some, grad, 8, 8, some)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@every_set
def test_sgd_is_torchs_sgd(momentum, perturbation):
    grads = gradients()
    weight = torch.zeros_like(grads[0]).requires_grad_()
    theirs = torch.optim.SGD([weight], lr=0.3, momentum=momentum)
    path = []
    for grad in grads:
        weight.grad = grad.clone()
        theirs.step()
        path.append(weight.detach().clone())
    ours = moves(SGD(0.3, momentum, "constant"), grads, perturbation).cumsum(0)
    torch.testing.assert_close(ours, torch.stack(path), rtol=0, atol=1e-14)


def test_pgd_without_momentum_is_sign_descent_on_linf():
    grads = gradients()
    found = moves(PGD(0.25, 0.0, "constant"), grads, Linf(8 / 255))
    torch.testing.assert_close(found, -0.25 * 8 / 255 * grads.sign(), rtol=1e-14, atol=0)


def test_pgd_without_momentum_is_normalised_descent_on_l2():
    grads = gradients()
    norms = torch.linalg.vector_norm(grads, dim=(2, 3, 4), keepdim=True)
    found = moves(PGD(0.25, 0.0, "constant"), grads, L2(4.0))
    torch.testing.assert_close(found, -0.25 * 4.0 * grads / norms, rtol=1e-13, atol=0)


@every_set
def test_pgds_momentum_is_mi_fgsms(perturbation):
    # Dong et al. 2018, eq. 6: g <- mu g + grad / ||grad||_1, picture by picture.
    grads = gradients() * 10.0 ** torch.arange(6, dtype=double)[:, None, None, None, None]
    velocity, wanted = torch.zeros_like(grads[0]), []
    for grad in grads:
        velocity = torch.stack([0.7 * v + g / g.abs().sum() for v, g in zip(velocity, grad, strict=True)])
        wanted.append(-0.25 * perturbation.eps * perturbation.steepest(velocity))
    found = moves(PGD(0.25, 0.7, "constant"), grads, perturbation)
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-12, atol=1e-15)


@every_set
@given(powers=st.lists(st.integers(-30, 30), min_size=3, max_size=3))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_pgd_does_not_feel_the_scale_of_a_pictures_gradient(perturbation, powers):
    # Every picture has a scale of its own, the same in all steps; powers of two scale floats exactly.
    grads = gradients()
    scaled = grads * 2.0 ** torch.tensor(powers, dtype=double)[:, None, None, None]
    assert torch.equal(moves(PGD(), scaled, perturbation), moves(PGD(), grads, perturbation))


@pytest.mark.parametrize("optimiser", [PGD(), SGD(1.0)], ids=["pgd", "sgd"])
@every_set
def test_a_picture_does_not_feel_its_neighbours(optimiser, perturbation):
    grads = gradients() * torch.tensor([100, 1, 0.01], dtype=double)[:, None, None, None]
    alone = [moves(optimiser, grads[:, [i]], perturbation) for i in range(3)]
    together = moves(optimiser, grads, perturbation)
    torch.testing.assert_close(torch.cat(alone, dim=1), together, rtol=1e-13, atol=0)


@every_set
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_pgds_steps_are_shares_of_eps(perturbation, schedule):
    sizes = perturbation.norm(moves(PGD(0.2, 0.9, schedule), gradients(100, 1), perturbation).flatten(0, 1))
    torch.testing.assert_close(sizes[0], torch.tensor(0.2 * perturbation.eps, dtype=double))
    doubled = perturbation.norm(
        moves(PGD(0.2, 0.9, schedule), gradients(100, 1), perturbation, 2 * perturbation.eps).flatten(0, 1)
    )
    torch.testing.assert_close(doubled, 2 * sizes)


@pytest.mark.parametrize("make", [PGD, SGD])
def test_cosine_decays_from_full_to_nearly_nothing(make):
    # One gradient over and over and no momentum, so that the schedule alone is left.
    grads = gradients(1, 1).expand(101, -1, -1, -1, -1)
    full = moves(make(0.1, 0.0, "constant"), grads, Linf(0.1))
    share = moves(make(0.1, 0.0, "cosine"), grads, Linf(0.1)).flatten(1).norm(dim=1) / full.flatten(1).norm(dim=1)
    wanted = (1 + torch.cos(math.pi * torch.arange(101, dtype=double) / 101)) / 2
    torch.testing.assert_close(share, wanted, rtol=0, atol=1e-12)
    assert share[0] == 1
    assert share[-1] < 1e-3
    assert (share.diff() < 0).all()


@pytest.mark.parametrize("optimiser", [PGD(), SGD(1.0)], ids=["pgd", "sgd"])
def test_a_step_leaves_the_state_alone(optimiser):
    # Pure functions: from one state, the same step twice.
    grads = gradients()
    origin, ground = torch.zeros_like(grads[0]), open_ground(SETS[0])
    _, state = optimiser.step(origin, estimate(grads[0]), optimiser.init(origin, reach=0.1, steps=9), ground)
    first, _ = optimiser.step(origin, estimate(grads[1]), state, ground)
    again, _ = optimiser.step(origin, estimate(grads[1]), state, ground)
    assert torch.equal(first, again)


@every_set
def test_pgd_survives_a_gradient_of_zeros(perturbation):
    assert moves(PGD(), torch.zeros(3, 2, 3, 5, 7), perturbation).isfinite().all()


@pytest.mark.parametrize("make", [PGD, SGD])
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((0.0, 0.9, "cosine"), "lr|rel_step_size"),
        ((-1.0, 0.9, "cosine"), "lr|rel_step_size"),
        ((math.nan, 0.9, "cosine"), "lr|rel_step_size"),
        ((math.inf, 0.9, "cosine"), "lr|rel_step_size"),
        ((0.1, -0.1, "cosine"), "momentum"),
        ((0.1, 1.0, "cosine"), "momentum"),
        ((0.1, math.nan, "cosine"), "momentum"),
        ((0.1, 0.9, "linear"), "schedule"),
    ],
)
def test_arguments_out_of_range_are_named(make, arguments, named):
    with pytest.raises(ValueError, match=f"`({named})` must"):
        make(*arguments)
