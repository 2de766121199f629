"""Web posts about lost gradients: each failure as posted, with the library named there, and the same without it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as tvf
from torch import nn

from attacks import load_encoder
from transforms import Affine, Compose, Downscale, audit, perspective
from transforms.draws import stream

double = torch.float64
STOP_MESSAGE = "ignore:To copy construct", "ignore:Converting a tensor with requires_grad"


def gradient(loss, leaf):
    return torch.autograd.grad(loss, leaf)[0]


# --- 1. "transforms.functional": torchvision's perspective drops the gradient to its corners. ---


@pytest.fixture
def corners():
    """Order and sizes of the corners as in the post; the picture of the fixture is smaller."""
    start = torch.tensor([[0.0, 0], [0, 80], [120, 0], [120, 80]], dtype=double, requires_grad=True)
    end = torch.tensor([[0.0, 0], [0, 71], [107, 0], [107, 71]], dtype=double, requires_grad=True)
    return start, end


@pytest.mark.filterwarnings(*STOP_MESSAGE)
def test_torchvision_drops_the_gradient_to_the_corners_and_perspective_does_not(photo, corners):
    theirs = tvf.perspective(photo, *corners)
    assert not theirs.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        (theirs**3).sum().backward()
    ours = perspective(photo, *corners)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)
    (ours**3).sum().backward()
    for points in corners:
        assert points.grad.isfinite().all() and (points.grad.abs().amax(-1) > 0).all()


# --- 2. "Can you affine warp a tensor while preserving gradient flow?" ---

MATRIX = [[1.0, 0, 10], [0, 1, 20]]


def posted_warp(tensor, M=MATRIX, hack=False):
    """The post's `tensor_warp_affine` on (H,W,C), and its answer's "detach hack"."""
    height, width = tensor.shape[:2]
    full = torch.cat([torch.tensor(M), torch.tensor([[0.0, 0, 1]])])
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    places = torch.stack([x.flatten(), y.flatten(), torch.ones_like(x).flatten()]).float()
    src_x, src_y = torch.inverse(full)[:2] @ places
    x0, y0 = src_x.long(), src_y.long()
    x0, x1 = x0.clamp(0, width - 1), (x0 + 1).clamp(0, width - 1)
    y0, y1 = y0.clamp(0, height - 1), (y0 + 1).clamp(0, height - 1)
    dx, dy = src_x - x0.float(), src_y - y0.float()
    weights = [(1 - dx) * (1 - dy), dx * (1 - dy), (1 - dx) * dy, dx * dy]
    flat = tensor.reshape(height * width, -1)
    pixels = [flat[index] for index in (y0 * width + x0, y0 * width + x1, y1 * width + x0, y1 * width + x1)]
    taps = [w[:, None] * p for w, p in zip(weights, pixels, strict=True)]
    if hack:
        taps = [t.detach() + p - p.detach() for t, p in zip(taps, pixels, strict=True)]
    return torch.stack(taps).sum(0).reshape(tensor.shape)


@pytest.fixture
def noise():
    torch.manual_seed(42)
    return torch.rand(64, 64, 3, requires_grad=True)


def batch(tensor):
    return tensor.permute(2, 0, 1)[None]


def channels_last(function):
    return lambda images: batch(function(images[0].permute(1, 2, 0)))


def test_the_audit_reports_the_coverage_and_the_hack(noise):
    plain = audit(channels_last(posted_warp), batch(noise), draws=1)
    assert plain.first_dead is None
    assert plain.coverage == pytest.approx(0.5801, abs=1e-4)
    assert plain.effective_coverage < 0.8 * plain.coverage  # the count alone is misleading
    assert plain.stages[0].slope == pytest.approx(1, abs=0.01)
    hack_result = audit(channels_last(lambda t: posted_warp(t, hack=True)), batch(noise), draws=1)
    assert hack_result.coverage == pytest.approx(7425 / 3 / 64**2, abs=1e-4)
    assert hack_result.stages[0].slope < 0.5 and any("straight-through" in text for text in hack_result.warnings)


def test_the_zero_gradient_comes_from_the_loss_at_delta_zero(noise):
    encoder = load_encoder()
    image = batch(noise).detach().requires_grad_()
    anchor = encoder(channels_last(posted_warp)(image)).detach()
    loss = (encoder(channels_last(posted_warp)(image)) - anchor).square().sum()
    assert not gradient(loss, image).any()  # "a Non-None gradient tensor of all 0s"
    for pipeline in (channels_last(posted_warp), Compose([Affine(degrees=20, translate=0.2)])):
        report = audit(pipeline, image, encoder, draws=2)
        assert report.stationary is True and report.first_dead is None
        assert "random start of at least 1/255 is needed; the warp is fine" in str(report)


def test_the_audit_names_coordinates_without_a_gradient_in_nearest_sampling(photo):
    grid = (torch.rand(1, 9, 9, 2, dtype=double) * 2 - 1).requires_grad_()
    assert not gradient(F.grid_sample(photo, grid, "nearest", align_corners=False).square().sum(), grid).any()
    turn = Affine(degrees=20, scale=(0.8, 1.2))
    dead = audit(Compose([turn], kernel="nearest", antialias=False), photo, draws=4)
    assert dead.stages[0].dead_coordinates == ("affine angle (deg)", "affine scale (x)")  # the rest is fixed
    assert dead.first_dead is None  # the picture itself is read
    assert not audit(Compose([turn]), photo, draws=4).stages[0].dead_coordinates


# --- 3. "A backward of one's own": bicubic reduction through numpy. ---


def basis(x, a=-1):
    x = abs(x)
    if x < 1:
        return (a + 2) * x**3 - (a + 3) * x**2 + 1
    return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if 1 < x < 2 else 0


class Bicubic(torch.autograd.Function):
    """The post's function on (H,W,C), in today's API: numpy forward, and a backward that assigns where it should add
    (`=` for `+=`), and that spreads the output's gradient by int(i * scale)."""

    @staticmethod
    def forward(ctx, picture, scale):
        data = picture.detach().numpy()
        height, width, channels = data.shape
        padded = np.pad(data, ((2, 2), (2, 2), (0, 0)), mode="edge")
        ctx.grad, ctx.scale = np.zeros_like(data), scale
        result = np.zeros((int(height * scale), int(width * scale), channels), dtype=data.dtype)
        for i in range(result.shape[0]):
            for j in range(result.shape[1]):
                at, (f0, f1) = (int(i / scale), int(j / scale)), (i / scale % 1, j / scale % 1)
                rows, columns = ([basis(1 + f), basis(f), basis(1 - f), basis(2 - f)] for f in (f0, f1))
                point = np.outer(rows, columns)
                block = padded[at[0] + 1 : at[0] + 5, at[1] + 1 : at[1] + 5]
                result[i, j] = (block * point[..., None]).sum((0, 1))
                for k, m in np.ndindex(4, 4):
                    row, column = at[0] + k - 1, at[1] + m - 1
                    if row < height and column < width:
                        ctx.grad[row, column] = point[k, m]
        return torch.from_numpy(result)

    @staticmethod
    def backward(ctx, out):
        height, width, _ = ctx.grad.shape
        rows = [min(int(i * ctx.scale), out.shape[0] - 1) for i in range(height)]
        columns = [min(int(j * ctx.scale), out.shape[1] - 1) for j in range(width)]
        return torch.from_numpy(ctx.grad) * out[rows][:, columns], None


def posted_bicubic(scale):
    return lambda images: Bicubic.apply(images[0].permute(1, 2, 0), scale).permute(2, 0, 1)[None]


def test_the_audit_reports_that_the_posted_bicubic_decimates_at_a_quarter(photo):
    picture = photo[..., :40, :60]
    torch.testing.assert_close(posted_bicubic(1 / 4)(picture), picture[..., ::4, ::4], rtol=0, atol=1e-12)
    report = audit(posted_bicubic(1 / 4), picture, draws=1)
    assert report.coverage == 1 / 16 and report.stages[0].slope == pytest.approx(1)
    assert report.minification == (pytest.approx(4), pytest.approx(4))
    assert any("without an antialias filter" in text for text in report.warnings)


@pytest.mark.slow
def test_the_audit_reports_that_the_posted_backward_is_wrong_at_two_thirds(photo):
    report = audit(posted_bicubic(2 / 3), photo[..., :21, :30], draws=1)
    assert any("a wrong backward" in text for text in report.warnings)


def test_downscale_reads_every_pixel(photo):
    report = audit(Downscale(20), photo, draws=1)
    assert report.coverage == 1 and report.effective_coverage > 0.9
    assert report.stages[0].slope == pytest.approx(1, abs=0.01)
    assert report.minification[0] == pytest.approx(4, abs=0.2) and report.minification[1] == 1
    assert not report.warnings


# --- 4. "Gradients and backward": gradients accumulate, and those of intermediate tensors are not kept. ---


def test_the_audit_leaves_no_gradients_and_is_reproducible(photo):
    encoder, image = load_encoder().requires_grad_(), photo.float().requires_grad_()
    state = torch.get_rng_state()
    reports = [audit(Compose([Downscale((30, 40))]), image, encoder, draws=2) for _ in range(2)]
    assert image.grad is None and all(p.grad is None for p in encoder.parameters())
    assert torch.equal(state, torch.get_rng_state())
    assert str(reports[0]) == str(reports[1])


def test_the_norms_of_the_audit_equal_those_of_hooks(photo):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.AvgPool2d(4)).double()
    norms = {}
    for name, module in network.named_children():
        module.register_full_backward_hook(
            lambda module, target_tensor, out, name=name: norms.update(
                {name: (target_tensor[0].norm(), out[0].norm())}
            )
        )
    report = audit(network, photo, draws=1)
    views = network(photo.clone().requires_grad_())
    generator = torch.Generator().manual_seed(stream(0, "end", 0))
    cotangent = torch.randn(views.shape, generator=generator, dtype=double)
    views.backward(cotangent / cotangent.norm())
    for (target_tensor, out), stage in zip(norms.values(), reversed(report.stages), strict=True):
        assert stage.chain_in == pytest.approx(float(target_tensor), rel=1e-9)
        assert stage.chain_out == pytest.approx(float(out), rel=1e-9)
