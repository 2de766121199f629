"""The laws of one loop, for every kind of attack that it drives."""

import itertools

import pytest
import torch

from attacks import EOT, L2, NES, PGD, SGD, Linf, Universal, attack
from attacks.optimisers import LabelOnly, NESSquare
from attacks.optimisers.square import Square
from tests.helpers.solving import VIEWS, mark_checked, small_problem

BALLS = {"linf": Linf(0.1, random_start=False), "l2": L2(1.0, random_start=False)}
KINDS = {
    f"{type(optimiser).__name__} {name}": (optimiser, ball)
    for optimiser in (PGD(), SGD(1.0), Square(), NES(), NESSquare(), LabelOnly())
    for name, ball in BALLS.items()
}
KINDS |= {f"{type(o).__name__} shared": (o, Universal(BALLS["linf"])) for o in (PGD(), Square(), NES(), NESSquare())}
STEPS, COST = 6, 4
every_kind = pytest.mark.parametrize(("optimiser", "perturbation"), KINDS.values(), ids=KINDS)


def problem(optimiser, perturbation, **changes):
    images, anchor, parts = small_problem()
    images = (images * 1.4 - 0.2).clamp(0, 1)  # some values at the walls of the box
    eot = EOT(VIEWS, views=COST, chunk=3)
    parts |= {"optimiser": optimiser, "perturbation": perturbation, "eot": eot, "steps": STEPS}
    return images, anchor, parts | changes


def run(images, anchor, parts):
    return list(attack(images, anchor, **parts))


def bits(step):
    values = [step.delta, step.active, step.done, *step.estimate]
    return [step.index, step.evals, step.last], [
        value.numpy().tobytes() if isinstance(value, torch.Tensor) else value for value in values
    ]


@every_kind
def test_the_seed_fixes_every_bit_and_a_run_resumes_after_any_step(optimiser, perturbation):
    images, anchor, parts = problem(optimiser, perturbation, steps=4)
    steps = run(images, anchor, parts)
    assert [bits(step) for step in run(images, anchor, parts)] == [bits(step) for step in steps]
    for number, step in enumerate(steps):
        rest = run(images, anchor, parts | {"state": step.state})
        assert [bits(step) for step in rest] == [bits(step) for step in steps[number + 1 :]]
    assert not torch.equal(run(images, anchor, parts | {"seed": 6})[-1].delta, steps[-1].delta)


@every_kind
def test_passes_are_counted_within_the_chunk_and_every_delta_lies_in_the_set(optimiser, perturbation):
    images, anchor, parts = problem(optimiser, perturbation)
    rows, net = [], parts["encoder"]

    @mark_checked
    def encoder(pixels):
        assert pixels.requires_grad != optimiser.gradient_free
        rows.append(len(pixels))
        return net(pixels)

    for step in attack(images, anchor, **parts | {"encoder": encoder}):
        assert sum(rows) == step.evals == len(images) * COST * (step.index + 1) and max(rows) <= 3
        assert (perturbation.norm(step.delta) <= perturbation.eps * (1 + 1e-6)).all()
        pixels = perturbation.scene(images, step.delta).layers[0].pixels
        assert 0 <= pixels.min() <= pixels.max() <= 1
        assert step.last == (step.index == STEPS - 1) and step.done.tolist() == pytest.approx(
            [(step.index + 1) / STEPS] * 3
        )


@pytest.mark.parametrize("name", [name for name in KINDS if "shared" not in name])
def test_an_image_that_leaves_stays_as_it_is_and_changes_no_other_image(name):
    optimiser, perturbation = KINDS[name]
    images, anchor, parts = problem(optimiser, perturbation, budget=torch.tensor([COST * STEPS, COST * STEPS, 10]))
    net, rows = parts["encoder"], []
    counter = mark_checked(lambda pixels: (rows.append(len(pixels)), net(pixels))[1])
    running, steps = attack(images, anchor, **parts | {"encoder": counter}), []
    stops = None
    for number in range(STEPS):
        steps.append(running.send(stops))
        stops = torch.tensor([number >= 2, False, False])
    active = [step.active.tolist() for step in steps]
    assert active == [[1, 1, 1]] * 2 + [[1, 1, 0]] + [[0, 1, 0]] * 3
    assert [step.evals for step in steps] == [COST * sum(map(sum, active[: i + 1])) for i in range(STEPS)]
    for previous, step in itertools.pairwise(steps):
        left = ~step.active
        assert torch.equal(step.delta[left], previous.delta[left])
        losses = [result.estimate.mean[left] for result in (previous, step)]
        assert optimiser.gradient_free or torch.equal(*losses)  # a search reports its proposal
    assert sum(rows) == steps[-1].evals
    assert steps[-1].last and next(running, None) is None
    *_, single = attack(images[[1]], anchor[[1]], **parts | {"budget": None})
    torch.testing.assert_close(single.delta, steps[-1].delta[[1]], rtol=0, atol=1e-9)
