"""The exactness contract: passes, processes and memory change only the last digits of an estimate."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT
from attacks.eot.risk import CVaR, Mean
from attacks.runtime.distributed import World
from tests.helpers.fellows import together
from tests.helpers.sampling import mostly_nightly
from tests.helpers.solving import estimate
from transforms import Affine, Brightness, Compose, Perspective
from transforms.compose import view
from transforms.scene import scene_of

VIEWS = Compose([Affine(degrees=30, scale=(0.7, 1.3), translate=0.1), Perspective(0.2), Brightness(0.1)])
RISKS = [Mean(), CVaR(0.3), CVaR(0.7)]
FIELDS = ("mean", "stderr", "snr", "grad")
double = torch.float64


class Setting:
    """Three pictures with a delta of their own or a common one, and a loss that is not linear in the features."""

    def __init__(self, dtype=double, shared=False):
        torch.manual_seed(3)
        layers = [nn.Conv2d(3, 4, 3, 2), nn.Tanh(), nn.Conv2d(4, 4, 3), nn.Softplus(), nn.Flatten()]
        self.net = nn.Sequential(*layers, nn.Linear(48, 6)).to(dtype).eval()
        self.images = 0.3 + 0.4 * torch.rand(3, 3, 12, 14, dtype=dtype)
        self.anchor = torch.randn(3, 6, dtype=dtype)
        self.delta = 0.1 * torch.randn_like(self.images[: 1 if shared else 3])

    def scene(self, part, rows):
        return scene_of(self.images[rows] + part)

    def loss(self, pixels, rows):
        return F.cosine_similarity(self.net(pixels), self.anchor[rows], dim=1)

    def estimate(self, eot, u, world=World()):  # noqa: B008
        return estimate(eot, self.delta, self.scene, self.loss, u, count=3, world=world)

    def losses(self, leaf, u):
        """(3,n), in one graph."""
        pixels = view(VIEWS, scene_of(self.images + leaf), u)
        return self.loss(pixels, torch.arange(3).repeat_interleave(len(u))).unflatten(0, (3, -1))


def close(result, expected, rtol=1e-12):
    for name in FIELDS:
        a, b = getattr(result, name), getattr(expected, name)
        scale = b.abs().max().item()
        torch.testing.assert_close(a, b, rtol=rtol, atol=rtol * scale, msg=lambda text, name=name: f"{name}: {text}")


def coordinates(n, dtype=double):
    return torch.rand(n, VIEWS.dims, dtype=dtype, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("risk", RISKS, ids=lambda risk: type(risk).__name__)
@pytest.mark.parametrize("n", [1, 6, pytest.param(16, marks=pytest.mark.slow)])
def test_the_gradient_equals_a_single_graph(risk, n, shared):
    setting, u = Setting(shared=shared), coordinates(n)
    leaf = setting.delta.clone().requires_grad_()
    losses = setting.losses(leaf, u)
    value = risk.value(losses)
    (expected,) = torch.autograd.grad(value.mean() if shared else value.sum(), leaf)
    results = [setting.estimate(EOT(VIEWS, views=n, chunk=chunk, risk=risk), u) for chunk in (100, 1, 5)]
    for result in results:
        torch.testing.assert_close(result.grad, expected, rtol=1e-12, atol=1e-12 * expected.abs().max().item())
        torch.testing.assert_close(result.mean, losses.mean(1), rtol=1e-12, atol=1e-12)
        if n > 1:  # one view has no SNR
            close(result, results[0])


@pytest.mark.parametrize("shared", [False, True], ids=["own", "shared"])
@pytest.mark.parametrize("risk", RISKS, ids=lambda risk: type(risk).__name__)
@pytest.mark.parametrize("n", [1, 2, 3, 6, 16])
@pytest.mark.parametrize("size", mostly_nightly([2, 4], 2))
def test_the_number_of_processes_does_not_change_the_estimate(size, n, risk, shared):
    setting, u, eot = Setting(shared=shared), coordinates(n), EOT(VIEWS, chunk=5, risk=risk)
    single = setting.estimate(eot, u)
    for result in together(size, lambda world: setting.estimate(eot, u, world)):
        if n == 1:
            assert result.snr.isnan().all()
            result, single = (e._replace(snr=e.mean) for e in (result, single))
        close(result, single)


@pytest.mark.parametrize("risk", RISKS, ids=lambda risk: type(risk).__name__)
def test_all_processes_hold_the_same_bits(risk):
    u, eot = coordinates(12, torch.float32), EOT(VIEWS, chunk=5, risk=risk)
    first, *rest = together(3, lambda world: Setting(torch.float32).estimate(eot, u, world))
    for other in rest:
        assert all(torch.equal(a, b) for a, b in zip(first[:4], other[:4], strict=True))


@pytest.mark.parametrize(("size", "n", "parts"), [(4, 8, [6] * 4), (2, 1, [2, 1])], ids=["views", "pictures"])
def test_each_process_takes_its_part_only(size, n, parts):
    def work(world):
        setting, counts = Setting(), []
        setting.loss = lambda pixels, rows: counts.append(len(pixels)) or pixels.flatten(1).square().sum(1)
        setting.estimate(EOT(VIEWS, chunk=5), coordinates(n), world)
        return sum(counts)

    assert together(size, work) == parts  # of 3 pictures x n views


@pytest.mark.parametrize("risk", RISKS, ids=lambda risk: type(risk).__name__)
def test_out_of_memory_changes_only_the_chunk(risk):
    u = coordinates(16)
    expected, small = Setting().estimate(EOT(VIEWS, risk=risk), u), Setting()

    def loss(pixels, rows):
        if len(pixels) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return Setting.loss(small, pixels, rows)

    small.loss = loss
    result = small.estimate(EOT(VIEWS, chunk=48, risk=risk), u)
    close(result, expected)
    assert result.chunk < expected.chunk == 32


def test_views_of_zero_weight_are_not_differentiated():
    setting, gradient_counts = Setting(), []

    def loss(pixels, rows):
        gradient_counts.append(len(pixels) * pixels.requires_grad)
        return Setting.loss(setting, pixels, rows)

    setting.loss = loss
    setting.estimate(EOT(VIEWS, risk=CVaR(1 / 8)), coordinates(16))
    assert sum(gradient_counts) == 6  # two of sixteen views, of three pictures
    assert len(gradient_counts) > 1


@pytest.mark.slow
def test_the_noise_of_few_views_predicts_the_cosine_of_any_number():
    # cosine^2 = n / (n + c)
    setting, reference = Setting(), coordinates(2048)
    truth = setting.estimate(EOT(VIEWS, chunk=2048), reference).grad.flatten(1)

    def cosine(n, seed):
        u = torch.rand(n, VIEWS.dims, dtype=double, generator=torch.Generator().manual_seed(seed))
        result = setting.estimate(EOT(VIEWS), u)
        return F.cosine_similarity(result.grad.flatten(1), truth, dim=1), result

    estimates = [cosine(8, seed)[1] for seed in range(40)]
    noise = torch.stack([e.grad.flatten(1).square().sum(1) / (1 + e.snr) for e in estimates]).mean(0) * 8
    c = noise / truth.square().sum(1)
    for n in (4, 16, 64):
        mean_square = torch.stack([cosine(n, seed)[0].square() for seed in range(100, 130)]).mean(0)
        torch.testing.assert_close(mean_square, n / (n + c), rtol=0.05, atol=0.02)
    best = estimates[0]
    torch.testing.assert_close(best.cosine.square(), best.views / (best.views + best.c))
