"""The drop-ins against the libraries whose arguments they have, and the gradients missing in those libraries."""

import itertools

import numpy as np
import pytest
import torch
import torchvision.transforms._functional_tensor as tvt
import torchvision.transforms.functional as tvf
from torch.autograd import gradcheck
from torchvision.transforms import InterpolationMode

from transforms import compat, perspective, warp_affine, warp_perspective
from transforms.compat import affine, rotate
from transforms.sampling.homography import homography, invert

START = [[0, 0], [120, 0], [120, 80], [0, 80]]
END = [[8, 5], [109, 3], [117, 66], [-6, 77]]
AFFINE = [[1.1, 0.3, -12.3], [-0.2, 0.9, 17.7]]
PROJECTIVE = [[1.05, 0.25, -9.1], [-0.15, 0.85, 8.3], [1.2e-3, -0.8e-3, 1.0]]
PARAMETERS = {  # angle, translate, scale, shear, center
    "nothing": (0, (0, 0), 1, 0, None),
    "angle": (33, (0, 0), 1, (0, 0), None),
    "translate": (0, (7, -4), 1, [0.0], None),
    "shear": (0, (0, 0), 1, (12.0, -7.0), None),
    "all": (-21.3, (5, 9), 1.3, (8.0, 5.0), None),
    "center": (140.7, (-3, 4), 0.7, 11.0, (31.5, 60)),
}
MODES = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR}

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
modes = pytest.mark.parametrize("kernel", MODES)
FILLS = (None, 0.4, [0.3, 0.5, 0.9], [0.2])


def double(values):
    return torch.tensor(values, dtype=torch.float64)


def equal(ours, oracle, kernel="bilinear"):
    """Nearest exactly, float64 within 1e-5. In float32 both sides' coordinates are rounded, which on a steep edge
    puts each 1.2e-5 from float64; so a few pixels in a thousand are apart by more than 1e-5."""
    assert ours.shape == oracle.shape
    gap = (ours - oracle).abs()
    if kernel == "nearest":
        assert not gap.any()
    elif ours.dtype == torch.float64:
        assert float(gap.max()) <= 1e-12
    else:
        assert float(gap.max()) <= 3e-5 and float((gap > 1e-5).double().mean()) <= 2e-3


@dtypes
@modes
@pytest.mark.parametrize("case", PARAMETERS)
def test_affine_equals_torchvision(photo, case, kernel, dtype):
    angle, translate, scale, shear, center = PARAMETERS[case]
    for fill in FILLS:
        options = (list(shear) if isinstance(shear, tuple) else shear, MODES[kernel], fill, center)
        oracle = tvf.affine(photo.to(dtype), angle, list(translate), scale, *options)
        ours = affine(photo.to(dtype), angle, translate, scale, shear, kernel=kernel, fill=fill, center=center)
        equal(ours, oracle, kernel)


@dtypes
@modes
@pytest.mark.parametrize("expand", [False, True])
def test_rotate_equals_torchvision(photo, expand, kernel, dtype):
    for angle, fill in itertools.product((0, 17.3, -100.1, 180), FILLS):
        oracle = tvf.rotate(photo.to(dtype), angle, MODES[kernel], expand, None, fill)
        equal(rotate(photo.to(dtype), angle, kernel=kernel, expand=expand, fill=fill), oracle, kernel)


@pytest.mark.parametrize("angle", [30.0, -75.0])
def test_rotate_about_a_point_equals_torchvision(photo, angle):
    oracle = tvf.rotate(photo, angle, MODES["bilinear"], center=[20, 70.5])
    equal(rotate(photo, angle, center=(20, 70.5)), oracle)


def test_expand_needs_the_size_that_torchvision_computes():
    for height, width in ((80, 120), (81, 120), (33, 7), (1, 5)):
        images = torch.zeros(1, 1, height, width)
        for angle in (*range(-180, 181, 15), 0.01, 12.34, 44.999):
            oracle = tvf.rotate(images, angle, expand=True)
            assert rotate(images, angle, expand=True).shape == oracle.shape, (height, width, angle)


@dtypes
@modes
def test_perspective_equals_torchvision(photo, kernel, dtype):
    # torchvision rounds the coefficients that it solves for to float32; its sampler gets ours, unrounded.
    push = homography(double(START), double(END))
    pull = invert(push)[0] / invert(push)[0, 2, 2]
    oracle = tvt.perspective(photo.to(dtype), pull.flatten().tolist()[:8], kernel)
    equal(perspective(photo.to(dtype), START, END, kernel=kernel), oracle, kernel)


@pytest.mark.parametrize("antialias", [True, False, None])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
def test_resize_equals_torchvision(photo, mode, antialias):
    mode, sizes = InterpolationMode(mode), (40, [40], 97, (31, 150), [1, 1], (80, 120))
    for (images, tolerance), size in itertools.product(((photo, 1e-10), (photo.float(), 1e-5)), sizes):
        ours = compat.resize(images, size, mode.value, None, antialias)
        oracle = tvf.resize(images, size, mode, antialias=antialias)
        torch.testing.assert_close(ours, oracle, rtol=0, atol=tolerance)
        assert torch.equal(ours, compat.resize(images, size, mode, antialias=antialias))


@pytest.mark.parametrize("shape", [(80, 120), (120, 80), (77, 101), (64, 64), (30, 91)], ids=str)
def test_sizes_of_one_number_and_a_largest_side_are_those_of_torchvision(shape):
    images = torch.rand(1, 1, *shape)
    for short, limit in ((32, 33), (32, 45), (32, 60), (32, 97), (1, None), (7, None), (63, None), (100, None)):
        ours = compat.resize(images, short, max_size=limit)
        assert ours.shape == tvf.resize(images, short, max_size=limit).shape


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["bilinear", "bicubic"])
@pytest.mark.parametrize("fill", [0.0, 0.7])
def test_gradient_in_every_parameter_of_affine(kernel, fill):
    images = torch.rand(2, 2, 5, 6, dtype=torch.float64).requires_grad_()
    angle, scale = double([13.0, -28.0]), double(0.87)
    translate, shear, center = double([0.31, -0.43]), double([[7.0, 3.0], [-4.0, 9.0]]), double([2.2, 3.1])
    inputs = [images, *(p.requires_grad_() for p in (angle, translate, scale, shear, center))]

    def view(images, angle, translate, scale, shear, center):
        return affine(images, angle, translate, scale, shear, kernel=kernel, fill=fill, center=center)

    assert gradcheck(view, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("expand", [False, True])
def test_gradient_in_the_angle_of_rotate(expand):
    images = torch.rand(2, 2, 5, 6, dtype=torch.float64).requires_grad_()
    assert gradcheck(lambda i, a: rotate(i, a, expand=expand), (images, double(37.3).requires_grad_()))


def test_lists_of_tensors_stay_in_the_graph(photo):
    def leaves(rows):
        return [[double(v).requires_grad_() for v in row] for row in rows]

    start, end, matrix, pair = leaves(START), leaves(END), leaves(AFFINE), leaves([[3, 4]])[0]
    views = perspective(photo, start, end) + warp_affine(photo, matrix, (80, 120))
    (views + affine(photo, pair[0], pair, 1.1, [pair[1], 2.0])).square().sum().backward()
    assert all(float(leaf.grad) != 0 for rows in (start, end, matrix, [pair]) for row in rows for leaf in row)


@pytest.mark.parametrize("kind", [np.array, np.float32, torch.tensor, double, lambda v: torch.tensor(v)[None]])
def test_points_may_be_arrays_whole_numbers_or_batches(photo, kind):
    oracle = perspective(photo, START, END)
    torch.testing.assert_close(perspective(photo, kind(START), kind(END)), oracle, rtol=0, atol=1e-12)
    arrays = [np.array(point) for point in END]
    torch.testing.assert_close(perspective(photo, START, arrays), oracle, rtol=0, atol=1e-12)


def test_whole_number_and_array_matrices(photo):
    oracle = warp_affine(photo, double([[1, 0, 3], [0, 2, 4]]), (80, 120))
    assert torch.equal(warp_affine(photo, torch.tensor([[1, 0, 3], [0, 2, 4]]), (80, 120)), oracle)
    assert torch.equal(warp_perspective(photo, np.array([[1, 0, 3], [0, 2, 4], [0, 0, 1]]), (80, 120)), oracle)


def test_each_image_has_its_own_parameters(photo):
    images = torch.cat([photo, photo.flip(-1), 1 - photo])
    angle, scale = double([10, -50, 170]), double([0.8, 1, 1.4])
    translate, shear = double([[1, 2], [-3, 0], [5.5, 4]]), double([[0, 1], [12, 0], [-7, 3]])
    rows = [
        affine(images[i : i + 1], angle[i], translate[i], scale[i], shear[i], fill=double([0.1, 0.2, 0.3]))
        for i in range(3)
    ]
    batch = affine(images, angle, translate, scale, shear, fill=double([0.1, 0.2, 0.3]))
    torch.testing.assert_close(batch, torch.cat(rows), rtol=0, atol=1e-12)
    gap = affine(images, angle, [translate[:, 0], translate[:, 1]], scale, shear, fill=[0.1, 0.2, 0.3])
    torch.testing.assert_close(gap, batch, rtol=0, atol=0)
    torch.testing.assert_close(rotate(photo, angle), torch.cat([rotate(photo, a) for a in angle]), rtol=0, atol=1e-12)


IMAGES = torch.rand(2, 3, 8, 9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: affine(IMAGES, 0, (0, 0), 0, 0), "`scale` must be positive"),
        (lambda: affine(IMAGES, 0, (0, 0), 1, 90), "`shear` must not be 90"),
        (lambda: affine(IMAGES, float("nan"), (0, 0), 1, 0), "`angle` must be finite"),
        (lambda: affine(IMAGES, 0, (0, 0, 0), 1, 0), r"`translate` must be \(x, y\)"),
        (lambda: affine(IMAGES, torch.zeros(2), (0, 0), torch.ones(3), 0), "one row, or one per image"),
        (lambda: affine(IMAGES, torch.zeros(3), (0, 0), 1, 0), "`angle` must hold one row, or one per image"),
        (lambda: rotate(IMAGES, torch.zeros(2, 2)), r"`angle` must be a number, or one per image"),
        (lambda: rotate(IMAGES, "10"), "`angle` must hold numbers"),
        (lambda: rotate(IMAGES, torch.tensor([0.0, 45.0]), expand=True), "`expand` needs one size"),
        (lambda: rotate(IMAGES[0], 10), "`images` must be floating"),
        (lambda: perspective(IMAGES, [[0, 0], [1]], END), "`startpoints` must hold numbers in rows of one length"),
        (lambda: compat.resize(IMAGES, 4, "lanczos"), "`interpolation` must be one of nearest, .*'lanczos'"),
        (lambda: compat.resize(IMAGES, (4, 4, 4)), "`size` must be one number"),
        (lambda: compat.resize(IMAGES, 4, max_size=4), "`max_size` must be above `size`"),
        (lambda: compat.resize(IMAGES, (4, 5), max_size=9), "`max_size` must be above `size`, which must be one"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
