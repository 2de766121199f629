"""Weights: files of tensors are read, others refused in one line, no code is run; the fingerprint of tensors."""

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

from attacks.encoders.weights import TORCH_FILES, fill, fingerprint, read_state


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2)).eval()


def state(seed=0):
    return dict(network(seed).state_dict())


def write(path, content):
    save_file(content, path) if path.suffix == ".safetensors" else torch.save(content, path)
    return path


def load_weights(module, path):
    fill(module, read_state(path), f"weights `{path}`")


def assert_refused(path, message, network_=None):
    """The error has one line with the file name and does not suggest a bug."""
    with pytest.raises(ValueError, match=message) as info:
        load_weights(network_ or network(), path)
    message = str(info.value)
    assert path.name in message and "\n" not in message and len(message) < 600, message
    return message


@pytest.mark.parametrize("suffix", [".safetensors", ".PT", *TORCH_FILES])
def test_saved_weights_load_unchanged(tmp_path, suffix):
    expected = state(1)
    tensors = read_state(write(tmp_path / f"w{suffix}", expected))
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], tensor) for name, tensor in expected.items())


#: Files of the same state: from a training script, of a wrapped module, nested.
FORMS = {
    "state_dict": lambda state: {"epoch": 3, "loss": 0.5, "state_dict": state, "optimizer": {"lr": 0.1}},
    "model_state_dict": lambda state: {"model_state_dict": state},
    "model": lambda state: {"model": state},
    "nested": lambda state: {"state_dict": {"model": state}},
    **{
        wrapper: lambda state, wrapper=wrapper: {f"{wrapper}{key}": tensor for key, tensor in state.items()}
        for wrapper in ("module.", "_orig_mod.", "module._orig_mod.")
    },
}


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("form", FORMS)
def test_nested_and_wrapped_state_dicts_are_read(tmp_path, form, is_zip):
    torch.save(FORMS[form](state(1)), tmp_path / "w.pt", _use_new_zipfile_serialization=is_zip)
    load_weights(module := network(), tmp_path / "w.pt")
    assert fingerprint(module) == fingerprint(network(1))


class Writes:
    """Its pickle writes a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (exec, (f"open({str(self.path)!r}, 'w').write('ran')",))


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle"])
@pytest.mark.parametrize("suffix", [".pt", ".tar", ".safetensors", ".npz", ""])
def test_code_in_a_pickle_is_never_run(tmp_path, form, suffix):
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
        assert_refused(path, "refused" if suffix in TORCH_FILES else "not a safetensors file")
        assert not ran.exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # warning of saving a script
def test_torchscript_programs_and_foreign_archives_are_refused(tmp_path):
    assert "exec)" in assert_refused(write(tmp_path / "w.pt", Writes(tmp_path / "ran")), "could run code")
    torch.jit.script(nn.Linear(2, 2)).save(path := tmp_path / "w.pt")
    assert_refused(path, "TorchScript program.*encoder=torchscript")
    (tmp_path / "a.txt").write_text("x")
    with tarfile.open(tmp_path / "tar.pt", "w") as tar:
        tar.add(tmp_path / "a.txt", "storages")
    with zipfile.ZipFile(tmp_path / "zip.pt", "w") as file:
        file.writestr("a.txt", "x")
    for name in ("tar.pt", "zip.pt"):
        assert_refused(tmp_path / name, "cannot be read|refused")


def test_weights_that_grow_when_they_are_read_are_refused(tmp_path, monkeypatch):
    torch.save({"w": torch.zeros(2**20)}, tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as first, zipfile.ZipFile(tmp_path / "grown.pt", "w", 8) as grown_zip:
        for name in first.namelist():
            grown_zip.writestr(name, first.read(name))
    assert read_state(tmp_path / "whole.pt")["w"].shape == (2**20,)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("read"))
    assert_refused(tmp_path / "grown.pt", "compressed")


def header(size, text=b""):
    return struct.pack("<Q", size) + text


def listing(dtype, shape, end, form=b"{%b: %b}"):
    """A safetensors file of one tensor, with four bytes of data; `form` lists it otherwise."""
    tensor = json.dumps({"dtype": dtype, "shape": shape, "data_offsets": [0, end]}).encode()
    text = form.replace(b"%b", b'"a"', 1).replace(b"%b", tensor)
    return header(len(text), text + bytes(4))


BAD_FILES = {
    "empty": b"",
    "one byte": b"\x00",
    "huge header": header(2**63, b"{}"),
    "header beyond the file": header(10**6, b"{}"),
    "invalid JSON": header(4, b"abcd"),
    "a list": header(2, b"[]"),
    "unknown dtype": listing("Q9", [1], 4),
    "offsets beyond the file": listing("F32", [9], 36),
    "shape of billions": listing("F32", [2**40, 2**40], 4),
    "the same bytes twice": listing("F32", [1], 4, b'{%b: %b, "b": %b}'),
    "a name twice": listing("F32", [1], 4, b'{%b: %b, "a": %b}'),
    "deeper than Python": header(10**5, b"[" * 10**5),
    "HTML page": b"<!DOCTYPE html><html>404</html>",
    "git-lfs pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n",
}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_of_another_kind_gives_a_one_line_error(tmp_path, suffix, content):
    path = tmp_path / f"w{suffix}"
    path.write_bytes(content)
    assert_refused(path, "empty file|not a safetensors file|cannot be read|refused|do not fit")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    torch.save(state(), folder / "zip.pt")
    torch.save(state(), folder / "old.pt", _use_new_zipfile_serialization=False)
    save_file(state(), folder / "w.safetensors")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["zip.pt", "old.pt", "w.safetensors"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_damaged_file_loads_or_gives_a_one_line_error(tmp_path_factory, whole, name, data):
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


def test_links_are_followed_and_folders_and_missing_files_are_refused(tmp_path):
    target = tmp_path / "blob"
    target.write_bytes(save(state(1)))
    (tmp_path / "w.safetensors").symlink_to(target)
    assert read_state(tmp_path / "w.safetensors").keys() == state().keys()
    (tmp_path / "dangling.pt").symlink_to(tmp_path / "gone")
    for path, message in ((tmp_path, "` are a folder"), (tmp_path / "dangling.pt", "` do not exist")):
        with pytest.raises(FileNotFoundError, match=f"`{path}{message}"):
            read_state(path)


ODD = {
    "a number": {"a": 3},
    "a list": [torch.zeros(1)],
    "a tensor": torch.zeros(1),
    "none": None,
    "empty": {},
    "sparse": {"a": torch.eye(3).to_sparse()},
    "no storage": {"a": torch.zeros(3, device="meta")},
    "too deep": {"state": {"inner": {"a": torch.zeros(1)}}},
}


@pytest.mark.parametrize("content", ODD.values(), ids=ODD)
def test_contents_other_than_a_state_dict_are_refused(tmp_path, content):
    assert_refused(write(tmp_path / "w.pt", content), "not a state_dict")


UNFIT = {
    "shape": (
        {"0.weight": torch.zeros(4, 3, 5, 5)},
        r"`0\.weight` must have shape \(4, 3, 3, 3\), got \(4, 3, 5, 5\)",
    ),
    "integers": ({"0.weight": torch.zeros(4, 3, 3, 3, dtype=torch.int8)}, r"`0\.weight`.*float32, got torch\.int8"),
    "complex": ({"2.bias": torch.zeros(2, dtype=torch.complex64)}, r"`2\.bias`.*complex64"),
    "nan": ({"2.bias": torch.tensor([0.0, float("nan")])}, r"`2\.bias` holds NaN"),
    "infinity": ({"2.bias": torch.tensor([0.0, float("inf")])}, r"`2\.bias` holds infinity"),
    "unknown name": ({"3.bias": torch.zeros(2)}, r"1 unknown \(first: \['3\.bias'\]\)"),
}


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize(("changes", "message"), UNFIT.values(), ids=UNFIT)
def test_tensors_of_another_network_are_refused(tmp_path, suffix, changes, message):
    assert_refused(write(tmp_path / f"w{suffix}", state() | changes), message)


def test_only_extra_head_weights_are_ignored():
    tensors = state(1) | {"head.weight": torch.zeros(3), "heads.weight": torch.zeros(3)}
    with pytest.raises(ValueError, match=r"heads\.weight"):
        fill(network(), tensors, "weights", ignore=["head."])
    # A prefix of existing weights removes nothing.
    for content, ignore in ((tensors, ["head.", "heads."]), (state(1), ["0."])):
        fill(module := network(), content, "weights", ignore=ignore)
        assert fingerprint(module) == fingerprint(network(1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_weights_in_half_precision_stay_so_and_others_take_that_of_the_module(tmp_path, dtype, suffix):
    tensors = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state(1).items()}
    load_weights(module := network(), write(tmp_path / f"w{suffix}", tensors))
    for name, tensor in module.state_dict().items():
        whole = network().state_dict()[name].dtype
        halves = dtype != torch.float64 and whole.is_floating_point
        assert tensor.dtype == (dtype if halves else whole)
        assert "batches" in name or torch.equal(tensor, tensors[name].to(tensor.dtype))


class Holds(nn.Module):
    """A module with the given state."""

    def __init__(self, **tensors):
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)


def test_equal_tensors_have_equal_fingerprints_in_any_file_and_layout(tmp_path):
    prints = {fingerprint(network(1))}
    for name in ("w.safetensors", "w.pt"):
        write(tmp_path / name, network(1).state_dict())
        load_weights(module := network(), tmp_path / name)
        prints.add(fingerprint(module))
    trained = network(1)
    trained[1].num_batches_tracked += 100  # used in training only, and missing in some files
    prints.add(fingerprint(trained))
    base = torch.arange(12.0).reshape(3, 4)
    assert fingerprint(Holds(a=base.T)) == fingerprint(Holds(a=base.T.contiguous()))
    assert fingerprint(Holds(a=base[:, 1])) == fingerprint(Holds(a=base[:, 1].clone()))
    assert fingerprint(Holds(a=base[:1].expand(3, 4))) == fingerprint(Holds(a=base[:1].repeat(3, 1)))
    assert fingerprint(Holds(a=base, b=base)) == fingerprint(Holds(b=base.clone(), a=base.clone()))
    assert len(prints) == 1


def test_a_bit_dtype_shape_or_name_changes_the_fingerprint():
    base = torch.arange(12.0).reshape(3, 4)
    bit_flip = base.clone()
    bit_flip.view(torch.int32)[2, 3] ^= 1
    negative = base.clone()
    negative[0, 0] = -0.0
    modules = [Holds(a=t) for t in (base, bit_flip, negative, base.double(), base.view(4, 3), base.view(torch.int32))]
    modules += [Holds(b=base), Holds(a=base, b=base), Holds(a=base.T.contiguous()), Holds(), Holds(a=base[:0])]
    modules += [Holds(a=torch.tensor(3.0)), Holds(a=torch.tensor([3.0])), Holds(a=torch.zeros(2, 0, 3))]
    kinds = (torch.bool, torch.uint8, torch.half, torch.bfloat16, torch.float8_e4m3fn, torch.complex64)
    modules += [Holds(a=base.to(kind)) for kind in kinds]
    assert len({fingerprint(module) for module in modules}) == len(modules)
