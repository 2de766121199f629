"""The loop that estimates gradients from losses: its estimate, its count of passes, its states."""

from dataclasses import replace

import pytest
import scipy.fft
import torch
import torch.nn.functional as F

from attacks import EOT, L0, L2, NES, PGD, Away, CVaR, Linf, Patch, Universal
from attacks.encoders.black_box.asked import BlackBox
from attacks.eot.problem import Options, Problem
from attacks.perturbations import L1, Grey, LowFrequency, Masked, Smoothed
from attacks.perturbations.radii import Radii
from attacks.solvers.checks import Silent
from attacks.solvers.sampled import nes_estimate, probe_deltas, sampled_descent
from tests.helpers.solving import mark_checked
from transforms import Brightness, Compose

IMAGES = F.interpolate(torch.rand(3, 3, 5, 5, generator=torch.Generator().manual_seed(1)), (32, 32), mode="bicubic")
IMAGES = IMAGES.clamp(0.1, 0.9)
WEIGHTS = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(2))


class Linear:
    """The loss is the feature itself, and that is linear in the picture."""

    paired = attracts = stationary_at_anchor = False
    combine = "losses"

    def members(self, *_):
        return ()

    def __call__(self, features, anchor):
        return features[:, 0] - anchor[:, 0]


GREY, HALF = torch.full((2, 3, 32, 32), 0.5), (torch.arange(32) < 16).float().expand(1, 1, 32, 32)
CORNER = torch.zeros(2, 1, 32, 32)
CORNER[:, :, :5, :5] = 1
BALLS = {"linf": Linf(0.05), "l2": L2(1.0), "l1": L1(20.0), "l0": L0(30)}
WRAPS = {
    "plain": lambda ball: ball,
    "masked": lambda ball: Masked(ball, HALF),
    "corners": lambda ball: Masked(ball, CORNER),
    "grey": Grey,
    "low": lambda ball: LowFrequency(ball, 8),
    "smoothed": lambda ball: Smoothed(ball, 1.0),
    "universal": Universal,
    "universal masked": lambda ball: Universal(Masked(ball, HALF)),
    "radii": lambda ball: Radii(ball, torch.tensor([0.5, 1.0]).double() * ball.eps, torch.zeros_like(GREY)),
}
SETS = {
    f"{wrap} {ball}": make(BALLS[ball])
    for wrap, make in WRAPS.items()
    for ball in BALLS
    if (wrap != "low" or ball in ("linf", "l2")) and (wrap != "grey" or ball != "l1")
}


def problem(count=3):
    anchor = torch.zeros(count, 1)
    return Problem(IMAGES[:count], anchor, lambda x: (x * WEIGHTS).sum((1, 2, 3))[:, None], Linear(), Linf(0.05))


def options(**changes):
    arguments = {"optimiser": NES(), "eot": EOT(Compose(), views=8), "steps": 5, "seed": 3} | changes
    return Options(**arguments)


@pytest.mark.parametrize(("keep", "grey"), [(4, True), (4, False), (99, False)])
def test_directions_have_only_the_lowest_frequencies(keep, grey):
    patterns = NES(keep=keep, grey=grey).directions(IMAGES, 6, torch.Generator().manual_seed(0))
    torch.testing.assert_close(patterns.flatten(1).norm(dim=1), torch.ones(6))
    spectrum = torch.from_numpy(scipy.fft.dctn(patterns.double().numpy(), axes=(2, 3), norm="ortho"))
    assert float(spectrum[:, :, keep:].abs().sum() + spectrum[:, :, :, keep:].abs().sum()) < 1e-3
    assert bool((patterns[:, 0] == patterns[:, 1]).all()) == grey


@pytest.mark.slow
def test_the_estimate_is_the_gradient_in_the_low_frequencies():
    nes, case = NES(keep=3, grey=False, probe=0.5), problem()
    choices = options(optimiser=nes, eot=EOT(Compose(), views=2000))
    directions = nes.directions(IMAGES, 1000, torch.Generator().manual_seed(0))
    gradient = nes_estimate(case, torch.zeros_like(IMAGES), directions[None], torch.zeros(1000, 0), choices).grad
    low = scipy.fft.dctn(WEIGHTS.double().numpy(), axes=(2, 3), norm="ortho")
    low[:, :, 3:] = low[:, :, :, 3:] = 0
    true = torch.from_numpy(scipy.fft.idctn(low, axes=(2, 3), norm="ortho")).float().expand_as(gradient)
    assert float(F.cosine_similarity(gradient.flatten(1), true.flatten(1)).min()) > 0.95


def probes(perturbation, delta, **changes):
    """What some probes change."""
    case = Problem(GREY, torch.zeros(2, 1), None, Linear(), perturbation)
    directions = NES().directions(delta, 3, torch.Generator().manual_seed(0))
    choices = options(optimiser=NES(**changes))
    return [probe_deltas(case, delta, direction[None], choices) - delta for direction in directions]


@pytest.mark.parametrize("name", SETS)
def test_a_probe_goes_its_share_of_the_radius_and_of_the_range_of_a_value_where_that_counts_pixels(name):
    perturbation = SETS[name]
    for by in probes(perturbation, torch.zeros_like(GREY[:1] if perturbation.shared else GREY), probe=0.25):
        lengths = by.abs().amax((1, 2, 3)) if name.endswith("l0") else perturbation.norm(by) / perturbation.eps
        torch.testing.assert_close(lengths, torch.full_like(lengths, 0.25), rtol=1e-4, atol=0)


@pytest.mark.parametrize("perturbation", [*SETS.values(), Patch((8, 8))], ids=[*SETS, "patch"])
def test_a_probe_shows_in_a_file_of_8_bits_in_every_set(perturbation):
    delta = perturbation.start(GREY, torch.Generator().manual_seed(0))
    for by in probes(perturbation, delta):
        assert 255 * float(by.abs().amax((1, 2, 3)).min()) >= 2


def test_both_sides_of_a_pair_have_one_view_and_each_step_has_new_views():
    rows = []

    class Views(Compose):
        def __call__(self, images, u, *rest, **options):
            rows.append(u)
            return super().__call__(images, u, *rest, **options)

    views = Views([Brightness(0.1)])
    mark_checked((part := problem(1)).encoder)
    [*sampled_descent(part, options(eot=EOT(views, views=4), steps=2))]
    u = torch.cat(rows)[:, 0]
    assert len(u) == 8 and torch.equal(u[:2], u[2:4]) and torch.equal(u[4:6], u[6:]) and len(u.unique()) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eot": EOT(Compose(), views=3)}, "even"),
        ({"eot": EOT(Compose(), views=4, risk=CVaR())}, r"risk Mean\(\)"),
        ({"adversary": object()}, "`adversary`"),
    ],
)
def test_what_it_cannot_do_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        next(sampled_descent(problem(), options(**changes)))


def test_a_surrogate_with_the_right_gradient_is_worth_more_than_chance():
    def victim(images):
        return torch.cat([(images * WEIGHTS).sum((1, 2, 3))[:, None], torch.ones(len(images), 1)], 1)

    ends = {}
    for name, surrogate in (("none", None), ("right", victim)):
        case = replace(problem(), encoder=victim, anchor=victim(IMAGES), objective=Away())
        case = replace(case, encoder=BlackBox(lambda x: victim(torch.from_numpy(x).permute(0, 3, 1, 2) / 255)))
        *_, end = sampled_descent(case, options(optimiser=NES(surrogate=surrogate)))
        ends[name] = float(Away()(case.encoder(IMAGES + end.delta), case.anchor).mean())
    assert ends["right"] < ends["none"]


def test_mixed_directions_have_half_of_their_energy_along_the_prior():
    nes, prior = NES(keep=4), torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(4))
    free = nes.directions(IMAGES, 50, torch.Generator().manual_seed(0))
    mixture = nes.mix(free, prior)
    assert mixture.shape == (3, 50, 3, 32, 32)
    torch.testing.assert_close(mixture.flatten(2).norm(dim=2), torch.ones(3, 50))
    overlap = (mixture.flatten(2) * F.normalize(prior.flatten(1))[:, None]).sum(2)
    assert abs(float(overlap.square().mean()) - 0.5) < 0.05
    torch.testing.assert_close(nes.mix(free, 0 * prior)[0], free)


@pytest.mark.parametrize("values", [{"probe": 0.0}, {"keep": 0}, {"momentum": 1.0}, {"schedule": "no"}])
def test_values_out_of_range_are_refused(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}`"):
        NES(**values)
    assert PGD.gradient_free is False and NES.gradient_free is True


@pytest.mark.parametrize("steps", [3, 8])
def test_an_encoder_whose_answers_no_probe_changes_gives_a_warning(steps):
    def coarse(images):
        return (images.mean((1, 2, 3)) > 0.9).float()[:, None]

    problem = Problem(GREY, coarse(GREY), coarse, Linear(), Linf(0.01))
    with pytest.warns(Silent, match=r"no probe has changed the loss of image\(s\) \[0, 1\]"):
        first, *_, end = sampled_descent(problem, Options(NES(keep=1), EOT(Compose(), views=4), steps=steps))
    assert torch.equal(first.delta, end.delta)


def test_a_delta_that_stays_at_the_edge_of_its_set_has_a_gradient_and_gives_no_warning():
    def mean(images):
        return images.mean((1, 2, 3))[:, None]

    best = torch.full_like(GREY, -1 / 64)  # without a rounding, so that it stays exactly
    problem = Problem(GREY, mean(GREY), mean, Linear(), Linf(1 / 64), best)
    *_, end = sampled_descent(problem, Options(NES(keep=1), EOT(Compose(), views=4), steps=8))  # warnings are errors
    assert torch.equal(end.delta, best)
