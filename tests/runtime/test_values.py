"""Values as files: the same bits are read back, and no other type."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file

from attacks.eot.adaptive import Noise
from attacks.eot.estimate import Estimate
from attacks.runtime.stored import stored
from attacks.runtime.values import FORMAT, HEADER, read, write


def round_trip(tmp_path, value):
    write(tmp_path / "file", value, "key")
    return read(tmp_path / "file", "key")


def test_plain_values_round_trip(tmp_path):
    value = {
        "a": (1, 2.5, "x", None, True, -0.0),
        3: [Noise(2, 1, 3), ()],
        "none": {},
        "inf": [math.inf, -math.inf, 0.1],
    }
    copy = round_trip(tmp_path, value)
    assert copy == value and type(copy["a"]) is tuple and type(copy[3][0]) is Noise and str(copy["a"][5]) == "-0.0"
    assert math.isnan(round_trip(tmp_path, math.nan))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_tensors_keep_bits_and_strides(tmp_path, dtype):
    tensor = (100 * torch.randn(3, 4, 5, 6)).to(dtype)
    values = {
        "contiguous": tensor,
        "channels last": tensor.contiguous(memory_format=torch.channels_last),
        "transposed": tensor.transpose(1, 3),
        "expanded": tensor[:1].expand(3, 4, 5, 6),
        "every other": tensor[:, ::2],
        "empty": tensor[:0],
        "scalar": tensor[0, 0, 0, 0],
    }
    copies = round_trip(tmp_path, values)
    for name, each in values.items():
        assert copies[name].dtype == dtype and torch.equal(copies[name], each), name
    for name in ("contiguous", "channels last", "transposed"):
        assert copies[name].stride() == values[name].stride(), name


def test_nan_keeps_its_bits(tmp_path):
    odd = torch.tensor([math.nan, -math.nan, math.inf, -0.0, 5e-324], dtype=torch.float64)
    assert round_trip(tmp_path, odd).numpy().tobytes() == odd.numpy().tobytes()


def test_a_tensor_that_occurs_twice_is_written_once(tmp_path):
    tensor = torch.randn(1000)
    round_trip(tmp_path, (tensor, tensor))
    assert (tmp_path / "file").stat().st_size < 1.5 * 4000


class Other(dict):
    pass


@pytest.mark.parametrize("value", [{1, 2}, Other(), Estimate], ids=range(3))
def test_only_stored_types_are_written(tmp_path, value):
    with pytest.raises(TypeError, match="is not a `@stored` type"):
        write(tmp_path / "file", value, "key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tag", ["noise", "tuple", "dict"])
def test_tags_are_unique_per_type(tag):
    with pytest.raises(ValueError, match=f"the tag '{tag}' of Other is in use"):
        stored(tag)(Other)


def header(value, key="key", form=FORMAT):
    return {HEADER: json.dumps({"format": form, "key": key, "value": value})}


BROKEN = {
    "another key": header(1, key="other"),
    "another format": header(1, form="0"),
    "no JSON": {HEADER: "{"},
    "deep": {HEADER: "[" * 100_000},
    "a list": header([1]),
    "an unknown type": header({"os.system": ["true"]}),
    "other fields": header({"noise": [1, 2, 3, 4]}),
    "no such tensor": header({"tensor": ["7", [0], True]}),
    "more axes than the tensor has": header({"tensor": ["0", [1, 0], True]}),
    "empty": b"",
    "a pickle": b"\x80\x04\x95",
    "no header": b"\xff" * 16,
    "an axis twice": header({"tensor": ["0", [0, 0], True]}),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_malformed_file_gives_a_one_line_error(tmp_path, content):
    if isinstance(content, bytes):
        (tmp_path / "file").write_bytes(content)
    else:
        save_file({"0": torch.zeros(3)}, tmp_path / "file", content)
    with pytest.raises(ValueError, match=r"cannot use .*; remove it to repeat its part of the run") as caught:
        read(tmp_path / "file", "key")
    assert "\n" not in str(caught.value)
