"""Web posts about lost gradients: each failure as posted, with the library named there, and the same without it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision.transforms.functional as tvf

from attacks import load_encoder
from tests.helpers.reading import sample
from transforms import Affine, Compose, audit, perspective, warp_affine

double = torch.float64
STOP_MESSAGE = "ignore:To copy construct", "ignore:Converting a tensor with requires_grad"


def gradient(loss, leaf):
    return torch.autograd.grad(loss, leaf)[0]


def cosine(a, b):
    return float(F.cosine_similarity(a.flatten(), b.flatten(), dim=0))


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


def test_the_posted_warp_reaches_the_posted_number_of_pixels(noise):
    got = gradient(posted_warp(noise).mean(), noise)
    assert (got != 0).sum() == 7128 and (got != 0).any(-1).sum() == 2376
    assert round(float((got != 0).double().mean()), 4) == 0.5801  # a share; the post prints "percent"
    hack_result = gradient(posted_warp(noise, hack=True).mean(), noise)
    assert (hack_result != 0).sum() == 7425


def test_the_dense_hack_has_seven_times_the_mass_and_another_direction(noise):
    true = gradient(warp_affine(batch(noise), torch.tensor(MATRIX), (64, 64)).mean(), noise)
    plain, hack_result = (gradient(posted_warp(noise, hack=flag).mean(), noise) for flag in (False, True))
    assert float(hack_result.sum() / true.sum()) == pytest.approx(6.9, abs=0.01)
    assert cosine(hack_result, true) == pytest.approx(0.30, abs=0.005)
    # Nor is the warp itself OpenCV's: its border repeats the first pixel, which outweighs 231 others.
    assert cosine(plain, true) == pytest.approx(0.29, abs=0.005)
    assert float(plain[0, 0].sum() * 64 * 64) == pytest.approx(231, abs=0.1)


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


# --- 3. "How does grid_sample differentiate the grid?" ---


def fold(x, n, border):
    """The post's ComputeLocation, in pixels: where a coordinate reads, and the derivative of that."""
    if border == "replicate":
        return np.clip(x, 0, n - 1), ((x > 0) & (x < n - 1)).astype(float)
    if border == "constant":
        return x, np.ones_like(x)
    low, span = (0.0, n - 1.0) if border == "reflect101" else (-0.5, float(n))
    turns = np.floor((x - low) / span)
    rest = (x - low) - turns * span
    back = turns % 2 == 1
    place, slope = low + np.where(back, span - rest, rest), np.where(back, -1.0, 1.0)
    return np.clip(place, 0, n - 1), slope * ((place > 0) & (place < n - 1))


def posted_gradient(image, points, out, border, value):
    """gx += ((ne - nw) * s + (se - sw) * n) * gOut, and gy likewise; taps outside read the border value."""
    height, width = image.shape[1:]
    (x, gx), (y, gy) = fold(points[..., 0], width, border), fold(points[..., 1], height, border)
    west, north = np.floor(x).astype(int), np.floor(y).astype(int)

    def tap(row, column):
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        return np.where(inside, image[:, row.clip(0, height - 1), column.clip(0, width - 1)], value)

    nw, ne, sw, se = (tap(north + i, west + j) for i in (0, 1) for j in (0, 1))
    e, s = x - west, y - north  # the weights of the eastern and the southern taps
    right = (((ne - nw) * (1 - s) + (se - sw) * s) * out).sum(0) * gx
    down = (((sw - nw) * (1 - e) + (se - ne) * e) * out).sum(0) * gy
    return np.stack([right, down], axis=-1)


@pytest.mark.parametrize("border", ["constant", "replicate", "reflect", "reflect101"])
def test_the_gradient_to_the_points_is_the_posted_formula(photo, border):
    image = photo[..., :16, :24]
    points = (torch.rand(1, 20, 20, 2, dtype=double) * 3 - 1) * torch.tensor([24.0, 16.0])  # a third lies inside
    points.requires_grad_()
    value = 0.3 if border == "constant" else 0.0
    views = sample(image, points, border=border, value=value)
    out = torch.randn_like(views)
    oracle = posted_gradient(image[0].numpy(), points[0].detach().numpy(), out[0].numpy(), border, value)
    got = torch.autograd.grad(views, points, out)[0][0].numpy()
    np.testing.assert_allclose(got, oracle, rtol=0, atol=1e-9)
    assert (np.abs(oracle) > 0).mean() > (0.05 if border in ("constant", "replicate") else 0.5)


def test_the_audit_names_coordinates_without_a_gradient_in_nearest_sampling(photo):
    grid = (torch.rand(1, 9, 9, 2, dtype=double) * 2 - 1).requires_grad_()
    assert not gradient(F.grid_sample(photo, grid, "nearest", align_corners=False).square().sum(), grid).any()
    turn = Affine(degrees=20, scale=(0.8, 1.2))
    dead = audit(Compose([turn], kernel="nearest", antialias=False), photo, draws=4)
    assert dead.stages[0].dead_coordinates == ("affine angle (deg)", "affine scale (x)")  # the rest is fixed
    assert dead.first_dead is None  # the picture itself is read
    assert not audit(Compose([turn]), photo, draws=4).stages[0].dead_coordinates
