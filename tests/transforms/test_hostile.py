"""Extreme or wrong maps, values and arguments: no NaN, and an error that names what is wrong."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from attacks.study.pipeline import stages
from tests.helpers.sampling import mostly_slow
from transforms import Affine, Brightness, Compose, Downscale, warp_perspective
from transforms.camera import Defocus, GaussianBlur, MotionBlur
from transforms.geometry import Cylinder, Lens
from transforms.sampling.warp import warp_by_matrix

double = torch.float64
HEIGHT, WIDTH, ROWS, VALUE = 12, 16, 500, 0.25
BORDERS = ["constant", "replicate", "reflect", "reflect101"]
SETTINGS = list(itertools.product(BORDERS, [False, True], [torch.float32, double]))


def invertible():
    """(500,3,3), pixel frame: mild, huge and tiny scales, a horizon across the picture, all of it behind the camera,
    and mirrored ones, 100 each; times a positive number, which changes no map."""
    part = ROWS // 5
    mild = torch.eye(3, dtype=double) + 0.2 * torch.randn(5, part, 3, 3, dtype=double)
    mild[:, :, 2, :2] *= 0.01
    mild[..., 2, 2] = 1
    mild[1] = torch.diag_embed(10 ** torch.empty(part, 3, dtype=double).uniform_(-6, 6)) @ mild[1]
    mild[2, :, 2, :2] = torch.randn(part, 2, dtype=double)
    mild[3] *= -1
    mild[4, :, :2, 0] *= -1
    return mild.flatten(0, 1) * 10 ** torch.empty(ROWS, 1, 1, dtype=double).uniform_(-3, 3)


def degenerate():
    """As `invertible`, with every fifth row spoiled: rank 2, rank 1, all zeros, and nearly singular."""
    matrix = invertible()
    matrix[0::20, 1] = 2 * matrix[0::20, 0]
    matrix[5::20, 1:] = matrix[5::20, :1]
    matrix[10::20] = 0
    matrix[15::20, 1] = matrix[15::20, 0] * (1 + 1e-12)
    return matrix


def warped(warp, matrix, border, antialias, dtype):
    images = torch.rand(ROWS, 1, HEIGHT, WIDTH, dtype=dtype, requires_grad=True)
    matrix = matrix.to(dtype).requires_grad_()
    views = warp(images, matrix, (HEIGHT, WIDTH), border=border, value=VALUE, antialias=antialias)
    gradients = torch.autograd.grad((views * torch.randn_like(views)).sum(), (images, matrix))
    return images.detach(), views.detach(), gradients


@pytest.mark.parametrize("setting", mostly_slow(SETTINGS, 5))
@pytest.mark.parametrize(
    ("warp", "matrices"),
    [(warp_by_matrix, degenerate), (warp_perspective, invertible)],
    ids=["warp_by_matrix", "warp_perspective"],
)
def test_no_homography_makes_a_nan_or_a_value_out_of_range(warp, matrices, setting):
    # 32 cases of 500 homographies: 16 000.
    images, views, gradients = warped(warp, matrices(), *setting)
    assert views.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients)
    low, high = images.flatten(1).aminmax(dim=1)
    slack = 1e-5
    assert (views.flatten(1).amin(1) >= low.clamp(max=VALUE) - slack).all()
    assert (views.flatten(1).amax(1) <= high.clamp(min=VALUE) + slack).all()


@pytest.mark.parametrize("border", BORDERS)
def test_non_finite_matrix_gives_finite_views_and_changes_no_other_row(border):
    for bad, antialias in itertools.product((torch.nan, torch.inf, -torch.inf), (False, True)):
        for row, column in itertools.product(range(3), repeat=2):
            matrix = torch.eye(3).repeat(2, 1, 1)
            matrix[1, row, column] = bad
            images = torch.rand(2, 1, HEIGHT, WIDTH, requires_grad=True)
            matrix.requires_grad_()
            views = warp_by_matrix(images, matrix, (HEIGHT, WIDTH), border=border, value=VALUE, antialias=antialias)
            gradients = torch.autograd.grad(views.square().sum(), (images, matrix))
            assert views.isfinite().all() and gradients[0].isfinite().all() and gradients[1][0].isfinite().all()
            torch.testing.assert_close(views[0], images[0].detach(), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(Cylinder((150, 180), turn=20, tilt=20, distance=(1.5, 3)), marks=pytest.mark.slow),
        Lens((-0.6, -0.3)),
    ],
    ids=["cylinder", "lens"],
)
def test_antialias_does_not_blur_near_the_edge_of_the_visible_part(stage, photo):
    u = torch.rand(8, stage.dims, dtype=double)
    fine = photo.repeat_interleave(4, -1).repeat_interleave(4, -2)
    oracle = F.avg_pool2d(Compose([stage], antialias=False)(fine, u), 4)

    def worst(antialias):
        error = (Compose([stage], antialias=antialias)(photo, u) - oracle).abs().mean(1, keepdim=True)
        return F.avg_pool2d(error, 9, 1).max()

    assert worst(True) < 1.6 * worst(False)


WHITE, BLACK = torch.ones(2, 3, 40, 60), torch.zeros(2, 3, 40, 60)
#: Stages that leave a flat picture unchanged, so the gradient of the sum over the view is 1 for each of its pixels.
KEEPS = {
    "bicubic": Compose([Affine(30)], kernel="bicubic", border="replicate"),
    "bicubic, antialias": Compose([Affine(30, (0.3, 0.5))], kernel="bicubic", border="replicate"),
    "keys": Compose([Affine(30)], kernel="keys(-0.5)", border="replicate"),
    "bilinear, then a clamp": Compose([Affine(30), Brightness()], border="replicate"),
    "blend with a border": Compose([Affine(30, (2, 3)), Brightness()], kernel="bicubic", value=0.3),
    **{f"downscale {kernel}": Downscale(17, kernel) for kernel in ("pil_bicubic", "pil_lanczos", "cv2_cubic")},
    "downscale range": Downscale((10, 30)),
    "downscale and up": Downscale(17, then_size=33),
    "gaussian": GaussianBlur((0, 3)),
    "defocus": Defocus((0, 4)),
    "motion": MotionBlur((0, 9), 90),
}


@pytest.mark.parametrize("name", KEEPS)
def test_rounding_beyond_black_or_white_does_not_stop_the_gradient(name):
    for picture in (WHITE, BLACK):
        images = picture.clone().requires_grad_()
        u = torch.rand(2, KEEPS[name].dims)
        views = KEEPS[name](images, u)
        (gradient,) = torch.autograd.grad(views.sum(), images)
        torch.testing.assert_close(gradient.sum() / views.numel(), torch.tensor(1.0), rtol=0, atol=1e-3)
        assert views.min() >= 0 and views.max() <= 1


@pytest.mark.parametrize("nothing", [0, False, [], ""])
def test_a_stage_without_arguments_is_null_or_a_mapping(nothing):
    with pytest.raises(ValueError, match=r"`a.affine` must map arguments to values"):
        stages({"affine": nothing}, "a")
    assert stages({"affine": None}, "a") == stages({"affine": {}}, "a") == [Affine()]
