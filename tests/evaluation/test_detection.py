"""Pictures that a resize shows otherwise than people see them: cosines, thresholds, pipelines."""

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from attacks.data.gallery import tiles
from attacks.data.images import to_bytes
from attacks.encoders import untrained
from attacks.evaluation import detection
from attacks.evaluation.clusters import Sample
from attacks.evaluation.detection import conformal_threshold, cosines, derived_rows, detection_summary, flagged_rows
from attacks.resizers.pipeline import function_name, function_pipeline, kernel_pipeline, library_call
from transforms import resize
from transforms.resizing.kernels import NAMES

ENCODER = untrained().eval().requires_grad_(False)
SIZE = (24, 30)
LANCZOS = Image.Resampling.LANCZOS
MEAN, STD = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.25, 0.3])


@pytest.fixture(scope="module")
def pictures():
    return tiles(96).spread(5).images


def test_a_cosine_is_that_of_the_library_calls(pictures):
    values = cosines(pictures, kernel_pipeline("cv2_linear", (96, 96), SIZE), ENCODER)
    for picture, cosine in zip(pictures, values, strict=True):
        pixels = (picture * 255).round().byte().permute(1, 2, 0).numpy()
        views = cv2.resize(pixels, SIZE[::-1]), np.array(Image.fromarray(pixels).resize(SIZE[::-1], LANCZOS))
        first, other = (ENCODER(torch.from_numpy(view).permute(2, 0, 1)[None] / 255)[0] for view in views)
        assert float(cosine) == pytest.approx(float(first @ other / first.norm() / other.norm()), abs=1e-6)
        assert cosine < 1


def test_an_antialiased_pipeline_has_cosines_of_one_and_flags_nothing(pictures):
    values = cosines(pictures, kernel_pipeline("pil_lanczos", (96, 96), SIZE), ENCODER)
    assert values.tolist() == [1.0] * 5
    rows = flagged_rows({"clean": values, "eot": values}, Sample(torch.arange(5), tuple("abcde"), tuple("abcde")))
    assert [row["flagged"] for row in rows] == [False] * 10


@pytest.mark.parametrize("n", [1, 3, 99, 198, 199, 267])
def test_false_alarms_of_exchangeable_pictures_are_at_most_the_bound(n):
    """Of n + 1 different scores, each against the n others, exactly k are flagged; of equal ones none."""
    scores = torch.rand(n + 1, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    limits = [conformal_threshold(torch.cat([scores[:i], scores[i + 1 :]])) for i in range(n + 1)]
    alarms = sum(bool(score < limit.value) for score, limit in zip(scores, limits, strict=True))
    k = max(1, (n + 1) // 100)
    assert alarms == k and {limit.bound for limit in limits} == {k / (n + 1)}
    assert k / (n + 1) <= max(detection.ALPHA, 1 / (n + 1))
    ties = scores.mul(8).floor()  # ranks are shared
    limits = [conformal_threshold(torch.cat([ties[:i], ties[i + 1 :]])) for i in range(n + 1)]
    assert sum(bool(score < limit.value) for score, limit in zip(ties, limits, strict=True)) <= k


def test_a_threshold_is_set_by_the_clean_pictures_of_other_photographs():
    clean, attack = torch.tensor([0.9, 0.8, 0.95, 0.7]).double(), torch.tensor([0.75, 0.79, 0.2, 0.85]).double()
    sample = Sample(torch.arange(4), tuple("abcd"), tuple("1123"))
    rows = flagged_rows({"clean": clean, "eot": attack}, sample)
    assert [row["threshold"] for row in rows] == pytest.approx([0.7, 0.7, 0.7, 0.8] * 2)
    assert [row["flagged"] for row in rows] == [*[False] * 3, True, False, False, True, False]
    content = detection_summary(rows)
    assert (content["calibration"], content["bound"]) == (2, 1 / 3) and content["clusters"] == 3
    assert content["arms"]["eot"]["flagged"]["mean"] == pytest.approx(1 / 3)  # of photographs
    single = flagged_rows({"clean": clean[:2]}, sample.only([0, 1]))
    assert {row["threshold"] for row in single} == {row["flagged"] for row in single} == {None}
    assert detection_summary(single)["arms"]["clean"]["flagged"] is detection_summary(single)["bound"] is None
    edits = [*rows[:-1], rows[-1] | {"flagged": True}]
    assert derived_rows(edits) == rows and detection_summary(edits) == content  # only the cosines count


def shrunk(array, size=(40, 40)):
    return cv2.resize(array, size)


def cropped(array):
    return array[16:80, 8:88]


def padded(array):
    return cv2.copyMakeBorder(shrunk(array, (40, 30)), 5, 5, 0, 0, cv2.BORDER_CONSTANT, value=(124, 116, 104))


#: A pipeline, what it shows in 8 bits, and its antialiased counterpart.
FUNCTIONS = {
    "an array": (shrunk, shrunk, lambda image: image.resize((40, 40), LANCZOS)),
    "a picture": (
        lambda image: image.convert("RGB").resize((40, 40), Image.Resampling.BILINEAR),
        lambda array: np.array(Image.fromarray(array).resize((40, 40), Image.Resampling.BILINEAR)),
        lambda image: image.resize((40, 40), LANCZOS),
    ),
    "normalised, BGR, channels first": (
        lambda array: torch.from_numpy(((shrunk(array) / 255 - MEAN) / STD)[..., ::-1].copy()).permute(2, 0, 1)[None],
        shrunk,
        lambda image: image.resize((40, 40), LANCZOS),
    ),
    "a crop": (
        lambda array: shrunk(cropped(array)),
        lambda array: shrunk(cropped(array)),
        lambda image: image.crop((8, 16, 88, 80)).resize((40, 40), LANCZOS),
    ),
    "padding": (padded, padded, lambda image: image.resize((40, 30), LANCZOS)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_stands_beside_the_antialiased_resize_of_what_it_shows(name, pictures):
    function, eight_bit, reference = FUNCTIONS[name]
    pipeline, pixels = function_pipeline(function, (96, 96)), to_bytes(pictures[0])
    view, reference_view = pipeline.views(pixels)
    assert np.array_equal(view, eight_bit(pixels)) and view.shape == reference_view.shape == (*pipeline.size, 3)
    expected = np.array(reference(Image.fromarray(pixels))).astype(int)
    if name == "padding":
        assert np.array_equal(reference_view[:5], view[:5]) and np.array_equal(reference_view[-5:], view[-5:])
        reference_view = reference_view[5:-5]
    difference = np.abs(reference_view.astype(int) - expected)
    if name == "a crop":  # it is measured
        assert pipeline.box == pytest.approx((8, 16, 88, 80), abs=0.2) and difference.mean() < 1
    else:
        assert difference.max() == 0 and pipeline.box == (0, 0, 96, 96)
    assert pipeline.name == function_name(function)


@pytest.mark.parametrize("name", NAMES)
def test_every_kernel_has_a_call_of_its_library(name, pictures):
    result = library_call(name)(to_bytes(pictures[0]), (33, 41))
    expected = resize(pictures[:1], (33, 41), name, eight_bit=True)[0].mul(255).round()
    assert (torch.from_numpy(result).permute(2, 0, 1) - expected).abs().max() <= 1


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda _: None, "`pipeline` must turn an 8-bit picture"),
        (lambda array: np.random.default_rng().normal(size=(4, 4, 3)), "`pipeline` must give one result"),
        (lambda array: np.zeros((4, 4, 3)), "`pipeline` must depend on the picture"),
    ],
)
def test_what_is_no_preprocessing_is_refused_in_one_line(function, message):
    with pytest.raises(ValueError, match=message) as error:
        function_pipeline(function, (96, 96))
    assert "\n" not in str(error.value)
