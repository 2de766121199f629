"""Untrusted weights and run directories: one line, exit code 1, and nothing is run or written."""

import dataclasses
import functools
import json
import os
import pickle
import re
import struct

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from attacks.encoders.loading import POCKET_WEIGHTS
from attacks.run import compose
from attacks.runtime.folders import refuse_links
from tests.helpers.wrong import desk as desk


class Touches:
    """A pickle that writes a file when it is read."""

    def __reduce__(self):
        return (open, ("mark", "w"))


def header(content, length=None, body=b""):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


def tensor(start=0, end=4, shape=(1,), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@functools.cache
def shipped():
    return load_file(POCKET_WEIGHTS)


def spoilt(value=None, shape=None, drop=False):
    state = dict(shipped())
    name = next(name for name, each in state.items() if each.is_floating_point() and each.dim() > 1)
    weights = state.pop(name)
    if value is not None:
        state[name] = weights.clone()
        state[name].view(-1)[0] = value
    elif shape is not None:
        state[name] = torch.zeros(shape)
    elif not drop:
        state[name] = weights.to(torch.int32)
    return save(state)


def torches(path, content):
    torch.save(content, path)


#: File name -> (its bytes, or what writes it; the error).
WEIGHT_FILES = {
    "empty.safetensors": (b"", "empty file"),
    "text.safetensors": (b"weights\n" * 9, "not a safetensors file"),
    "huge-header.safetensors": (header({}, 2**60), "not a safetensors file"),
    "longest-header.safetensors": (header({}, 2**64 - 1), "not a safetensors file"),
    "half.safetensors": (lambda p: p.write_bytes(save(shipped())[:5000]), "not a whole one"),
    "beyond.safetensors": (header({"a": tensor(0, 2**40)}), "not a safetensors file"),
    "overlap.safetensors": (header({"a": tensor(), "b": tensor()}, body=b"\0" * 4), "not a safetensors file"),
    "twice.safetensors": (
        header(b'{"a":%b,"a":%b}' % ((json.dumps(tensor()).encode(),) * 2), body=b"\0" * 4),
        "twice",
    ),
    "strange.safetensors": (header({"a": tensor(dtype="F31")}, body=b"\0" * 4), "not a safetensors file"),
    "deep.safetensors": (header(b"[" * 10**5), "not a safetensors file"),
    "nan.safetensors": (lambda p: p.write_bytes(spoilt(torch.nan)), "holds NaN"),
    "infinite.safetensors": (lambda p: p.write_bytes(spoilt(torch.inf)), "holds infinity"),
    "shape.safetensors": (lambda p: p.write_bytes(spoilt(shape=(2, 2))), "must have shape"),
    "whole-numbers.safetensors": (lambda p: p.write_bytes(spoilt()), "must hold numbers"),
    "missing.safetensors": (lambda p: p.write_bytes(spoilt(drop=True)), "1 keys missing"),
    "foreign.safetensors": (lambda p: save_file({"a": torch.zeros(2)}, p), "keys missing"),
    "pickle.pt": (pickle.dumps(Touches()), "refused"),
    "pickle.pth": (lambda p: torches(p, {"state_dict": Touches()}), "refused"),
    "pickle.bin": (lambda p: torches(p, Touches()), "refused"),
    "pickle.ckpt": (lambda p: torches(p, {"a": torch.zeros(1), "b": Touches()}), "refused"),
    "pickle.safetensors": (pickle.dumps(Touches()), "not a safetensors file"),
    "half.pth": (lambda p: (torches(p, shipped()), p.write_bytes(p.read_bytes()[:5000])), "whole"),
    "network.pt": (lambda p: torches(p, torch.nn.Linear(2, 2)), "refused"),
    "numbers.pt": (lambda p: torches(p, {"a": 1}), "not a state_dict"),
    "folder.safetensors": (lambda p: p.mkdir(), "are a folder"),
    "pipe.safetensors": (os.mkfifo, "plain file|do not exist"),
    "nowhere.safetensors": (lambda p: None, "do not exist"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHT_FILES)
def test_bad_weights_give_a_one_line_error(desk, name):
    content, reason = WEIGHT_FILES[name]
    path = desk.given / name
    content(path) if callable(content) else path.write_bytes(content)
    message = desk.refused("config=smoke", f"encoder.weights={path}")
    assert name in message and re.search(reason, message), message


@functools.cache
def begun():
    """The manifest of a run that was stopped, as text."""
    config = dataclasses.asdict(compose("smoke"))
    decision = {key: config["engine"][key] for key in ("layout", "precision", "fold", "chunk")}
    message = {"config": config, "preset": "smoke", "overrides": [], "engine": {"decision": decision}, "threads": 1}
    return json.dumps(message)


def manifest(**changes):
    """The same, with values replaced by dotted names (`__` for a dot)."""
    message = json.loads(begun())
    for key, value in changes.items():
        *path_to, last = key.split("__")
        functools.reduce(lambda node, part: node[part], path_to, message)[last] = value
    return json.dumps(message)


def without(name):
    message = json.loads(begun())
    del message[name]
    return json.dumps(message)


#: Content of a directory -> its files, and the error of `resume=`.
MANIFESTS = {
    "nothing": ({}, "manifest.json"),
    "an empty manifest": ({"manifest.json": ""}, "is not JSON"),
    "half a manifest": ({"manifest.json": lambda: begun()[:300]}, "is not JSON"),
    "a deep manifest": ({"manifest.json": "[" * 10**6}, "is not JSON"),
    "a list": ({"manifest.json": "[]"}, "no `config`"),
    "a number that is none": ({"manifest.json": lambda: manifest(threads=float("nan"))}, "."),
    "bytes": ({"manifest.json": "\udcff\udcfe"}, "is not JSON"),
    "a large manifest": ({"manifest.json": lambda: begun() + " " * 65 * 2**20}, "larger than 64 MiB"),
    "no configuration": ({"manifest.json": lambda: without("config")}, "no `config`"),
    "a configuration in words": ({"manifest.json": lambda: manifest(config="smoke")}, "no `config`"),
    "an unknown key": ({"manifest.json": lambda: manifest(config__attack__mood=1)}, "mood"),
    "a target": ({"manifest.json": lambda: manifest(config__encoder__weights={"_target_": "os.system"})}, "_target_"),
    "the environment": ({"manifest.json": lambda: manifest(config__seed="${oc.env:HOME}")}, "environment"),
    "steps in words": ({"manifest.json": lambda: manifest(config__attack__steps="many")}, "steps"),
    "a program": (
        {"manifest.json": lambda: manifest(config__encoder={"name": "torchscript", "model": "x.pt"})},
        "a run directory may not choose it",
    ),
    "a plug-in": (
        {"manifest.json": lambda: manifest(config__encoder={"name": "plugin", "model": "x"})},
        "a run directory may not choose it",
    ),
    "a server": (
        {"manifest.json": lambda: manifest(config__tracker={"name": "wandb", "mode": "online", "project": "x"})},
        "sends the run over the network",
    ),
    "no decision": ({"manifest.json": lambda: without("engine")}, "no engine decision"),
    "another key of the engine": ({"manifest.json": lambda: manifest(engine__decision__x=1)}, "."),
    "a finished run": ({"manifest.json": begun, "metrics.json": "{}"}, "is finished"),
    "pictures elsewhere": ({"manifest.json": begun, "pictures": "link"}, "pictures` is a link"),
    "events elsewhere": ({"manifest.json": begun, "events.jsonl": "link"}, "events.jsonl` is a link"),
    "a checkpoint elsewhere": ({"manifest.json": begun, "checkpoint": "link"}, "checkpoint` is a link"),
    "a manifest that is a pipe": ({"manifest.json": "pipe"}, "does not exist|plain file|there is no"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_bad_run_directory_gives_a_one_line_error(desk, name):
    files, reason = MANIFESTS[name]
    (desk.given / "elsewhere").mkdir()
    (desk.given / "run").mkdir()
    for file, content in files.items():
        path = desk.given / "run" / file
        content = content() if callable(content) else content
        if content == "link":
            path.symlink_to(desk.given / "elsewhere")
        elif content == "pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(content.encode(errors="surrogateescape"))
    message = desk.refused(f"resume={desk.given / 'run'}", out=None)
    assert re.search(reason, message), message


def test_only_a_link_that_leads_out_of_a_run_directory_is_refused(tmp_path):
    (tmp_path / "run" / "wandb").mkdir(parents=True)
    (tmp_path / "run" / "wandb" / "latest").symlink_to("../wandb")
    (tmp_path / "run" / "whole").symlink_to(tmp_path / "run" / "wandb")
    (tmp_path / "link").symlink_to("run")
    refuse_links(tmp_path / "run")
    refuse_links(tmp_path / "link")
    (tmp_path / "run" / "wandb" / "out").symlink_to("../../run2")
    with pytest.raises(ValueError, match="out` is a link"):
        refuse_links(tmp_path / "link")


@pytest.mark.slow
@pytest.mark.parametrize(("given", "environment"), [(["shard=0/2"], {}), ([], {"SUBMITIT_EXECUTOR": "slurm"})])
def test_a_run_that_would_remove_its_own_results_is_not_begun(desk, monkeypatch, given, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert desk.refused("config=smoke", "overwrite=true", *given).startswith("error: `overwrite` must be false")
