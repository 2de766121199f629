"""The estimator against a single graph and against known integrals."""

import math
import weakref
from dataclasses import dataclass
from itertools import accumulate

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, Patch
from attacks.eot.estimate import Estimate, on_host
from attacks.eot.problem import Problem
from attacks.eot.risk import CVaR, Mean
from tests.helpers.sampling import mostly_slow
from tests.helpers.solving import Losses, estimate, small_problem
from transforms import Affine, Brightness, Compose, Perspective
from transforms.draws import Uniform
from transforms.scene import scene_of

VIEWS = Compose([Affine(degrees=30, scale=(0.7, 1.3), translate=0.1), Perspective(0.2), Brightness(0.1)])
double = torch.float64


def small_net(dtype=double):
    layers = [nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Softplus(), nn.Flatten(), nn.LazyLinear(6)]
    net = nn.Sequential(*layers).to(dtype).eval()
    net(torch.zeros(1, 3, 12, 14, dtype=dtype))
    return net


class Setting:
    """Three pictures, each with its own anchor, and a loss that is not linear in the features."""

    def __init__(self, dtype=double):
        self.net = small_net(dtype)
        self.images = 0.3 + 0.4 * torch.rand(3, 3, 12, 14, dtype=dtype)
        self.anchor = torch.randn(3, 6, dtype=dtype)
        self.delta = 0.1 * torch.randn_like(self.images)

    def score(self, features, rows):
        return F.cosine_similarity(features, self.anchor[rows], dim=1)

    def estimate(self, eot, u, subset=slice(None)):
        pictures = torch.arange(3)[subset]

        def scene(part, rows):
            return scene_of(self.images[pictures][rows] + part)

        def loss(pixels, rows):
            return self.score(self.net(pixels), pictures[rows])

        delta = self.delta[subset] if len(self.delta) == 3 else self.delta  # or one for all
        return estimate(eot, delta, scene, loss, u, count=len(pictures))


@pytest.fixture
def setting():
    return Setting()


def coordinates(n, dtype=double):
    return torch.rand(n, VIEWS.dims, dtype=dtype)


def close(result, expected):
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)


class Paint:
    """A picture filled with its coordinate, so that losses are functions on the unit interval."""

    dims, names = 1, ("value",)

    def values(self, u):
        return u

    def __call__(self, images, u):
        return 0 * images + u[:, :, None, None]


def integral(n, seed):
    """EOT's estimate of the integral of exp over [0,1)."""
    eot, delta = EOT(Compose([Paint()]), Uniform(), views=n), torch.zeros(1, 3, 2, 2, dtype=double)
    u = eot.points(seed, 0, delta)
    return estimate(eot, delta, lambda part, _: scene_of(part), lambda pixels, _: pixels.mean((1, 2, 3)).exp(), u)


def test_mean_and_stderr_of_a_known_integral():
    repeats = [integral(64, seed) for seed in range(200)]
    error = torch.cat([r.mean for r in repeats]) - (math.e - 1)
    stderr = torch.cat([r.stderr for r in repeats])
    variance = (math.e**2 - 1) / 2 - (math.e - 1) ** 2
    assert error.mean().abs() < 4 * math.sqrt(variance / 64 / 200)
    assert stderr.square().mean().item() == pytest.approx(variance / 64, rel=0.05)
    assert 0.91 <= (error.abs() < 2 * stderr).double().mean() <= 0.99  # 0.954, within three standard errors


class Speckle:
    """Multiplies every value by 1 + sigma z with a z of its own, of mean 0 and variance 1; a loss that is linear in
    the picture then has the gradient w (1 + sigma z)."""

    dims, names = 192, tuple(str(i) for i in range(192))

    def __init__(self, sigma):
        self.sigma = sigma

    def values(self, u):
        return 1 + self.sigma * math.sqrt(12) * (u - 0.5)

    def __call__(self, images, u):
        return images * self.values(u).view_as(images)


@pytest.mark.parametrize("chunk", [8, pytest.param(3, marks=pytest.mark.slow), 32])
@pytest.mark.parametrize("truth", mostly_slow([10, 1, 100], 3))
def test_snr_of_a_known_covariance(truth, chunk):
    n, weight = 32, torch.randn(1, 3, 8, 8, dtype=double)
    eot = EOT(
        Compose([Speckle(math.sqrt(n / truth))]), Uniform(), views=n, chunk=chunk
    )  # n ||w||^2 / (sigma^2 ||w||^2)
    delta = torch.zeros(1, 3, 8, 8, dtype=double)

    def snr(seed):
        u = eot.points(seed, 0, delta)
        result = estimate(eot, delta, lambda part, _: scene_of(part), lambda x, _: (weight * x).sum((1, 2, 3)), u)
        return result.snr.item()

    assert sum(map(snr, range(40))) / 40 == pytest.approx(truth, rel=0.1)


def test_snr_of_a_single_view_is_nan(setting):
    assert setting.estimate(EOT(VIEWS), coordinates(1)).snr.isnan().all()
    assert setting.estimate(EOT(VIEWS), coordinates(2)).snr.isfinite().all()


def test_nothing_but_the_estimate_gets_a_gradient(setting):
    assert all(weight.requires_grad for weight in setting.net.parameters())
    setting.delta.requires_grad_()
    result = setting.estimate(EOT(VIEWS), coordinates(3))
    assert all(weight.grad is None for weight in setting.net.parameters())
    assert setting.delta.grad is None
    assert not any(part.requires_grad for part in result[:4])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, double])
def test_the_dtype_is_that_of_delta(dtype):
    setting, eot = Setting(dtype), EOT(VIEWS, views=4)
    result = setting.estimate(eot, eot.points(0, 0, setting.delta))
    assert [part.dtype for part in result[:4]] == [dtype] * 4
    assert result.grad.shape == setting.delta.shape


@pytest.mark.parametrize("name", ["views", "chunk"])
@pytest.mark.parametrize("value", [0, -1, 2.0, "8", True])
def test_counts_must_be_whole_and_positive(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be a whole number"):
        EOT(**{name: value})


@pytest.mark.parametrize("risk", [Mean(), CVaR(0.4)], ids=["mean", "tail"])
@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("chunk", [1, 4, 32])
def test_equal_views_per_picture_are_bit_identical_to_common_views(setting, risk, shared, chunk):
    u, eot = coordinates(6), EOT(VIEWS, chunk=chunk, risk=risk)
    setting.delta = setting.delta[: 1 if shared else 3]
    common, separate = setting.estimate(eot, u), setting.estimate(eot, u.expand(3, -1, -1))
    for a, b in zip(common, separate, strict=True):
        assert a == b if isinstance(a, int) else torch.equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize("risk", [Mean(), CVaR(0.4)], ids=["mean", "tail"])
@pytest.mark.parametrize("chunk", [1, 4, 32])
def test_each_picture_may_have_its_own_views(setting, chunk, risk):
    u, eot = torch.stack([coordinates(6) for _ in range(3)]), EOT(VIEWS, chunk=chunk, risk=risk)
    batch = setting.estimate(eot, u)
    singles = [setting.estimate(eot, u[i], [i]) for i in range(3)]
    for name in ("mean", "stderr", "snr", "grad", "value"):
        close(torch.cat([getattr(e, name) for e in singles]), getattr(batch, name))
    setting.delta = setting.delta[:1]
    shared = setting.estimate(eot, u)
    grads = [setting.estimate(eot, u[[i]], [i]).grad for i in range(3)]
    close(shared.grad, torch.stack(grads).mean(0))


def test_views_must_be_given_for_every_picture(setting):
    with pytest.raises(ValueError, match="`u` must hold the views of each of 3 images; got those of 2"):
        setting.estimate(EOT(VIEWS), torch.stack([coordinates(4)] * 2))


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1e-40, 0.0])
def test_a_gradient_that_is_zero_or_not_finite_is_known_wherever_it_is(rows, value):
    grad, figure = torch.zeros(rows, 3, 8, 8), torch.zeros(rows)
    grad[-1, 1, 2, 3] = value
    estimate_of_zeros = Estimate(figure, figure, figure, grad, figure.long(), 1, figure)
    result = on_host([estimate_of_zeros])
    assert result.zeros[0].tolist() == [True] * (rows - 1) + [value == 0]
    assert result.finite == (math.isfinite(value),)


@pytest.mark.parametrize("views", [1, 3], ids=["one group", "several"])
def test_a_shared_delta_is_read_once_in_all_pictures_where_its_views_are_one_group(views):
    calls, weights = [], torch.arange(1.0, 5.0)

    def losses(numbers, delta, u):
        calls.append(len(delta))
        return (weights[numbers] * delta[:, 0]).repeat_interleave(len(u) // len(numbers))

    estimate = EOT(VIEWS).estimate(Losses(losses, 4), torch.zeros(1, 2), coordinates(views))
    assert calls == [1 if views == 1 else 4 * views]
    assert torch.equal(estimate.grad, torch.tensor([[2.5, 0.0]]))


def test_a_problem_of_all_its_pictures_in_order_copies_no_picture():
    images, anchor, parts = small_problem()
    problem = Problem(images, anchor, parts["encoder"], parts["objective"], Patch((4, 4)))
    texture = torch.zeros(1, 3, 4, 4, dtype=images.dtype)
    assert problem.scene(texture, torch.arange(3)).layers[0].pixels is images
    for rows in ([0, 0, 1], [1, 0, 2], [0, 1]):
        assert torch.equal(problem.scene(texture, torch.tensor(rows)).layers[0].pixels, images[rows])


# --- memory ---


@dataclass(eq=False)
class Handle:
    """A tensor that autograd has saved."""

    tensor: torch.Tensor


def estimate_of(eot, net, images, u):
    return estimate(
        eot,
        torch.zeros_like(images),
        lambda part, rows: scene_of(images[rows] + part),
        lambda pixels, _: net(pixels).square().mean(1),
        u,
    )


def saved_bytes(u):
    """The peak of bytes saved by autograd during an estimate over the views `u`."""
    changes = []

    def pack(tensor):
        handle, size = Handle(tensor), tensor.untyped_storage().nbytes()
        changes.append(size)
        weakref.finalize(handle, changes.append, -size)
        return handle

    net = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Softplus(), nn.Flatten()).eval()
    images = torch.rand(3, 3, 12, 14)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda handle: handle.tensor):
        estimate_of(EOT(VIEWS, chunk=6), net, images, u)
    return max(accumulate(changes))


def test_saved_tensors_do_not_grow_with_views():
    u = torch.rand(8, VIEWS.dims).repeat(3, 1)  # repeated, because the saved bytes differ between chunks of six views
    assert 1e4 < saved_bytes(u.repeat(11, 1)) <= saved_bytes(u)
