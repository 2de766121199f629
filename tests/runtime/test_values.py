"""Values as files: the same bits back, and nothing from a file but data of ours."""

import json
import math

import pytest
import torch
from safetensors.torch import save_file

from attacks.eot.adaptive import Views
from attacks.eot.estimate import Estimate
from attacks.runtime.values import ABOUT, FORMAT, read, write


def kept(tmp_path, value):
    write(tmp_path / "file", value, "key")
    return read(tmp_path / "file", "key")


def test_plain_values_come_back_as_they_were(tmp_path):
    value = {
        "a": (1, 2.5, "x", None, True, -0.0),
        3: [Views(2, 1), ()],
        "none": {},
        "inf": [math.inf, -math.inf, 0.1],
    }
    found = kept(tmp_path, value)
    assert (
        found == value and type(found["a"]) is tuple and type(found[3][0]) is Views and str(found["a"][5]) == "-0.0"
    )
    assert math.isnan(kept(tmp_path, math.nan))


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool]
)
def test_tensors_keep_bits_and_strides(tmp_path, dtype):
    tensor = (100 * torch.randn(3, 4, 5, 6)).to(dtype)
    views = {
        "plain": tensor,
        "channels last": tensor.contiguous(memory_format=torch.channels_last),
        "turned": tensor.transpose(1, 3),
        "spread": tensor[:1].expand(3, 4, 5, 6),
        "every other": tensor[:, ::2],
        "nothing": tensor[:0],
        "number": tensor[0, 0, 0, 0],
    }
    found = kept(tmp_path, views)
    for name, each in views.items():
        assert found[name].dtype == dtype and torch.equal(found[name], each), name
    for name in ("plain", "channels last", "turned"):
        assert found[name].stride() == views[name].stride(), name


def test_not_a_number_keeps_its_bits(tmp_path):
    odd = torch.tensor([math.nan, -math.nan, math.inf, -0.0, 5e-324], dtype=torch.float64)
    assert kept(tmp_path, odd).numpy().tobytes() == odd.numpy().tobytes()


def test_a_tensor_that_is_there_twice_is_written_once(tmp_path):
    tensor = torch.randn(1000)
    kept(tmp_path, (tensor, tensor))
    assert (tmp_path / "file").stat().st_size < 1.5 * 4000


class Stranger(dict):
    pass


@pytest.mark.parametrize("value", [{1, 2}, Stranger(), Stranger, Estimate, slice(3)], ids=range(5))
def test_only_what_is_marked_is_written(tmp_path, value):
    with pytest.raises(TypeError, match="is not marked"):
        write(tmp_path / "file", value, "key")
    assert list(tmp_path.iterdir()) == []


def header(value, key="key", form=FORMAT):
    return {ABOUT: json.dumps({"format": form, "key": key, "value": value})}


BROKEN = {
    "another key": header(1, key="other"),
    "another format": header(1, form="0"),
    "no JSON": {ABOUT: "{"},
    "deep": {ABOUT: "[" * 100_000},
    "a list": header([1]),
    "an unknown type": header({"type": "os.system", "fields": {"command": "true"}}),
    "a type of ours that is not marked": header({"type": "attacks.runtime.files.atomic", "fields": {"path": "x"}}),
    "other fields": header({"type": "attacks.eot.adaptive.Views", "fields": {"many": 1}}),
    "a tensor that is not there": header({"tensor": "7", "strides": None, "cpu": True}),
    "strides beyond reason": header({"tensor": "0", "strides": [1 << 34], "cpu": True}),
    "an unknown kind": header({"set": [1]}),
}


@pytest.mark.parametrize("name", BROKEN)
def test_another_file_is_refused_in_one_line(tmp_path, name):
    save_file({"0": torch.zeros(3)}, tmp_path / "file", BROKEN[name])
    with pytest.raises(ValueError, match=r"cannot be taken up: .*; remove it to do its part again") as caught:
        read(tmp_path / "file", "key")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04\x95", b"\xff" * 16, b"{}"], ids=["empty", "pickle", "header", "json"]
)
def test_so_is_what_is_no_such_file(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ValueError, match="cannot be taken up"):
        read(tmp_path / "file", "key")
