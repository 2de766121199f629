"""The attack against optima known in closed form, and its errors."""

import math
from itertools import islice

import pytest
import torch
from torch import nn

from attacks import EOT, L2, PGD, Away, Linf, attack
from tests.helpers.solving import Dot, mark_checked, small_problem
from tests.optimisers.test_gradient import OPTIMISERS
from transforms import Affine, Compose, Perspective
from transforms.compose import view
from transforms.scene import scene_of

VIEWS = Compose([Affine(degrees=30, scale=(0.7, 1.3), translate=0.1), Perspective(0.2)])
SETS = {"linf": Linf(0.1, random_start=False), "l2": L2(0.3, random_start=False)}
every_set = pytest.mark.parametrize("perturbation", SETS.values(), ids=SETS)
double = torch.float64


class Fixed:
    """The same views in every step, so that the expected loss is a known function."""

    def __call__(self, n, dims, *, seed, step=0):
        return torch.rand(n, dims, generator=torch.Generator().manual_seed(7))


class Linear(nn.Module):
    """Features linear in the picture, or bent by a tanh."""

    def __init__(self, dtype=double, bend=False):
        super().__init__()
        self.bend = bend
        self.weight = nn.Parameter(torch.randn(3 * 12 * 14, 6, dtype=dtype) / 10)
        self.eval()

    def forward(self, images):
        features = images.flatten(1) @ self.weight
        return features.tanh() if self.bend else features


def pictures(dtype=double):
    images = torch.rand(3, 3, 12, 14, dtype=dtype)
    return images, torch.randn(3, 6, dtype=dtype)


def setup(**parts):
    """The parts of an attack, with the simplest ones by default."""
    plain = {"encoder": Linear(), "objective": Dot(), "perturbation": SETS["linf"], "optimiser": PGD()}
    return plain | {"eot": EOT(), "steps": 3} | parts


PLAIN, ON_VIEWS = PGD(0.25, 0.0, "constant"), EOT(VIEWS, Fixed(), views=8, chunk=5)
CASES = [
    *((case_optimiser, EOT(views=2), 200) for case_optimiser in (*OPTIMISERS, PLAIN)),
    (PGD(), ON_VIEWS, 60),
    (PLAIN, ON_VIEWS, 60),
]


@pytest.mark.slow
@pytest.mark.parametrize("random_start", [False, True])
@pytest.mark.parametrize(("optimiser", "eot", "steps"), CASES)
@pytest.mark.parametrize("kind", [Linf, L2])
def test_finds_the_optimum_of_a_linear_loss(kind, optimiser, eot, steps, random_start):
    # mean over views of <anchor, W^T (A_u (x + d) + b_u)> is <c, d> + const: c is its gradient, wherever d is.
    encoder, (images, anchor) = Linear(), pictures()
    if kind is L2:
        images = 0.35 + 0.3 * images  # the ball of radius 0.3 then lies in the box
    u = eot.points(0, 0, images)
    leaf = images.clone().requires_grad_()
    products = encoder(view(eot.transforms, scene_of(leaf), u)) * anchor.repeat_interleave(len(u), 0)
    (c,) = torch.autograd.grad(products.sum() / len(u), leaf)
    if kind is Linf:
        best = torch.where(c > 0, (-images).clamp(min=-0.1), (1 - images).clamp(max=0.1))
    else:
        best = -0.3 * c / torch.linalg.vector_norm(c, dim=(1, 2, 3), keepdim=True)
    perturbation = kind(0.1 if kind is Linf else 0.3, random_start)
    parts = {"encoder": encoder, "perturbation": perturbation, "eot": eot, "optimiser": optimiser}
    *_, end = attack(images, anchor, **setup(steps=steps, **parts))
    ratio = (c * end.delta).sum((1, 2, 3)) / (c * best).sum((1, 2, 3))
    assert (ratio >= 0.999).all()
    assert (ratio <= 1 + 1e-9).all()


def test_estimate_is_of_the_delta_before_the_step():
    encoder, (images, anchor), eot = Linear(bend=True), pictures(), EOT(VIEWS, Fixed(), views=4)
    delta, u = torch.zeros_like(images), eot.points(0, 0, images)
    for step in attack(images, anchor, **setup(encoder=encoder, eot=eot)):
        losses = Dot()(encoder(view(VIEWS, scene_of(images + delta), u)), anchor.repeat_interleave(4, 0))
        torch.testing.assert_close(step.estimate.mean, losses.view(3, 4).mean(1), rtol=0, atol=1e-12)
        delta = step.delta


def test_each_step_has_new_views():
    batches = []

    @mark_checked
    def recorder(pixels):
        batches.append(pixels.detach())
        return pixels.flatten(1) @ torch.ones(504, 6, dtype=double)

    list(attack(*pictures(), **setup(encoder=recorder, eot=EOT(VIEWS, views=1), optimiser=PGD(1e-12), steps=4)))
    assert all((a - b).abs().max() > 0.01 for i, a in enumerate(batches) for b in batches[:i])


def test_loop_is_lazy_and_does_not_change_its_arguments():
    images, anchor = pictures()
    copies = images.clone(), anchor.clone()
    assert len(list(islice(attack(images, anchor, **setup(steps=10**9)), 2))) == 2
    assert torch.equal(images, copies[0])
    assert torch.equal(anchor, copies[1])


ERRORS = {
    "steps": ({"steps": 0}, "`steps`.*0"),
    "steps in words": ({"steps": "3"}, "`steps` must be a whole number of steps, at least 1; got '3'"),
    "half a step": ({"steps": 2.5}, "`steps` must be a whole number of steps, at least 1; got 2.5"),
    "steps of a flag": ({"steps": True}, "`steps` must be a whole number of steps, at least 1; got True"),
    "training": ({"encoder": Linear().train()}, r"training mode.*\.eval\(\)"),
    "start": ({"objective": Away()}, "`random_start` must be true"),
    "8 bits": (torch.rand(3, 3, 12, 14) * 255, "divide 8-bit values by 255"),
    "negative": (torch.rand(3, 3, 12, 14) - 0.1, r"must lie in \[0, 1\]"),
    "nan": (torch.full((3, 3, 12, 14), math.nan), "`images`"),
    "uint8": (torch.zeros(3, 3, 12, 14, dtype=torch.uint8), "floating"),
    "three axes": (torch.rand(3, 12, 14), "floating"),
    "two for three": (torch.rand(2, 3, 12, 14), "one row per image; got 3 for 2"),
}


@pytest.mark.parametrize(("arguments", "message"), ERRORS.values(), ids=ERRORS)
def test_refuses_parts_and_images_that_cannot_work(arguments, message):
    images, anchor = pictures()
    images, parts = (images, arguments) if isinstance(arguments, dict) else (arguments, {})
    with pytest.raises(ValueError, match=message):
        next(attack(images, anchor, **setup(**parts)))


HEAD = Linear()  # its weights require gradients, so the loss has a graph even if the picture is detached
DEAD = {
    "times zero": lambda pixels: HEAD(0 * pixels),
    "detach": lambda pixels: pixels.detach().flatten(1) @ HEAD.weight.detach(),
    "detach before weights": lambda pixels: HEAD(pixels.detach()),
    "no_grad": torch.no_grad()(HEAD),
    "eight bits": lambda pixels: HEAD((255 * pixels).to(torch.uint8).double()),
}


@pytest.mark.parametrize("encoder", DEAD.values(), ids=DEAD)
def test_error_names_an_encoder_that_cuts_the_graph(encoder):
    with pytest.raises(ValueError, match="cuts the graph"):
        next(attack(*pictures(), **setup(encoder=encoder)))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("number", [0, 2])
def test_error_for_non_finite_values_names_the_step_and_picture(number, bad):
    images, anchor = pictures()
    good, calls = Linear(), []

    @mark_checked
    def breaks(pixels):
        calls.append(1)
        spoil = torch.zeros(3, 1, dtype=double)
        spoil[1] = bad if len(calls) > number else 0
        return good(pixels) + spoil

    with pytest.raises(FloatingPointError, match=rf"step {number}: .*\[1\]"):
        list(attack(images, anchor, **setup(encoder=breaks, eot=EOT(views=1))))


@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=repr)
def test_steps_beyond_the_budget_do_not_move(optimiser):
    """An optimiser plans its steps; those that the budget does not allow are no part of the plan."""
    images, anchor, parts = small_problem()
    parts |= {"optimiser": optimiser, "eot": EOT(VIEWS, views=2)}
    plan_steps = list(attack(images, anchor, **parts, steps=6))
    budget_steps = list(attack(images, anchor, **parts, steps=100, budget=12))
    for step, other in zip(plan_steps, budget_steps, strict=True):
        assert torch.equal(step.delta, other.delta)
