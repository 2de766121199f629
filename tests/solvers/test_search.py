"""The search without gradients: its proposals, its acceptance, and the pictures it skips."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, L2, PGD, Linf, Universal, attack
from attacks.data.gallery import tiles
from attacks.eot import Adaptive
from attacks.eot.protocols import Objective
from attacks.optimisers.nes import NES, LabelOnly
from attacks.optimisers.square import HALVINGS, Square
from attacks.solvers import Adversary
from tests.helpers.sampling import mostly_slow
from tests.helpers.solving import VIEWS, Dot, Untargeted, small_problem, split, watch
from tests.helpers.wrong import refused
from transforms.draws import stream

SETS = {"linf": Linf(0.1, False), "l2": L2(1.0, False), "universal": Universal(Linf(0.1, False))}
every_set = pytest.mark.parametrize("perturbation", mostly_slow(SETS.values(), 2), ids=SETS)
double = torch.float64


@pytest.fixture
def problem():
    images, anchor, parts = small_problem()
    return images, anchor, parts | {"optimiser": Square(), "eot": EOT(VIEWS, views=4, chunk=3), "steps": 30}


def on_its_views(images, anchor, parts, delta):
    """The mean loss (N,) on the views that the search decides on: those of the first step of an attack."""
    u = parts["eot"].points(stream(parts["seed"], "attack"), 0, images)
    return parts["eot"].estimate(split(images, anchor, **parts)[0], delta, u).mean


@pytest.mark.slow
@every_set
def test_loss_never_rises_on_the_views_of_the_search(problem, perturbation):
    images, anchor, parts = problem
    parts |= {"perturbation": perturbation}
    steps = list(attack(images, anchor, **parts))
    losses = torch.stack([on_its_views(images, anchor, parts, step.delta) for step in steps])
    falls = losses.mean(1) if perturbation.shared else losses
    assert (falls.diff(dim=0) <= 1e-12).all()
    assert (falls[-1] < falls[0] - 1e-3).all()
    # An estimate belongs to the delta before its step; in the first step to the one after it.
    kept_values = torch.stack([step.estimate.value for step in steps])
    torch.testing.assert_close(kept_values, torch.cat([losses[:1], losses[:-1]]), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "share"), [(Linf, 0.75), (L2, 0.55)])
def test_comes_near_the_optimum_of_a_linear_loss(kind, share):
    # The gradient has blocks of 4x4 pixels, so that windows can fit it. The box does not bind.
    blocks = torch.randn(1, 3, 4, 4, dtype=double, generator=torch.Generator().manual_seed(1))
    anchor, images = F.interpolate(blocks, scale_factor=4), torch.full((1, 3, 16, 16), 0.5, dtype=double)
    perturbation = kind(0.1, False)
    norm = anchor.abs().sum() if kind is Linf else anchor.norm()
    ratios = []
    for seed in range(2):
        parts = {
            "encoder": lambda pixels: pixels.flatten(1),
            "objective": Dot(),
            "optimiser": Square(),
            "eot": EOT(views=1),
        }
        *_, end = attack(images, anchor.flatten(1), perturbation=perturbation, steps=600, seed=seed, **parts)
        ratios.append(-float((anchor * end.delta).sum() / (0.1 * norm)))
    assert share <= min(ratios) <= max(ratios) <= 1 + 1e-9


@pytest.mark.slow
def test_penalty_is_part_of_the_objective(problem):
    images, anchor, parts = problem

    def roughness(delta, pictures, originals):
        assert torch.equal(pictures, originals + delta)
        return 100 * delta.diff(dim=3).abs().mean((1, 2, 3))

    *_, plain = attack(images, anchor, **parts)
    *_, previous, cheap = attack(images, anchor, **parts | {"penalty": roughness})
    prices = [roughness(step.delta, images + step.delta, images) for step in (cheap, plain, previous)]
    assert (prices[0] < 0.9 * prices[1]).all()
    torch.testing.assert_close(cheap.estimate.value, cheap.estimate.mean + prices[2], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("height", "width", "p_init"), [(16, 16, 0.8), (9, 30, 1.0), (30, 9, 0.3)])
def test_windows_are_squares_that_shrink_and_reach_every_pixel(height, width, p_init):
    square, generator = Square(p_init), torch.Generator().manual_seed(0)
    like, steps, hit = torch.zeros(1, 3, height, width), 400, torch.zeros(height, width)
    sides = []
    for step in range(1, steps):
        result = square.direction(like, step=step, steps=steps, generator=generator)
        inside = result[0].abs().amin(0) > 0
        assert (result.abs().amax(1)[0] > 0).equal(inside)  # all channels alike
        rows, columns = inside.any(1).nonzero()[:, 0], inside.any(0).nonzero()[:, 0]
        assert inside.sum() == len(rows) * len(columns) == len(rows) ** 2
        assert rows[-1] - rows[0] + 1 == len(rows)
        assert columns[-1] - columns[0] + 1 == len(columns)
        signs = result[0].sign()[:, inside]
        assert (signs == signs[:, :1]).all()
        hit += inside
        sides.append(len(rows))
    assert (torch.tensor(sides).diff() <= 0).all()
    assert hit.any(1).all()
    assert hit.any(0).all()
    shares = [p_init / 2 ** sum(step / steps > edge for edge in HALVINGS) for step in range(1, steps)]
    expected = [min(height, width, max(1, round(math.sqrt(p * height * width)))) for p in shares]
    assert sides == expected


def test_linf_proposals_follow_the_paper():
    # Andriushchenko et al. 2020, algorithm 2: +-eps per channel in the window, the old delta elsewhere. Every
    # proposal is taken here, because each loss is lower than the last.
    images, falling = 0.3 + 0.4 * torch.rand(2, 3, 12, 14, dtype=double), itertools.count()

    class Falling(Objective):
        def __call__(self, features, anchor):
            return torch.full((len(features),), -float(next(falling)), dtype=double)

    parts = {"encoder": lambda x: x.flatten(1), "objective": Falling(), "perturbation": Linf(0.1)}
    steps = list(attack(images, torch.zeros(2, 1), optimiser=Square(), eot=EOT(views=1), steps=60, **parts))
    first, changes = steps[0].delta, 0
    torch.testing.assert_close(first, first[:, :, :1].expand_as(first), rtol=0, atol=1e-12)  # stripes
    for last_step, next_step in itertools.pairwise(steps):
        torch.testing.assert_close(next_step.delta.abs(), torch.full_like(first, 0.1), rtol=0, atol=1e-12)
        side = Square().side(12, 14, next_step.index / 60)
        for rows in ((next_step.delta - last_step.delta).abs() > 1e-9).any(1):
            if rows.any():
                down, right = rows.any(1).nonzero()[:, 0], rows.any(0).nonzero()[:, 0]
                assert max(down[-1] - down[0], right[-1] - right[0]) < side
                changes += 1
    assert changes > 60


def test_moves_that_leave_the_loss_equal_are_accepted():
    class Flat(Objective):
        def __call__(self, features, anchor):
            return torch.zeros(len(features), dtype=double)

    parts = {"encoder": lambda x: x.flatten(1), "objective": Flat(), "perturbation": Linf(0.1)}
    images = torch.full((2, 3, 8, 8), 0.5, dtype=double)
    steps = list(attack(images, torch.zeros(2, 1), optimiser=Square(), eot=EOT(views=1), steps=20, **parts))
    assert sum(not torch.equal(a.delta, b.delta) for a, b in itertools.pairwise(steps)) > 10


def test_universal_delta_is_accepted_by_the_mean_loss():
    # The second picture's loss only rises; the first one's falls by more.
    images = torch.full((2, 3, 8, 8), 0.5, dtype=double)
    anchor = torch.ones(2, 192, dtype=double) * torch.tensor([[3.0], [-1.0]])
    parts = {"encoder": lambda x: x.flatten(1), "objective": Dot(), "perturbation": SETS["universal"]}
    steps = list(attack(images, anchor, optimiser=Square(), eot=EOT(views=1), steps=200, **parts))
    values = torch.stack([step.estimate.value for step in steps])
    assert (values.mean(1).diff() <= 1e-12).all()
    assert values[-1, 1] > values[0, 1]
    assert values[-1, 0] < values[0, 0]
    assert (steps[-1].delta < -0.0999).double().mean() > 0.8


def test_unsupported_arguments_are_refused(problem):
    images, anchor, parts = problem
    with pytest.raises(ValueError, match="`adaptive` follows the noise of a gradient"):
        next(attack(images, anchor, **parts | {"adaptive": Adaptive(), "budget": 100}))
    refused("`adversary` chooses new views", next, attack(images, anchor, **parts | {"adversary": Adversary(8)}))
    refused(r"`budget`.*at least 4", next, attack(images, anchor, **parts | {"budget": 3}))
    refused(r"`p_init` must lie in \(0, 1\]", Square, 8)

    def faulty(pixels):
        return parts["encoder"](pixels) * torch.where(pixels.mean() > images[1].mean() - 9, math.nan, 1.0)

    with pytest.raises(FloatingPointError, match=r"step 0: .*\[0, 1, 2\]"):
        next(attack(images, anchor, **parts | {"encoder": faulty}))


@pytest.mark.peers
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name", "eps"), [(Linf, "Linf", 8 / 255), (L2, "L2", 1.0)], ids=["linf", "l2"])
def test_no_weaker_than_torchattacks_at_equal_queries(kind, name, eps):
    torchattacks = pytest.importorskip("torchattacks", exc_type=ImportError)
    head = [nn.Conv2d(3, 8, 3, 2), nn.Tanh(), nn.Conv2d(8, 8, 3, 2), nn.Tanh(), nn.Flatten(), nn.Linear(392, 10)]
    net, images, queries = nn.Sequential(*head).eval(), tiles(32).images[::40][:16], 150
    labels, counts = net(images).argmax(1), []

    def entropy(pictures):
        return F.cross_entropy(net(pictures), labels, reduction="none").detach()

    class CountingObjective(Untargeted):
        def __call__(self, features, anchor):
            counts.append(len(features))
            return super().__call__(features, anchor)

    ours, theirs, passes = [], [], []
    net.register_forward_hook(lambda _, inputs, __: passes.append(len(inputs[0])))
    for seed in range(3):
        parts = {"encoder": net, "objective": CountingObjective(), "optimiser": Square(), "eot": EOT(views=1)}
        *_, end = attack(images, labels, perturbation=kind(eps), steps=queries, seed=seed, **parts)
        ours.append(entropy(images + end.delta))
        torch.manual_seed(seed)
        peer = torchattacks.Square(net, norm=name, eps=eps, n_queries=queries - 1, loss="ce", seed=seed)
        margin = peer.margin_and_loss  # it stops at the first wrong label; both are to spend all queries
        peer.margin_and_loss = lambda x, y, margin=margin: (torch.ones(len(x)), margin(x, y)[1])
        passes.clear()
        result = peer(images, labels)
        assert sum(passes) >= queries * len(images)  # torchattacks also evaluates the clean pictures
        theirs.append(entropy(result))
    assert sum(counts) == 3 * queries * len(images)
    assert torch.stack(ours).mean() >= torch.stack(theirs).mean()


@pytest.mark.parametrize("optimiser", [PGD(), Square(), NES(), LabelOnly()])
def test_choosing_the_iterate_does_not_change_the_steps(optimiser):
    images, anchor, parts = small_problem(dtype=torch.float32)
    parts |= {"optimiser": optimiser, "eot": EOT(VIEWS, views=4), "steps": 3}
    for ours, (theirs, _) in zip(attack(images, anchor, **parts), watch(images, anchor, **parts), strict=True):
        assert torch.equal(ours.delta, theirs.delta)
