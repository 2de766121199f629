"""How often the host waits for the device in a step of an attack, for the choice of its iterate and for judging: on a
device that is simulated, and on CUDA."""

import warnings
from dataclasses import replace

import pytest
import torch

from attacks import APGD, EOT, L2, PGD, Away, Ensemble, Linf, Patch, Wiener, attack, bank, load_encoder
from attacks.data.gallery import tiles
from attacks.eot.problem import Options, Problem
from attacks.evaluation.scores import Right, evaluate
from attacks.objectives import Members
from attacks.objectives.penalties import TotalVariation
from attacks.perturbations import Masked
from attacks.perturbations.patch.placement import UNIT, Placements
from attacks.solvers.selection import LOOKS, LookPlan, selection
from attacks.solvers.solver import run_steps
from attacks.study.pipeline import preset
from tests.helpers.fake_device import Pretended, Waits, on_device

STEPS = 2
PATCH = Patch((24, 24), ((0.25, 0.25), (0.75, 0.25), (0.75, 0.75), (0.25, 0.75)))
#: In each of two pictures at a place of its own.
SCENES = Patch((24, 24), Placements(torch.stack([0.4 * UNIT, 0.5 + 0.4 * UNIT])[:, None]))
#: Sets, optimisers, and the waits of a pass: a patch counts the pixels of its edge, and those without a colour of it.
ATTACKS = {
    "linf": (Linf(8 / 255), Wiener(), 0),
    "l2": (L2(2.0), PGD(), 0),
    "patch": (PATCH, PGD(), 2),
    "scenes": (SCENES, PGD(), 2),
}
PASSES = 2
SLOW = pytest.mark.slow
#: Stages of codecs are Pillow's, which work on the host; the others never wait.
FREE = [
    "eot2d",
    pytest.param("eot3d", marks=SLOW),
    pytest.param("camera", marks=SLOW),
    pytest.param("di", marks=SLOW),
    pytest.param("tsea", marks=SLOW),
]


def pictures(count=2):
    """Pictures, and their embeddings."""
    images = tiles(64).images[:count].clone()
    with torch.no_grad():
        return images, load_encoder()(images).clone()


def run(images, anchor, encoder, ball, optimiser, name):
    eot = EOT(preset(name), views=4, chunk=4)
    options = {"objective": Away(), "perturbation": ball, "optimiser": optimiser, "eot": eot}
    return attack(images, anchor, encoder=encoder, steps=20, **options)


@pytest.mark.parametrize("name", FREE)
@pytest.mark.parametrize(
    "kind", ["linf", pytest.param("l2", marks=SLOW), "patch", pytest.param("scenes", marks=SLOW)]
)
def test_a_step_waits_once_and_its_passes_never_but_for_the_edges_of_a_patch(name, kind):
    *parts, arguments = ATTACKS[kind]
    images, anchor = pictures()
    steps = run(images, anchor, load_encoder(), *parts, name)
    expected = [next(steps).delta for _ in range(1 + STEPS)][-1]
    with Waits() as mode:
        steps = run(Pretended(images), Pretended(anchor), on_device(load_encoder()), *parts, name)
        next(steps)  # it checks the problem, too
        mode.counts.clear()
        delta = [next(steps).delta for _ in range(STEPS)][-1]
    assert mode.counts.total() == STEPS * (1 + PASSES * arguments), mode.counts
    # On a device the projection on a sphere makes a fixed number of Newton's steps.
    torch.testing.assert_close(delta.inner, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_mask_of_each_picture_on_the_device_is_not_waited_for():
    images, mask = tiles(64).images[:2].clone(), (torch.rand(2, 1, 64, 64) < 0.5).float()
    with torch.no_grad():
        anchor = load_encoder()(images).clone()
    with Waits() as mode:
        ball = Masked(Linf(8 / 255), Pretended(mask))
        steps = run(Pretended(images), Pretended(anchor), on_device(load_encoder()), ball, Wiener(), "eot2d")
        next(steps)
        mode.counts.clear()
        for _ in range(STEPS):
            next(steps)
    assert mode.counts.total() == STEPS, mode.counts


@pytest.mark.slow
@pytest.mark.parametrize("penalty", [TotalVariation(0.1), pytest.param(None, marks=SLOW)], ids=["penalty", "none"])
@pytest.mark.parametrize("count", [pytest.param(1, marks=SLOW), 2])
def test_members_with_separate_gradients_and_a_penalty_wait_once_in_all(count, penalty):
    def members(images, anchor, encoder):
        options = {"perturbation": Linf(8 / 255), "optimiser": APGD(), "steps": 20, "penalty": penalty}
        options |= {"eot": EOT(preset("eot2d"), views=4, chunk=4), "objective": Members(Away(), combine="gradients")}
        return attack(images, anchor, encoder=encoder, **options)

    def ensemble():
        return Ensemble([load_encoder() for _ in range(count)])

    images = tiles(64).images[:2].clone()
    with torch.no_grad():
        anchor = tuple(rows.clone() for rows in ensemble()(images))
    steps = members(images, anchor, ensemble())
    expected = [next(steps).delta for _ in range(1 + STEPS)][-1]
    with Waits() as mode:
        steps = members(Pretended(images), tuple(map(Pretended, anchor)), on_device(ensemble()))
        next(steps)
        mode.counts.clear()
        delta = [next(steps).delta for _ in range(STEPS)][-1]
    assert mode.counts.total() == STEPS, mode.counts
    torch.testing.assert_close(delta.inner, expected, rtol=0, atol=1e-5)


def watch_waits(images, anchor, encoder, is_early, stop):
    """A run of eight steps with five looks, whose finalists are compared on twice as many views."""
    problem = Problem(images, anchor, encoder, Away(), Linf(16 / 255))
    options = Options(Wiener(0.3), EOT(preset("eot2d"), views=4, chunk=8), 8, seed=1)
    select = replace(selection(problem, options), plan=LookPlan(LOOKS, 4, 8), early=is_early)
    return run_steps(problem, options, stop=stop, select=select)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_early", "stop", "arguments"),
    [pytest.param(False, None, 0, marks=SLOW), pytest.param(True, None, 0, marks=SLOW), (False, -1.0, 5)],
)
def test_choosing_the_iterate_waits_once_a_look_twice_for_who_leaves_and_three_times_for_finalists(
    is_early, stop, arguments
):
    """A look waits for whether its losses are finite, and from half of the run on for who leaves, except after the
    last step. At the end: for which pictures have two finalists, and for both their losses. Each look waits for who
    has reached a `stop`."""
    images, anchor = pictures()
    *_, (_, expected) = watch_waits(images, anchor, load_encoder(), is_early, stop)
    with Waits() as mode:
        steps = watch_waits(Pretended(images), Pretended(anchor), on_device(load_encoder()), is_early, stop)
        *_, (_, best) = steps
    files = ("attacks/solvers/selection.py", "attacks/solvers/solver.py", "attacks/eot/bank.py")
    waits = {place: count for place, count in mode.counts.items() if place[-1].startswith(files)}
    assert sum(waits.values()) == 5 + 2 + 3 + arguments, mode.counts
    assert best.step.inner.tolist() == expected.step.tolist()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), [("eot2d", 0), pytest.param("web", 1, marks=SLOW)])
def test_judging_waits_once_a_chunk_and_once_for_its_files_and_three_times_for_its_ranks(name, arguments):
    """For nearer rows of a block of the gallery, for whether they are finite, and for the check of all scores; at the
    door for the values of pictures and of embeddings. A codec works on the host."""
    (images, anchor), right = pictures(4), Right(torch.arange(4), torch.tensor([1, 0, 3, 2]), torch.arange(4), 2)
    views, chunks = bank(preset(name), 8, seed=0, purpose="evaluate"), 2
    expected = evaluate(images, anchor, anchor, encoder=load_encoder(), bank=views, chunk=16, right=right)
    with Waits() as mode:
        encoder, device_anchor = on_device(load_encoder()), Pretended(anchor)
        mode.counts.clear()
        scores = evaluate(
            Pretended(images), device_anchor, device_anchor, encoder=encoder, bank=views, chunk=16, right=right
        )
    assert mode.counts.total() == 5 + chunks * (1 + arguments), mode.counts
    for score, value in zip(scores, expected, strict=True):
        if value is not None:
            torch.testing.assert_close(score.inner, value, rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["eot2d", "eot3d", "camera"])
def test_a_step_on_cuda_waits_once_and_repeats_its_bits(name):
    images, encoder = tiles(64).images[:2].cuda(), load_encoder().cuda()
    with torch.no_grad():
        anchor = encoder(images)
    steps, repeat = (run(images, anchor, encoder, Linf(8 / 255), Wiener(), name) for _ in range(2))
    for _ in range(2):  # the first steps fill caches
        assert torch.equal(next(steps).delta, next(repeat).delta)
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            next(steps)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert sum("called a synchronizing" in str(warning.message) for warning in caught_warnings) == 1
