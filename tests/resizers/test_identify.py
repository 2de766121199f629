"""The identifier on the libraries' own resizers, and on pipelines that are none of them."""

from io import BytesIO

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from attacks.resizers.identify import identify
from tests.helpers.resizers import KERNELS, shrinker
from tests.helpers.sampling import mostly_slow

RATIOS = (1.25, 1.5, 2, 2.5, 3, 4, 5.3, 8)
OUT, SIZE = (48, 56), (206, 250)


def bicubic(picture, out=OUT, **options):
    return picture.resize(out[::-1], Image.Resampling.BICUBIC, **options)


def identification(function, photo, size=SIZE):
    return identify(function, photo[0].float(), size)


CASES = [(kernel, ratio, floating) for kernel in KERNELS for ratio in RATIOS for floating in (False, True)]


@pytest.mark.parametrize("case", mostly_slow(CASES, 37), ids=str)
def test_every_kernel_is_named_and_every_name_is_the_same_function(photo, case):
    kernel, ratio, floating = case
    out = (36, 44)
    size = tuple(round(ratio * side) for side in out)
    result = identification(shrinker(kernel, out, floating), photo, size)
    assert kernel in result.kernels
    assert result.arithmetic in ("either", "float" if floating else "8-bit")
    fresh = np.random.default_rng(9).integers(0, 256, (*size, 3), dtype=np.uint8)
    theirs = np.asarray(shrinker(kernel, out, floating)(fresh), dtype=float)
    for name in result.kernels:
        difference = np.abs(theirs - np.asarray(shrinker(name, out, floating)(fresh), dtype=float))
        assert difference.mean() < 0.01 and difference.max() < 1.01, name


def crop_first(array):
    return cv2.resize(array[7:187, 30:230], OUT[::-1], interpolation=cv2.INTER_LINEAR)


def centre_crop(picture):
    wide = bicubic(picture, (64, round(250 * 64 / 206)))
    return np.asarray(wide)[8:56, 11:67]


def letterbox(picture):
    frame = Image.new("RGB", OUT[::-1], (124, 116, 104))
    frame.paste(bicubic(picture, (46, 56)), (0, 1))
    return frame


def two_steps(picture):
    return bicubic(picture.resize((125, 103), Image.Resampling.BILINEAR))


def linear_light(array):
    light = cv2.resize((array / 255) ** 2.2, OUT[::-1], interpolation=cv2.INTER_AREA)
    return np.rint(255 * light ** (1 / 2.2)).astype(np.uint8)


def curve(array):
    return (shrinker("cv2_linear", OUT)(array) / 255) ** 0.5


def reducing_gap(picture):
    return bicubic(picture, reducing_gap=1.0)


def draft(picture):
    file = BytesIO()
    picture.save(file, "JPEG", quality=95)
    draft_image = Image.open(file)
    draft_image.draft("RGB", OUT[::-1])
    return bicubic(draft_image)


def from_bgr(array):
    return cv2.resize(array[..., ::-1], OUT[::-1], interpolation=cv2.INTER_CUBIC)


def normalised(picture):
    values = np.asarray(bicubic(picture)).astype(np.float32) / 255
    return ((values - np.float32([0.485, 0.456, 0.406])) / np.float32([0.229, 0.224, 0.225])).transpose(2, 0, 1)[None]


def corners(array):
    return F.interpolate(torch.from_numpy(array).movedim(2, 0)[None] / 255, OUT, mode="bilinear", align_corners=True)


def warp(array):
    return cv2.warpAffine(array, np.float32([[OUT[1] / 250, 0, 0], [0, OUT[0] / 206, 0]]), OUT[::-1])


def exact_linear(array):
    return cv2.resize(array, OUT[::-1], interpolation=cv2.INTER_LINEAR_EXACT)


def blurred(array):
    return shrinker("cv2_nearest", OUT)(cv2.GaussianBlur(array, (0, 0), 2.5))


def grey(picture):
    return bicubic(picture).convert("L")


def rotation(picture):
    return bicubic(picture.rotate(20, Image.Resampling.BICUBIC))


def nearest_turned(picture):
    return picture.rotate(20).resize(OUT[::-1], Image.Resampling.NEAREST)


#: Pipeline -> the kernels that are exactly it, the rows (start, length, virtual, offset, out), the verdict.
PIPELINES = {
    crop_first: ({"cv2_linear"}, (7, 180, 48, 0, 48), "open"),
    centre_crop: ({"pil_bicubic"}, (0, 206, 64, 8, 48), "closed"),
    letterbox: ({"pil_bicubic"}, (0, 206, 46, 0, 46), "closed"),
    from_bgr: ({"cv2_cubic"}, (0, 206, 48, 0, 48), "open"),
    normalised: ({"pil_bicubic"}, (0, 206, 48, 0, 48), "closed"),
    two_steps: (set(), None, "closed"),
    linear_light: (set(), None, "closed"),
    curve: (set(), None, "open"),
    reducing_gap: (set(), None, "closed"),
    draft: (set(), None, "closed"),
    corners: (set(), None, "open"),
    warp: (set(), None, "open"),
    exact_linear: (set(), None, "open"),
    blurred: (set(), None, "closed"),
    grey: (set(), None, "closed"),
    rotation: (set(), None, "closed"),
    nearest_turned: (set(), None, "open"),
}


@pytest.mark.slow
@pytest.mark.parametrize("pipeline", [*PIPELINES])
def test_an_unseen_pipeline_is_named_only_if_a_kernel_is_exactly_it(photo, pipeline):
    names, rows, verdict = PIPELINES[pipeline]
    result = identification(pipeline, photo)
    assert set(result.kernels) == names and result.figures.verdict == verdict
    if names:
        assert next(iter(result.kernels.values()))[0] == rows
    assert result.linear == (pipeline not in (linear_light, curve, draft, rotation, nearest_turned))
    assert (result.example is None) == (pipeline in (rotation, nearest_turned))
