"""The preprocessing equals the library's, to the pixel, for any shape; and its configuration keys."""

import dataclasses
import re
from io import BytesIO

import pytest
import torch
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision.transforms import v2

from attacks.encoders.families.torchvision_models import preprocessing
from attacks.encoders.preprocess import Preprocess, preprocess_from
from tests.helpers import encoder_laws as laws
from tests.helpers.sampling import mostly_slow
from tests.helpers.wrong import refused

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
MODES = {"pil_bilinear": v2.InterpolationMode.BILINEAR, "pil_bicubic": v2.InterpolationMode.BICUBIC}


def presets():
    """Every preset of a classification model's weights, each once."""
    unique = {}
    for model in torchvision.models.list_models(module=torchvision.models):
        for weights in torchvision.models.get_model_weights(model):
            preset = weights.transforms()
            key = (preset.resize_size[0], preset.crop_size[0], preset.interpolation.value, *preset.mean, *preset.std)
            unique[key] = preset
    return {f"{k[0]}-{k[1]}-{k[2]}-{k[-1]:.3g}": preset for k, preset in unique.items()}


PRESETS = presets()
assert len(PRESETS) >= 28


def exact(preset):
    """A preset in float64: torchvision's forward without the final rounding to float32."""
    resized = v2.Resize(preset.resize_size, preset.interpolation, antialias=True)
    return v2.Compose([resized, v2.CenterCrop(preset.crop_size), v2.Normalize(preset.mean, preset.std)])


def plain(size, kernel="pil_bilinear", **fields):
    """A specification with the identity as normalisation."""
    return Preprocess(size, kernel, (0.0,) * 3, (1.0,) * 3, **fields)


def pictures(*shape, seed=0):
    return torch.rand(1, 3, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SAMPLE = ("256-224-bilinear-0.225", "342-299-bilinear-0.225", "232-224-bicubic-0.225", "480-480-bicubic-0.5")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in SAMPLE[2:] else pytest.mark.slow) for n in PRESETS]
)
def test_every_torchvision_preset_is_matched_and_eight_bit_equals_pillow(name):
    preset = PRESETS[name]
    ours = preprocessing(preset)
    rounded = dataclasses.replace(ours, eight_bit=True)
    laws.assert_as_tensor(ours, exact(preset), limit=1e-12)
    limit = laws.PIL[ours.kernel][0]
    for title, picture in laws.three_pictures().items():
        gap = 255 * laws.difference(ours(picture), preset(laws.as_pil(picture))[None], ours)
        # Between its passes Pillow clips what bicubic overshoots: a few values in a photograph are levels away.
        assert float((gap > limit + 0.01).double().mean()) <= 2e-4, title
        assert float(gap.mean()) <= 1 / 3, title  # of two roundings, each of half a level at most
        assert torch.equal(rounded(picture.float())[0], preset(laws.as_pil(picture))), title


SHAPES = [(1, 1), (7, 5), (20, 2000), (2000, 20), (31, 97), (64, 64), (65, 64), (200, 301), (3, 400)]


@pytest.mark.parametrize("frame", mostly_slow([(33, 32), (32, 32), (29, 36), (90, 7)], 3), ids=str)
@pytest.mark.parametrize("kernel", MODES)
def test_a_resize_of_the_shorter_side_and_a_crop(frame, kernel):
    for shape in SHAPES:
        # Smaller and larger than the picture, enlarging and shrinking, odd margins and odd borders.
        ours = plain(40, kernel, fit="cover", crop=frame)
        theirs = v2.Compose([v2.Resize(40, MODES[kernel], antialias=True), v2.CenterCrop(frame)])
        picture = pictures(*shape)
        torch.testing.assert_close(ours(picture), theirs(picture).clamp(0, 1), rtol=0, atol=1e-12)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
@settings(max_examples=50, deadline=None)
def test_a_crop_and_its_padding_equal_torchvision(height, width, high, wide):
    picture = pictures(height, width)
    cropped = plain(None, crop=(high, wide))(picture)
    assert torch.equal(cropped, v2.functional.center_crop(picture, [high, wide]))


lengths = st.integers(1, 3000)


@given(lengths, lengths, st.integers(1, 600))
@settings(max_examples=300, deadline=None)
def test_sizes_equal_torchvision_resize(height, width, size):
    compute = v2.functional._geometry._compute_resized_output_size
    assert plain(size, fit="cover").resized(height, width) == tuple(compute((height, width), size=[size]))
    expected_size = tuple(
        max(1, n) for n in compute((height, width), size=None, max_size=size)
    )  # torchvision fails at 0
    assert plain(size, fit="contain").resized(height, width) == expected_size
    assert plain((size, 7)).resized(height, width) == (size, 7)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 32))
@settings(max_examples=100, deadline=None)
def test_multiple_rounds_sides_down(height, width, multiple):
    for has, side in zip((height, width), plain(None, multiple=multiple).resized(height, width), strict=True):
        assert side % multiple == 0 and side >= multiple
        assert side <= has < side + multiple or (has < multiple and side == multiple)


@pytest.mark.parametrize("quality", [5, 75])
def test_a_jpeg_between_the_resize_and_the_crop_equals_pillow_and_has_a_gradient(quality):
    picture, file = laws.levels(1, 3, 61, 40).float(), BytesIO()
    laws.as_pil(picture).resize((33, 29), Image.Resampling.BILINEAR).save(file, "JPEG", quality=quality)
    expected = v2.functional.center_crop(v2.functional.to_image(Image.open(file)), (20, 24)) / 255
    ours = plain((29, 33), eight_bit=True, jpeg=quality, crop=(20, 24))(picture.requires_grad_())
    assert torch.equal(ours[0], expected)
    (gradient,) = torch.autograd.grad(ours.square().sum(), picture)
    assert gradient.isfinite().all() and (gradient != 0).float().mean() > 0.3


@pytest.mark.parametrize("fill", [0.0, 1.0, (0.1, 0.5, 0.9)], ids=str)
@pytest.mark.parametrize("bgr", [False, True])
def test_the_border_has_the_given_colour(fill, bgr):
    picture = pictures(10, 30)
    padded = plain(16, fit="contain", crop=(16, 16), fill=fill, bgr=bgr)(picture)
    colour = torch.tensor(fill if isinstance(fill, tuple) else (fill,) * 3, dtype=torch.float64)[:, None, None]
    small = v2.functional.resize(picture, [5, 16], antialias=True).clamp(0, 1)
    canvas = colour.expand(1, 3, 16, 16).clone()
    canvas[..., 5:10, :] = small
    torch.testing.assert_close(padded, canvas.flip(1) if bgr else canvas, rtol=0, atol=1e-12)
    normalised = Preprocess(None, "pil_bilinear", MEAN, STD, bgr=bgr)(picture)
    channels = picture.flip(1) if bgr else picture
    torch.testing.assert_close(normalised, v2.functional.normalize(channels, MEAN, STD), rtol=0, atol=1e-15)


@pytest.mark.parametrize("shape", [(6, 9), (23, 17)], ids=str)
@pytest.mark.parametrize("kernel", ["pil_bicubic", "cv2_area", "torch_bilinear_aa"])
def test_its_gradient_is_exact(shape, kernel):
    ours = Preprocess(8, kernel, MEAN, STD, fit="cover", crop=(7, 9), fill=0.5, bgr=True)
    laws.assert_slope(ours, 0.3 + 0.4 * pictures(*shape))


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float16, 2e-3), (torch.bfloat16, 2e-2), (torch.float32, 2e-6)])
@pytest.mark.parametrize("eight_bit", [False, True])
def test_the_dtype_is_that_of_the_picture(dtype, limit, eight_bit):
    ours = Preprocess(24, "pil_bicubic", MEAN, STD, fit="cover", crop=(24, 24), eight_bit=eight_bit)
    picture = pictures(50, 60).to(dtype)
    pixels = ours(picture)
    assert pixels.dtype == dtype
    # The same picture in float64: only the arithmetic and the rounding of the result differ.
    torch.testing.assert_close(pixels.double(), ours(picture.double()), rtol=0, atol=limit / min(STD))


WRONG = {
    "size": ["big", 0, -3, 2.5, True, float("nan"), [1, 2, 3], [224], [2.5, 3], [0, 3], {"a": 1}, 10**12],
    "crop": ["big", 224, [224], [1, 2, 3], [0, 5], [5, None], 10**12],
    "mean": [3, None, "abc", ["a", "b", "c"], [0, 0], [1, 2, None], [float("nan"), 0, 0], {"a": 1}],
    "std": [0.5, [0, 0, 0], [1, 1, -1], [1, 1, float("inf")], [True, True, True]],
    "kernel": [5, None, "bicubic", "keys(-5)", ["pil_box"]],
    "fill": ["a", None, 2, -0.1, [0, 0], float("nan"), {"a": 1}],
    "fit": [3, None, "crop", "area", "patches"],
    "limits": [[1, 2], ["a", 2], 3],
    "tiles": ["anyres", "rows", 2],
    "grids": [[[8, 8]], 3, "a"],
    "rounding": [None, "up"],
    "centre": [1, "left"],
    "multiple": [0, 2.5, "a", None, 8],
    "bgr": ["yes", 1, None],
    "eight_bit": ["no", 0],
    "jpeg": [0, 101, 75.5, True, "high"],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in WRONG.items() for v in values], ids=str)
def test_a_wrong_value_gives_a_one_line_error_with_its_key(key, value):
    base = Preprocess(224, "pil_bilinear", MEAN, STD)
    refused(rf"^`encoder\.preprocess\.{key}` .+; ", base.replace, {key: value})
    refused(rf"^`{key}` ", dataclasses.replace, base, **{key: tuple(value) if isinstance(value, list) else value})


def test_an_unknown_key_is_refused_with_the_known_keys():
    with pytest.raises(
        ValueError, match=r"^unknown key `encoder\.preprocess\.kernle`: known here are size, kernel, "
    ):
        Preprocess(224, "pil_bilinear", MEAN, STD).replace({"kernle": "cv2_area"})


def test_a_network_without_preprocessing_needs_size_mean_and_std():
    full = {"size": 112, "mean": [0.5] * 3, "std": [0.5] * 3}
    assert preprocess_from(full, "x.onnx") == Preprocess(112, "pil_bilinear", (0.5,) * 3, (0.5,) * 3)
    for key in full:
        with pytest.raises(ValueError, match=rf"x\.onnx .*`encoder\.preprocess\.{key}`") as info:
            preprocess_from({k: v for k, v in full.items() if k != key}, "x.onnx")
        assert "\n" not in str(info.value)
    refused(r"`encoder\.preprocess\.std` must be positive", preprocess_from, full | {"std": [0, 0, 0]}, "x.onnx")
    assert preprocess_from(full | {"size": None}, "x.onnx").resized(3, 5) == (3, 5)


@pytest.mark.parametrize(
    ("specification", "text"),
    [
        (
            Preprocess(
                256, "pil_bicubic", MEAN, STD, fit="cover", crop=(224, 224), eight_bit=True, bgr=True, jpeg=75
            ),
            r"^resize .*to 256, pil_bicubic, .*8 bits.*\nfile .*of quality 75\ncrop .*224x224\nnorm.*BGR.*2.64$",
        ),
        (plain(None), "resize     none: the picture as large as it is"),
        (plain(None, multiple=8), "down to a multiple of 8"),
        (plain(None, crop=(9, 9)), "where smaller padded with 0.0"),
        (plain(8, crop=(9, 9), fit="cover"), "where smaller padded with 0.0"),
        (plain((8, 9), fit="contain", crop=(9, 9), fill=0.5), "fit within 8x9.*padded with 0.5"),
        (plain((8, 9), fit="cover"), "to cover 8x9"),
        (plain((8, 9)), "to 8x9, whatever the aspect"),
        (plain(9, fit="within", multiple=4), "no larger than 9x9, each side up to a multiple of 4"),
        (plain(None, fit="area", multiple=4, limits=(16, 99)), "a multiple of 4, 16 to 99 pixels"),
        (plain(None, fit="patches", multiple=4, limits=(1, 6)), "a multiple of 4, at most 6 patches"),
        (plain((8, 8), tiles="split", grids=((32, 32),)), "to 8x8, and to 32x32 in tiles of that"),
    ],
)
def test_the_text_describes_resize_and_padding(specification, text):
    assert re.search(text, str(specification), re.DOTALL)
