"""The attack on answers that only say same or not: a known optimum, its set, its queries, its states."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from attacks import EOT, NES, Away, Linf, Patch
from attacks.encoders.black_box.asked import BlackBox
from attacks.eot.problem import Options, Problem
from attacks.optimisers import LabelOnly
from attacks.optimisers.nes import dct_rows
from attacks.solvers.checks import Silent
from attacks.solvers.label_only import label_walk
from attacks.solvers.loops import loop_of
from attacks.solvers.solver import run_steps
from transforms import Brightness, Compose

IMAGES = 0.4 + 0.2 * torch.rand(3, 3, 24, 24, generator=torch.Generator().manual_seed(1))
#: A smooth pattern, and its largest product with a change of no value by more than 1.
ROWS = dct_rows(4, 24)
SMOOTH = (ROWS.mT @ torch.randn(4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64) @ ROWS).float()
EPS, WIDEST = 0.05, float(3 * SMOOTH.abs().sum())


def service(share, images=IMAGES):
    """Not the same where the smooth pattern of a picture is as far from that of the closest of `images` as a
    perturbation of `share` * EPS can make it."""
    value = (images * SMOOTH).sum((1, 2, 3))

    def answer(pixels):
        pattern = (torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255 * SMOOTH).sum((1, 2, 3))
        return ((pattern[:, None] - value).abs().amin(1) < share * EPS * WIDEST).numpy().astype(float)

    return BlackBox(answer, answer="same")


def problem(share=0.8, count=1, perturbation=None):
    images = IMAGES[:count]
    encoder = service(share, images)
    return Problem(images, encoder(images), encoder, Away(), perturbation or Linf(EPS))


def options(**changes):
    arguments = {"optimiser": LabelOnly(keep=4), "eot": EOT(Compose(), views=20), "steps": 30, "seed": 3} | changes
    return Options(**arguments)


def answers_change(case, delta):
    return case.encoder(case.images + delta)[:, 0] == 0


@pytest.mark.slow
def test_it_comes_close_to_the_smallest_change_of_an_answer_where_nes_has_no_gradient():
    ratios = {}
    for optimiser in (LabelOnly(keep=4), NES(keep=4)):
        case, choices = problem(), options(optimiser=optimiser)
        blind = pytest.warns(Silent, match="label_only") if type(optimiser) is NES else nullcontext()
        with blind:
            *_, end = loop_of(optimiser)(case, choices, None)
        assert end.last and end.evals == 600 >= len(case.encoder.ledger) - 1
        assert float(end.delta.abs().max()) <= EPS + 1e-6
        ratios[type(optimiser)] = bool(answers_change(case, end.delta))
    assert ratios == {LabelOnly: True, NES: False}


@pytest.mark.slow
def test_an_answer_beyond_the_budget_stays_and_the_walk_finds_where_it_changes():
    case = problem(2.0)
    *_, end = label_walk(case, options())
    memory = end.state.optimiser
    assert not bool(answers_change(case, end.delta)) and 2.0 <= float(memory.radii[0]) / EPS < 3.0
    assert memory.high.tolist() == [1.0] and memory.low.tolist() == [0.0]


def test_a_picture_whose_answer_has_not_changed_yet_does_not_leave():
    case = problem(2.0)
    assert [step.index for step, _ in run_steps(case, options(steps=12))] == [*range(12)]
    nes = options(optimiser=NES(keep=4), steps=12)
    with pytest.warns(Silent):
        assert len([*run_steps(problem(2.0), nes)]) < 12


def test_a_surrogate_makes_the_start_and_views_may_differ():
    def surrogate(images):
        smooth = (images * SMOOTH).sum((1, 2, 3))
        return torch.stack([smooth, torch.ones_like(smooth)], 1)

    case = problem(0.9)
    choices = options(
        optimiser=LabelOnly(keep=4, surrogate=surrogate), eot=EOT(Compose([Brightness(0.01)]), views=8), steps=3
    )
    *_, end = label_walk(case, choices)
    assert bool(answers_change(case, end.delta))
    *_, end = label_walk(
        replace(case, encoder=service(0.9, IMAGES[:1])), replace(choices, optimiser=LabelOnly(keep=4))
    )
    assert not bool(answers_change(case, end.delta))


@pytest.mark.parametrize(
    ("case", "views", "message"),
    [(problem(perturbation=Patch((8, 8))), 20, "LabelOnly needs a ball round each image"), (problem(), 3, "even")],
)
def test_what_it_cannot_do_is_refused_before_anything_is_asked(case, views, message):
    queries = len(case.encoder.ledger)
    with pytest.raises(ValueError, match=message):
        next(label_walk(case, options(eot=EOT(Compose(), views=views))))
    assert len(case.encoder.ledger) == queries
