"""The two web posts about autograd itself: a hand-written backward, and gradients of intermediate tensors."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from attacks import load_encoder
from tests.helpers.slopes import assert_slope
from transforms import Compose, Downscale, audit
from transforms.draws import stream

double = torch.float64


# --- 4. "A backward of one's own": bicubic reduction through numpy. ---


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
    picture = photo[..., :12, :18].clone().requires_grad_()
    with pytest.raises(RuntimeError, match="Jacobian mismatch"):
        gradcheck(posted_bicubic(2 / 3), (picture,), fast_mode=True)
    report = audit(posted_bicubic(2 / 3), photo[..., :21, :30], draws=1)
    assert any("a wrong backward" in text for text in report.warnings)


def test_downscale_has_an_exact_gradient_and_reads_every_pixel(photo):
    assert_slope(lambda images: Downscale(8)(images, torch.zeros(1, 0)), photo[..., :12, :18])
    report = audit(Downscale(20), photo, draws=1)
    assert report.coverage == 1 and report.effective_coverage > 0.9
    assert report.stages[0].slope == pytest.approx(1, abs=0.01)
    assert report.minification[0] == pytest.approx(4, abs=0.2) and report.minification[1] == 1
    assert not report.warnings


# --- 5. "Gradients and backward": gradients accumulate, and those of intermediate tensors are not kept. ---


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
