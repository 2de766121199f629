"""Files of weights: what holds tensors is read, everything else is one line, and nothing is ever run."""

import json
import pickle
import struct
import tarfile
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import nn

from attacks.encoders.weights import TORCH_FILES, fill, fingerprint, load_weights, read_state


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)).eval()


def state(seed=0):
    return dict(network(seed).state_dict())


def written(path, content):
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return path


def refused(path, message, into=None):
    """One line with the file's name, and no hint of a bug."""
    with pytest.raises(ValueError, match=message) as caught:
        load_weights(into or network(), path)
    said = str(caught.value)
    assert path.name in said and "\n" not in said and len(said) < 600, said
    return said


@pytest.mark.parametrize("suffix", [".safetensors", ".PT", *TORCH_FILES])
def test_what_is_read_is_what_was_written(tmp_path, suffix):
    made = state(1)
    path = tmp_path / f"w{suffix}"
    torch.save(made, path) if suffix != ".safetensors" else save_file(made, path)
    found = read_state(path)
    assert found.keys() == made.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in made.items())


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "model"])
def test_the_state_may_lie_in_what_a_training_script_saves(tmp_path, key):
    path = written(tmp_path / "w.pt", {"epoch": 3, "loss": 0.5, key: state(1), "optimizer": {"lr": 0.1}})
    module = network()
    load_weights(module, path)
    assert fingerprint(module) == fingerprint(network(1))


def test_nested_states_are_found_and_anything_deeper_is_refused(tmp_path):
    module = network()
    load_weights(module, written(tmp_path / "w.pt", {"state_dict": {"model": state(1)}}))
    assert fingerprint(module) == fingerprint(network(1))
    refused(written(tmp_path / "deep.pt", {"state": {"inner": state(1)}}), "not a state_dict")


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "module._orig_mod."])
def test_the_names_of_a_wrapped_module_are_taken(tmp_path, wrapper):
    module = network()
    load_weights(module, written(tmp_path / "w.pt", {f"{wrapper}{k}": v for k, v in state(1).items()}))
    assert fingerprint(module) == fingerprint(network(1))


class Writes:
    """Its pickle writes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (exec, (f"open({str(self.path)!r}, 'w').write('ran')",))


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle"])
@pytest.mark.parametrize("suffix", [".pt", ".tar", ".safetensors", ".npz", ""])
def test_a_pickle_is_never_run(tmp_path, form, suffix):
    for place in ("alone", "beside", "key", "nested"):
        ran, path = tmp_path / "ran", tmp_path / f"w{suffix}"
        bomb = Writes(ran)
        content = {
            "alone": bomb,
            "beside": {**state(), "extra": bomb},
            "key": {"state_dict": state(), "args": bomb},
            "nested": {"state_dict": {**state(), "x": [bomb]}},
        }[place]
        if form == "plain pickle":
            path.write_bytes(pickle.dumps(content))
        else:
            torch.save(content, path, _use_new_zipfile_serialization=form == "zip")
        refused(path, "refused" if suffix in TORCH_FILES else "not a safetensors file")
        assert not ran.exists()


def test_a_pickle_is_refused_with_what_it_asks_for(tmp_path):
    assert "exec)" in refused(written(tmp_path / "w.pt", Writes(tmp_path / "ran")), "could run code")


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of writing one
def test_a_program_is_no_weights(tmp_path):
    torch.jit.script(nn.Linear(2, 2)).save(path := tmp_path / "w.pt")
    refused(path, "TorchScript program.*encoder=torchscript")


def test_old_archives_and_zips_of_something_else_are_refused(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    with tarfile.open(tmp_path / "tar.pt", "w") as tar:
        tar.add(tmp_path / "a.txt", "storages")
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as file:
        file.writestr("a.txt", "x")
    for name in ("tar.pt", "zip.pt"):
        refused(tmp_path / name, "cannot be read|refused")


def test_the_format_before_zip_is_read(tmp_path):
    torch.save(state(1), tmp_path / "w.pt", _use_new_zipfile_serialization=False)
    load_weights(module := network(), tmp_path / "w.pt")
    assert fingerprint(module) == fingerprint(network(1))


def header(size, text=b""):
    return struct.pack("<Q", size) + text


def listing(dtype, shape, end):
    """A safetensors file of one tensor, with four bytes of data."""
    text = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}).encode()
    return header(len(text), text + bytes(4))


BROKEN = {
    "empty": b"",
    "one byte": b"\x00",
    "huge header": header(2**63, b"{}"),
    "header beyond the file": header(10**6, b"{}"),
    "no json": header(4, b"abcd"),
    "a list": header(2, b"[]"),
    "unknown dtype": listing("Q9", [1], 4),
    "offsets beyond the file": listing("F32", [9], 36),
    "shape of billions": listing("F32", [2**40, 2**40], 4),
    "a html page": b"<!DOCTYPE html><html>404</html>",
    "a pointer of git-lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
def test_what_is_no_such_file_is_one_line(tmp_path, suffix, content):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    refused(path, "empty file|not a safetensors file|cannot be read|refused")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    torch.save(state(), folder / "zip.pt")
    torch.save(state(), folder / "old.pt", _use_new_zipfile_serialization=False)
    save_file(state(), folder / "w.safetensors")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["zip.pt", "old.pt", "w.safetensors"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_damaged_file_loads_or_is_one_line(tmp_path_factory, whole, name, data):
    content = bytearray(whole[name])
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content) - 1))]
    for _ in range(data.draw(st.integers(0 if len(content) < len(whole[name]) else 1, 4))):
        if content:
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / f"damaged-{name}"
    path.write_bytes(bytes(content))
    try:
        load_weights(network(), path)
    except ValueError as error:
        assert path.name in str(error) and "\n" not in str(error)


def test_a_folder_and_a_missing_file_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=f"`{tmp_path}` are a folder"):
        read_state(tmp_path)
    with pytest.raises(FileNotFoundError, match="do not exist"):
        read_state(tmp_path / "none.pt")


def test_a_link_is_followed(tmp_path):
    target = tmp_path / "blob"
    target.write_bytes(save(state(1)))
    (tmp_path / "w.safetensors").symlink_to(target)
    assert read_state(tmp_path / "w.safetensors").keys() == state().keys()
    (tmp_path / "dangling.pt").symlink_to(tmp_path / "gone")
    with pytest.raises(FileNotFoundError, match="do not exist"):
        read_state(tmp_path / "dangling.pt")


ODD = {
    "a number": {"a": 3},
    "a list": [torch.zeros(1)],
    "a tensor": torch.zeros(1),
    "none": None,
    "nothing": {},
    "sparse": {"a": torch.eye(3).to_sparse()},
    "no storage": {"a": torch.zeros(3, device="meta")},
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_what_is_no_state_dict_is_refused(tmp_path, content):
    refused(written(tmp_path / "w.pt", content), "not a state_dict")


SPOILT = {
    "shape": (
        {"0.weight": torch.zeros(4, 3, 5, 5)},
        r"`0\.weight` must have shape \(4, 3, 3, 3\), got \(4, 3, 5, 5\)",
    ),
    "whole numbers": (
        {"0.weight": torch.zeros(4, 3, 3, 3, dtype=torch.int8)},
        r"`0\.weight`.*float32, got torch\.int8",
    ),
    "complex": ({"2.bias": torch.zeros(2, dtype=torch.complex64)}, r"`2\.bias`.*complex64"),
    "nan": ({"2.bias": torch.tensor([0.0, float("nan")])}, r"`2\.bias` holds NaN"),
    "surplus": ({"3.bias": torch.zeros(2)}, r"1 unknown \(first: \['3\.bias'\]\)"),
}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize(("spoilt", "message"), SPOILT.values(), ids=SPOILT)
def test_tensors_of_another_network_are_refused(tmp_path, suffix, spoilt, message):
    refused(written(tmp_path / f"w{suffix}", state() | spoilt), message)


def test_names_of_a_head_may_be_there_and_nothing_else():
    made = state(1) | {"head.weight": torch.zeros(3), "heads.weight": torch.zeros(3)}
    with pytest.raises(ValueError, match=r"heads\.weight"):
        fill(network(), made, "weights", without=["head."])
    fill(module := network(), made, "weights", without=["head.", "heads."])
    assert fingerprint(module) == fingerprint(network(1))
    # A prefix of what the module does have takes nothing away.
    fill(module := network(), state(1), "weights", without=["0."])
    assert fingerprint(module) == fingerprint(network(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_another_precision_becomes_the_modules(tmp_path, dtype, suffix):
    made = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state(1).items()}
    load_weights(module := network(), written(tmp_path / f"w{suffix}", made))
    for name, tensor in module.state_dict().items():
        assert tensor.dtype == network().state_dict()[name].dtype
        assert "batches" in name or torch.equal(tensor, made[name].to(tensor.dtype))
