"""The worst views: against exhaustive evaluation, optima in closed form, and the equivalent risk."""

import pytest
import torch

from attacks import EOT, Away, CVaR, Linf, Toward, bank, load_encoder
from attacks.data.gallery import tiles
from attacks.eot.problem import Problem
from attacks.eot.protocols import Objective
from attacks.objectives import Paired
from attacks.runtime.distributed import World
from attacks.solvers import worst
from attacks.solvers.worst import Adversary
from attacks.study.pipeline import preset
from tests.helpers.fellows import together
from tests.helpers.solving import VIEWS, mark_checked, small_problem, uphill, worst_views
from tests.helpers.wrong import refused
from transforms import Compose
from transforms.scene import scene_of

double = torch.float64


class Paint:
    """A picture whose channels are the coordinates themselves, so that losses are functions over the unit cube. The
    third coordinate is discrete: it counts in tenths, and passes a gradient straight through."""

    dims, names, discrete = 3, ("a", "b", "c"), (2,)

    def values(self, u):
        tenths = u[:, 2:] + ((10 * u[:, 2:]).floor() / 10 - u[:, 2:]).detach()
        return torch.cat([u[:, :2], tenths], dim=1)

    def __call__(self, images, u):
        return 0 * images + self.values(u)[:, :, None, None]


class Near(Objective):
    """Highest where the first two coordinates are the anchor's; the third lifts it."""

    def __call__(self, features, anchor):
        gap = (features[:, :2] - anchor[:, :2]).square().sum(1)
        return features[:, 2] - gap


@pytest.fixture
def setting():
    images, anchor, parts = small_problem()
    return images, anchor, {"encoder": parts["encoder"], "objective": Toward(), "transforms": VIEWS}


@pytest.mark.parametrize("keep", [1, 3, 32])
def test_unrefined_worst_views_are_those_with_the_highest_losses(setting, keep):
    images, anchor, parts = setting
    result = worst_views(images, anchor, k=32, refine_steps=0, keep=keep, seed=4, chunk=5, **parts)
    views = bank(VIEWS, 32, seed=4, purpose="worst")
    losses = views._replace(u=views.u.double()).losses(images, anchor, parts["encoder"], Toward(), 64)
    torch.testing.assert_close(result.losses, losses.sort(1, descending=True).values[:, :keep], rtol=0, atol=1e-12)
    for i in range(3):
        for u, loss in zip(result.u[i], result.losses[i], strict=True):
            row = (views.u.double() == u).all(1).nonzero().item()
            assert abs(float(losses[i, row] - loss)) < 1e-12


def test_refinement_reaches_a_maximum_known_in_closed_form():
    # One peak for each picture: inside, at an edge, and beyond a corner.
    peaks = torch.tensor([[0.3, 0.7, 0], [0.0, 0.5, 0], [1.5, -0.5, 0]], dtype=double)
    images, parts = torch.zeros(3, 3, 2, 2, dtype=double), {"objective": Near(), "transforms": Compose([Paint()])}
    parts["encoder"] = lambda pixels: pixels.mean((2, 3))
    rough = worst_views(images, peaks, k=16, refine_steps=0, keep=4, **parts)
    fine = worst_views(images, peaks, k=16, refine_steps=40, keep=4, **parts)
    for i in range(3):
        assert set(fine.u[i, :, 2].tolist()) == set(rough.u[i, :, 2].tolist())  # discrete: as drawn
    assert (fine.u >= 0).all()
    assert (fine.u < 1).all()
    torch.testing.assert_close(fine.u[:, :, :2], peaks[:, None, :2].clamp(0, 1).expand(3, 4, 2), rtol=0, atol=1e-3)
    assert (fine.losses.diff(dim=1) <= 0).all()


@pytest.mark.parametrize("chunk", [pytest.param(1, marks=pytest.mark.slow), 5, 100])
def test_losses_are_exact_and_not_below_those_of_the_random_views(setting, chunk):
    images, anchor, parts = setting
    previous = worst_views(images, anchor, k=16, refine_steps=0, keep=3, chunk=chunk, **parts).losses
    for steps in (1, 3, 8):
        result = worst_views(images, anchor, k=16, refine_steps=steps, keep=3, chunk=chunk, **parts)
        assert (result.losses >= previous).all()
        assert (result.losses[:, 0] > previous[:, 0]).any()
        pixels = VIEWS(scene_of(images), result.u.flatten(0, 1))
        true = Toward()(parts["encoder"](pixels), anchor.repeat_interleave(3, 0)).view(3, 3)
        torch.testing.assert_close(result.losses, true, rtol=0, atol=1e-12)
        previous = result.losses


def test_result_does_not_depend_on_the_other_pictures_or_the_chunk(setting):
    images, anchor, parts = setting
    batch = worst_views(images, anchor, k=16, refine_steps=4, keep=3, chunk=64, **parts)
    largest = []
    net = parts["encoder"]
    parts["encoder"] = mark_checked(lambda pixels: (largest.append(len(pixels)), net(pixels))[1])
    for i in range(3):
        single = worst_views(images[[i]], anchor[[i]], k=16, refine_steps=4, keep=3, chunk=2, **parts)
        torch.testing.assert_close(single.u, batch.u[[i]], rtol=0, atol=1e-12)
        torch.testing.assert_close(single.losses, batch.losses[[i]], rtol=0, atol=1e-12)
    assert max(largest) == 2


@pytest.mark.parametrize("size", [2, 7])
def test_processes_share_the_work_and_give_the_same_result(setting, size):
    # Seven processes are more than the views to refine, and than the views of the adversary.
    images, anchor, parts = setting

    def sides_of(world):
        problem = Problem(images, anchor, parts["encoder"], Toward(), Linf(0.1))
        eot, delta = EOT(VIEWS, views=1, chunk=4, world=world), torch.zeros_like(images)
        u = Adversary(5, 2).views(problem, delta, eot, 1, seed=1, step=2)
        return *worst_views(images, anchor, k=8, refine_steps=3, keep=2, world=world, **parts), u

    expected = sides_of(World())
    for result in together(size, sides_of):
        for a, b in zip(result, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_paired_objective_compares_the_same_views(setting):
    images, anchor, parts = setting

    parts["objective"] = Paired(Away())
    twins = worst_views(images, anchor, k=8, refine_steps=2, keep=2, untouched=images, **parts)
    torch.testing.assert_close(twins.losses, torch.ones_like(twins.losses), rtol=0, atol=1e-12)
    other = worst_views(images, anchor, k=8, refine_steps=2, keep=2, untouched=1 - images, **parts)
    assert (other.losses < 0.999).all()


def test_slope_of_a_paired_objective_equals_finite_differences(setting, monkeypatch):
    # The coordinates move both views of a pair.
    images, anchor, parts = setting
    slope, looks = worst._slope, []

    def compare_slopes(look, numbers, u):
        result = slope(look, numbers, u)
        with torch.no_grad():
            h = 1e-6 * torch.eye(u.shape[1], dtype=double)
            sides = [torch.stack([look(numbers, u + sign * row) for row in h], dim=1) for sign in (1, -1)]
        torch.testing.assert_close(result[1], (sides[0] - sides[1]) / 2e-6, rtol=1e-3, atol=1e-6)
        looks.append(result[1].abs().amax())
        return result

    monkeypatch.setattr(worst, "_slope", compare_slopes)
    parts["objective"] = Paired(Away())
    worst_views(images, anchor, k=8, refine_steps=2, keep=2, untouched=1 - images, **parts)
    assert len(looks) == 3 and min(looks) > 1e-3


def test_paired_objective_without_the_untouched_picture_is_refused(setting):
    images, anchor, parts = setting
    parts["objective"] = Paired(Away())
    with pytest.raises(ValueError, match="compares each view with that of the picture before the attack"):
        worst_views(images, anchor, k=2, **parts)


@pytest.mark.parametrize("refine_steps", [0, 3])
def test_a_pipeline_without_coordinates_has_one_view(setting, refine_steps):
    images, anchor, parts = setting
    parts["transforms"] = Compose()
    result = worst_views(images, anchor, k=4, refine_steps=refine_steps, keep=2, **parts)
    plain = Toward()(parts["encoder"](images), anchor)
    torch.testing.assert_close(result.losses, plain[:, None].expand(3, 2), rtol=0, atol=1e-12)
    assert result.u.shape == (3, 2, 0)

    problem, delta = Problem(images, anchor, parts["encoder"], Toward(), Linf(0.1)), torch.zeros_like(images)
    u = Adversary(4, refine_steps).views(problem, delta, EOT(Compose(), views=2), 2, seed=1, step=2)
    assert u.shape == (3, 2, 0)


def test_random_views_stay_if_no_gradient_reaches_the_coordinates(setting):
    images, anchor, parts = setting
    net = parts["encoder"]
    parts["encoder"] = lambda pixels: net(pixels.detach())
    rough = worst_views(images, anchor, k=8, refine_steps=0, keep=2, **parts)
    result = worst_views(images, anchor, k=8, refine_steps=5, keep=2, **parts)
    assert torch.equal(result.u, rough.u)


@pytest.mark.parametrize(("keep", "k"), [(0, 4), (5, 4), (1, 0)])
def test_keep_must_not_exceed_the_views(setting, keep, k):
    images, anchor, parts = setting
    refused("`keep` must lie in", worst_views, images, anchor, k=k, keep=keep, **parts)


@pytest.mark.parametrize("refine_steps", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 4])
def test_passes_of_the_adversary_equal_its_cost(setting, refine_steps, n):
    images, anchor, parts = setting
    passes, net = [], parts["encoder"]
    encoder = lambda pixels: (passes.append(len(pixels)), net(pixels))[1]  # noqa: E731
    problem, delta = Problem(images, anchor, encoder, Away(), Linf(1.0)), 0.1 * torch.randn_like(images)
    adversary, eot = Adversary(8, refine_steps), EOT(VIEWS, views=n)
    u = adversary.views(problem, delta, eot, n, seed=1, step=2)
    assert sum(passes) == 3 * adversary.cost(n)
    random = Adversary(8).views(problem, delta, eot, n, seed=1, step=2)
    losses, rough = (problem.losses(VIEWS, delta, torch.arange(3), v.flatten(0, 1)).view(3, n) for v in (u, random))
    assert (losses.sort(1).values >= rough.sort(1).values - 1e-12).all()
    assert refine_steps == 0 or (losses > rough).any()


@pytest.mark.parametrize(
    ("arguments", "message"), [((0,), "`adversary`"), ((2.0,), "`adversary`"), ((4, -1), "`refine`")]
)
def test_counts_of_the_adversary_must_be_integers(arguments, message):
    refused(f"{message} must be a whole number", Adversary, *arguments)
    refused("`adversary` must be at least the number of views of a step, 8; got 4", Adversary(4).cost, 8)
    assert Adversary(16).risk(4) == CVaR(1 / 4)


@pytest.mark.slow
def test_the_worst_views_of_photographs_match_their_losses():
    images, encoder, camera = tiles(96).images[[0, 40]], load_encoder(), preset("camera")
    with torch.no_grad():
        clean = encoder(images)
    noisy = (images + 0.3 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    views = bank(camera, 32, seed=0, purpose="held-out")
    parts = {"encoder": encoder, "objective": Away()}
    losses = views.losses(noisy, clean, encoder, Away(), 64)
    worst = uphill(noisy, clean, views=views, losses=losses, refine_steps=5, keep=2, **parts)
    assert (worst.losses[:, 0] > losses.amax(1) + 0.01).all()  # the gradient finds what 32 random views do not
    losses = views._replace(u=worst.u[:, 0]).losses(noisy, clean, encoder, Away(), 64).diagonal()
    torch.testing.assert_close(worst.losses[:, 0], losses, rtol=0, atol=1e-4)
    assert worst.u.shape == (2, 2, camera.dims)
