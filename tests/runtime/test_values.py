"""Values as files: the same bits are read back, and no other type."""

import json
import math

import pytest
import torch

from attacks.eot.adaptive import Noise
from attacks.eot.estimate import Estimate
from attacks.runtime.values import FORMAT, Damaged, file_bytes, load_values, stored, write_values


def round_trip(tmp_path, value):
    write_values(tmp_path / "file", value, "key")
    return load_values(tmp_path / "file", "key")


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
    for name, item in values.items():
        assert copies[name].dtype == dtype and torch.equal(copies[name], item), name
    for name in ("contiguous", "channels last", "transposed"):
        assert copies[name].stride() == values[name].stride(), name


def test_nan_keeps_its_bits_and_equal_tensors_share_a_file_entry(tmp_path):
    odd = torch.tensor([math.nan, -math.nan, math.inf, -0.0, 5e-324] * 200, dtype=torch.float64)
    copies = round_trip(tmp_path, (odd, odd))
    assert all(copy.numpy().tobytes() == odd.numpy().tobytes() for copy in copies)
    assert (tmp_path / "file").stat().st_size < 1.5 * odd.nbytes


class Other(dict):
    pass


@pytest.mark.parametrize("value", [{1, 2}, Other(), Estimate], ids=range(3))
def test_other_types_are_refused(tmp_path, value):
    with pytest.raises(TypeError, match="is not a `@stored` type"):
        write_values(tmp_path / "file", value, "key")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tag", ["noise", "tuple", "dict"])
def test_tags_are_unique_per_type(tag):
    with pytest.raises(ValueError, match=f"the tag '{tag}' of Other is in use"):
        stored(tag)(Other)


def text(value):
    return json.dumps({"format": FORMAT, "key": "key", "name": "file", "value": value})


BAD_HEADERS = {
    "no JSON": "{",
    "deep": "[" * 100_000,
    "a list": text([1]),
    "an unknown type": text({"os.system": ["true"]}),
    "other fields": text({"noise": [1, 2, 3, 4]}),
    "no such tensor": text({"tensor": ["7", [0], True]}),
    "more axes than the tensor has": text({"tensor": ["0", [1, 0], True]}),
    "an axis twice": text({"tensor": ["0", [0, 0], True]}),
}


@pytest.mark.parametrize("header", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_malformed_header_gives_a_one_line_error(tmp_path, header):
    (tmp_path / "file").write_bytes(file_bytes({"0": torch.zeros(3)}, header))
    with pytest.raises(Damaged, match=r"file is damaged: ") as error:
        load_values(tmp_path / "file", "key")
    assert "\n" not in str(error.value)


def test_a_file_of_another_run_or_version_is_refused(tmp_path):
    for header in (text(1).replace('"key": "key"', '"key": "other"'), text(1).replace(f'"{FORMAT}"', '"0"')):
        (tmp_path / "file").write_bytes(file_bytes({}, header))
        with pytest.raises(ValueError, match="belongs to another run or another version"):
            load_values(tmp_path / "file", "key")


def test_no_changed_byte_and_no_other_name_is_read(tmp_path):
    path = tmp_path / "file"
    write_values(path, {"loss": 0.5, "delta": torch.arange(4.0)}, "key")
    data = path.read_bytes()
    contents = [data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :] for at in range(len(data)) for bit in (1, 128)]
    contents += [data[:at] for at in range(0, len(data), 7)] + [data + b"\0", b"\0" * len(data), b"\x80\x04\x95"]
    for item in contents:
        path.write_bytes(item)
        with pytest.raises(Damaged):
            load_values(path, "key")
    path.write_bytes(data)
    path.rename(tmp_path / "other")
    with pytest.raises(Damaged, match="it was written as file"):
        load_values(tmp_path / "other", "key")
