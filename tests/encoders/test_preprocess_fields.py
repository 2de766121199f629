"""What a configuration may write of a specification, and what a specification says of itself."""

import dataclasses
import re

import pytest
import torch

from attacks.encoders.preprocess import Preprocess, specified

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def plain(size, kernel="pil_bilinear", **fields):
    """A specification whose normalisation does nothing."""
    return Preprocess(size, kernel, (0.0,) * 3, (1.0,) * 3, **fields)


WRONG = {
    "size": ["big", 0, -3, 2.5, True, float("nan"), [1, 2, 3], [224], [2.5, 3], [0, 3], {"a": 1}, 10**12],
    "crop": ["big", 224, [224], [1, 2, 3], [0, 5], [5, None], 10**12],
    "mean": [3, None, "abc", ["a", "b", "c"], [0, 0], [1, 2, None], [float("nan"), 0, 0], {"a": 1}],
    "std": [0.5, [0, 0, 0], [1, 1, -1], [1, 1, float("inf")], [True, True, True]],
    "kernel": [5, None, "bicubic", "keys(-5)", ["pil_box"]],
    "fill": ["a", None, 2, -0.1, [0, 0], float("nan"), {"a": 1}],
    "fit": [3, None, "crop"],
    "rounding": [None, "up"],
    "centre": [1, "left"],
    "multiple": [0, 2.5, "a", None, 8],
    "bgr": ["yes", 1, None],
    "eight_bit": ["no", 0],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, values in WRONG.items() for v in values], ids=str)
def test_a_wrong_value_is_one_line_with_its_key(key, value):
    base = Preprocess(224, "pil_bilinear", MEAN, STD)
    with pytest.raises(ValueError, match=rf"^`encoder\.preprocess\.{key}` .+; ") as caught:
        base.replaced({key: value})
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=rf"^`{key}` "):
        dataclasses.replace(base, **{key: tuple(value) if isinstance(value, list) else value})


def test_an_unknown_key_is_named_with_those_that_there_are():
    with pytest.raises(
        ValueError, match=r"^unknown key `encoder\.preprocess\.kernle`: known here are size, kernel, "
    ):
        Preprocess(224, "pil_bilinear", MEAN, STD).replaced({"kernle": "cv2_area"})


def test_every_field_can_be_replaced_by_what_a_configuration_can_write():
    given = {"size": [30, 40], "kernel": "cv2_area", "mean": [0, 0, 0.5], "std": [1, 1, 2], "fit": "contain"}
    given |= {"crop": [7, 9], "rounding": "nearest", "centre": "down", "fill": [0, 1, 0.5], "bgr": True}
    given |= {"eight_bit": True}
    made = Preprocess(224, "pil_bilinear", MEAN, STD).replaced(given)
    for key, value in given.items():
        assert getattr(made, key) == (tuple(value) if isinstance(value, list) else value), key
    assert made.replaced({"size": None, "multiple": 8, "crop": None}).resized(30, 41) == (24, 40)
    assert made.replaced({}) == made
    hash(made)  # a list would not be


def test_a_network_that_says_nothing_needs_size_mean_and_std():
    full = {"size": 112, "mean": [0.5] * 3, "std": [0.5] * 3}
    assert specified(full, "x.onnx") == Preprocess(112, "pil_bilinear", (0.5,) * 3, (0.5,) * 3)
    for key in full:
        with pytest.raises(ValueError, match=rf"x\.onnx .*`encoder\.preprocess\.{key}`") as caught:
            specified({k: v for k, v in full.items() if k != key}, "x.onnx")
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"`encoder\.preprocess\.std` must be positive"):
        specified(full | {"std": [0, 0, 0]}, "x.onnx")
    assert specified(full | {"size": None}, "x.onnx").resized(3, 5) == (3, 5)


@pytest.mark.parametrize("shape", [(3, 9, 9), (1, 1, 9, 9), (1, 4, 9, 9)], ids=str)
def test_pictures_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"\(N,3,H,W\)"):
        plain(8)(torch.rand(shape))


def test_printed_it_says_every_step():
    said = str(Preprocess(256, "pil_bicubic", MEAN, STD, fit="cover", crop=(224, 224), eight_bit=True, bgr=True))
    for word in ("shorter side to 256", "pil_bicubic", "clamped", "8 bits", "central 224x224", "BGR", "0.485"):
        assert word in said, word
    assert "padded" not in said
    assert [line.split()[0] for line in said.splitlines()] == ["resize", "crop", "normalise"]
    low, high = map(float, re.search(r"values (\S+) to (\S+)", said).groups())
    assert low == pytest.approx(-0.485 / 0.229, abs=1e-3) and high == pytest.approx((1 - 0.406) / 0.225, abs=1e-3)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (plain(None), "resize     none: the picture as large as it is"),
        (plain(None, multiple=8), "down to a multiple of 8"),
        (plain(None, crop=(9, 9)), "where smaller padded with 0.0"),
        (plain(8, crop=(9, 9), fit="cover"), "where smaller padded with 0.0"),
        (plain((8, 9), fit="contain", crop=(9, 9), fill=0.5), "fit within 8x9.*padded with 0.5"),
        (plain((8, 9), fit="cover"), "to cover 8x9"),
        (plain((8, 9)), "to 8x9, whatever the aspect"),
    ],
)
def test_what_is_printed_is_what_happens(made, words):
    assert re.search(words, str(made), re.DOTALL)
