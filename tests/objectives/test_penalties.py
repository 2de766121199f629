"""Penalties on the look of a perturbation, against plain formulas and scikit-image; and penalised attacks."""

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skimage.metrics import structural_similarity
from skimage.restoration import denoise_tv_chambolle
from torchvision.models import squeezenet1_1

from attacks import EOT, L2, PGD, Away, Linf, Universal, load_encoder, solve
from attacks.data.gallery import tiles
from attacks.eot.estimate import Estimate
from attacks.eot.problem import Problem
from attacks.objectives import penalties
from attacks.objectives.penalties import (
    EDGE,
    LPIPS,
    SSIM,
    Penalties,
    TotalVariation,
    add_price,
    price_of,
    total_variation,
)
from tests.helpers.sampling import mostly_slow
from tests.helpers.sets import double, seed
from transforms.compose import seen

PRICES = [TotalVariation(1.0), TotalVariation(1.0, isotropic=False), SSIM(1.0), SSIM(1.0, window=7)]
every_price = pytest.mark.parametrize("price", PRICES, ids=["tv", "tv aniso", "ssim", "ssim 7"])
both_ways = pytest.mark.parametrize("isotropic", [True, False])


@pytest.fixture
def pair(photo):
    """(delta, pictures, images) in float64: three pictures and three patterns of other strengths."""
    images = torch.cat([photo[..., i : i + 16, i : i + 20] for i in (0, 30, 60)])
    delta = 0.04 * torch.randn(images.shape, generator=seed(), dtype=double)
    delta = delta * torch.tensor([1, 0.5, 2], dtype=double)[:, None, None, None]
    return delta, images + delta, images


@both_ways
def test_total_variation_is_the_plain_formula(isotropic):
    pattern = torch.randn(2, 3, 5, 7, generator=seed(), dtype=double)
    expected = np.zeros(2)
    for n, c, y, x in np.ndindex(*pattern.shape):
        right = (pattern[n, c, y, x + 1] - pattern[n, c, y, x]).item() if x < 6 else 0.0
        below = (pattern[n, c, y + 1, x] - pattern[n, c, y, x]).item() if y < 4 else 0.0
        expected[n] += (math.hypot(right, below) if isotropic else abs(right) + abs(below)) / pattern[n].numel()
    below = torch.tensor(expected) - total_variation(pattern, isotropic=isotropic)
    assert (below >= 0).all()  # the smooth root lies below |d|, by its edge at most
    assert (below <= (1 if isotropic else 2) * EDGE).all()
    assert (below > EDGE / 100).all()


@pytest.mark.parametrize("weight", mostly_slow([0.02, 0.1], 2))
def test_scikit_images_denoiser_minimises_our_total_variation(photo, weight):
    # Chambolle's algorithm minimises |u - f|^2 / 2 + weight TV(u), of sums: by our TV, no point nearby may be better.
    noisy = photo[0, 0, :24, :32] + 0.1 * torch.randn(24, 32, generator=seed(), dtype=double)
    best = torch.tensor(denoise_tv_chambolle(noisy.numpy(), weight=weight, eps=1e-12, max_num_iter=20000))

    def energy(u):
        price = TotalVariation(weight)(u[None, None] - 0.5, u[None, None], torch.zeros_like(u)[None, None])
        return ((u - noisy).square().sum() / 2 + price[0] * u.numel()).item()

    minimum = energy(best)
    assert minimum < 0.9 * energy(noisy)
    for i in range(20):
        step = torch.randn(best.shape, generator=seed(i), dtype=double)
        assert energy(best + 0.01 * step) > minimum
    for share in (0.9, 0.98, 1.02, 1.1):  # more of the denoising, or less: a wrong weight or scale would prefer one
        assert energy(noisy + share * (best - noisy)) > minimum


def test_ssim_equals_scikit_images(photo):
    images = torch.cat([photo[..., :60], photo[..., 60:]])
    pictures = (images + 0.1 * torch.randn(images.shape, generator=seed(), dtype=double)).clamp(0, 1)
    settings = {"channel_axis": 0, "gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False}
    picture_pairs = zip(images.numpy(), pictures.numpy(), strict=True)
    expected = [structural_similarity(x, y, data_range=1.0, **settings) for x, y in picture_pairs]
    result = SSIM(2.0)(pictures - images, pictures, images)
    torch.testing.assert_close(result, 2 * (1 - torch.tensor(expected, dtype=double)), rtol=0, atol=1e-9)


def test_the_window_of_ssim_is_a_gaussian_of_the_given_size(pair):
    delta, pictures, images = pair
    taps = np.exp(-0.5 * (np.arange(-3, 4) / 1.5) ** 2)
    weights = np.outer(taps, taps) / taps.sum() ** 2
    a, b = (np.lib.stride_tricks.sliding_window_view(x.numpy(), (7, 7), (2, 3)) for x in (images, pictures))

    def mean(x):
        return (weights * x).sum((-2, -1))

    ma, mb = mean(a), mean(b)
    va, vb, ab = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    ssim = (2 * ma * mb + 1e-4) * (2 * ab + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))
    result = SSIM(1.0, window=7)(delta, pictures, images)
    torch.testing.assert_close(result, torch.tensor(1 - ssim.mean((1, 2, 3))), rtol=0, atol=1e-9)


@every_price
def test_gradcheck(price, pair):
    _, pictures, images = pair
    small, shift = images[:2, :1, :13, :12], pictures[:2, :1, :13, :12] - images[:2, :1, :13, :12]
    assert torch.autograd.gradcheck(
        lambda d: price(d, small + d, small), shift.clone().requires_grad_(), fast_mode=True
    )


@every_price
def test_no_change_costs_nothing_and_has_a_finite_gradient(price, pair):
    images = torch.cat([pair[2], torch.zeros_like(pair[2][:1])])  # one black: SSIM's constants alone
    delta = torch.zeros_like(images).requires_grad_()
    result = price(delta, images + delta, images)
    torch.testing.assert_close(result, torch.zeros_like(result), rtol=0, atol=1e-12)
    result.sum().backward()
    assert delta.grad.isfinite().all()
    assert delta.grad.abs().max() < 1e-9


@every_price
def test_weights_scale_the_price_and_pictures_are_independent(price, pair):
    heavy = type(price)(3.0, *list(vars(price).values())[1:])
    single_prices = [heavy(*(x[i : i + 1] for x in pair)) for i in range(3)]
    torch.testing.assert_close(torch.cat(single_prices), 3 * price(*pair), rtol=1e-12, atol=0)


def test_the_price_is_of_the_visible_change_or_of_the_texture():
    # Where the picture is clamped, a pattern outside of the box is no change.
    images, pattern = torch.ones(2, 3, 8, 8), torch.rand(1, 3, 8, 8, generator=seed())
    pictures = seen(Universal(Linf(1.0)).scene(images, pattern))
    assert TotalVariation(1.0)(pattern, pictures, images).abs().max() < 1e-6
    torch.testing.assert_close(
        TotalVariation(1.0, of="texture")(pattern, pictures, images), total_variation(pattern).expand(2)
    )


@pytest.mark.parametrize("perturbation", [L2(4.0), Universal(L2(4.0))], ids=["own", "shared"])
def test_penalised_adds_the_price_and_its_gradient(perturbation, pair):
    _, _, images = pair
    delta = perturbation.start(images, seed())
    losses = torch.arange(3, dtype=double)
    result = Estimate(losses, losses, losses, torch.ones_like(delta), 8, 8, losses)
    price = Penalties((TotalVariation(2.0), SSIM(0.5)))

    def prices(at):
        scene = (at, seen(perturbation.scene(images, at)), images)
        return sum(part(*scene) for part in price.parts)

    problem = Problem(images, None, None, Away(), perturbation)
    result = add_price(result, price_of(price, problem, delta))
    torch.testing.assert_close(result.value, losses + prices(delta))
    torch.testing.assert_close(result.mean, losses)
    # A finite difference of what is minimised: the sum over pictures, or the mean where all share one delta.
    direction = torch.randn(delta.shape, generator=seed(1), dtype=double)
    total = torch.mean if perturbation.shared else torch.sum
    slope = (total(prices(delta + 1e-6 * direction)) - total(prices(delta - 1e-6 * direction))) / 2e-6
    torch.testing.assert_close(((result.grad - 1) * direction).sum(), slope, rtol=1e-6, atol=1e-9)


@pytest.fixture(scope="module")
def victims():
    encoder, images = load_encoder(), tiles(128, ("astronaut", "chelsea", "coffee")).spread(4).images
    with torch.no_grad():
        return encoder, images, encoder(images)


def parts(victims, perturbation, penalty):
    setup = {"objective": Away(), "perturbation": perturbation, "optimiser": PGD(), "eot": EOT(views=1)}
    return {"encoder": victims[0], "penalty": penalty, **setup}


def test_solve_selects_by_loss_plus_penalty(victims):
    encoder, images, clean = (victims[0], *(x[:1] for x in victims[1:]))
    result = solve(images, clean, **parts(victims, Linf(8 / 255), TotalVariation(1000.0)), steps=5)
    with torch.no_grad():
        cosine = torch.cosine_similarity(encoder(images + result.delta), clean)
    torch.testing.assert_close(result.loss, cosine + 1000 * total_variation(result.delta), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((lambda w=w: TotalVariation(w), "`weight` must") for w in (0.0, -1.0, math.nan, math.inf)),
        *((lambda m=m: m(0.0), "`weight` must") for m in (SSIM, LPIPS)),
        (lambda: TotalVariation(1.0, of="delta"), "`of` must be one of change, texture"),
        (lambda: SSIM(1.0, window=10), "`window` must be an odd"),
        (lambda: SSIM(1.0, window=1), "`window` must be an odd"),
        (lambda: SSIM(1.0)(*torch.zeros(3, 1, 3, 10, 30)), "`window` must fit into the pictures; got 11 for 30x10"),
        (lambda: LPIPS(1.0, net="resnet"), "`net` must be one of alex, vgg, squeeze"),
        (lambda: Penalties(()), "`parts` must"),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_lpips_without_its_package_gives_an_error_that_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lpips", None)
    with pytest.raises(ValueError, match=r'pip install "viewproof\[lpips\]"'):
        LPIPS(1.0)


@pytest.fixture
def checkpoints(monkeypatch, tmp_path):
    """An empty cache of checkpoints, and no memory of networks made before."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    penalties._distance.cache_clear()
    yield tmp_path / "checkpoints"
    penalties._distance.cache_clear()


class Stand(torch.nn.Module):
    """A stand-in for the class of package `lpips`: the squared difference, in its own range [-1,1]."""

    def __init__(self, *, net, verbose):
        super().__init__()

    def forward(self, first, second, normalize):
        return ((1 + normalize) * (first - second)).square().mean((1, 2, 3), keepdim=True)


def test_lpips_downloads_nothing_and_gets_pictures_in_its_range(monkeypatch, checkpoints, pair):
    monkeypatch.setitem(sys.modules, "lpips", SimpleNamespace(LPIPS=Stand))
    with pytest.raises(FileNotFoundError, match=r"checkpoints/vgg16-397923af.pth, and nothing is downloaded here"):
        LPIPS(3.0, "vgg")
    (checkpoints / "vgg16-397923af.pth").touch()
    expected = 3 * 4 * pair[0].square().mean((1, 2, 3))
    torch.testing.assert_close(LPIPS(3.0, "vgg")(*pair), expected, rtol=1e-5, atol=1e-8)


def test_lpips_of_its_package_is_zero_without_a_change_and_has_a_gradient(checkpoints, victims):
    # The real package over a network of random weights; skipped where it is not installed.
    pytest.importorskip("lpips")
    torch.save(squeezenet1_1(weights=None).state_dict(), checkpoints / "squeezenet1_1-b8a52dc0.pth")
    price, images = LPIPS(1.0, "squeeze"), victims[1][:2]
    delta = Linf(8 / 255).noise(images, seed()).requires_grad_()
    result = price(delta, images + delta, images)
    assert result.shape == (2,)
    assert (result > 0).all()
    result.sum().backward()
    assert (delta.grad != 0).any(1).float().mean() > 0.9
    assert price(0 * delta, images, images).abs().max() < 1e-6
