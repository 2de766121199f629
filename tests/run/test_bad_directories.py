"""Untrusted weights and run directories: one line, exit code 1, and nothing is run or written."""

import dataclasses
import functools
import json
import os
import pickle
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from attacks.encoders.loading import POCKET_WEIGHTS
from attacks.run import compose
from attacks.runtime.folders import refuse_links
from tests.helpers.wrong import desk as desk


class Touches:
    """A pickle that writes a file when it is read."""

    def __reduce__(self):
        return (open, ("mark", "w"))


def program(path):
    torch.save({"a": torch.zeros(1), "b": Touches()}, path)


def lacking(path):
    state = load_file(POCKET_WEIGHTS)
    state.pop(next(name for name, weight in state.items() if weight.dim() > 1))
    save_file(state, path)


#: File name -> (what writes it; the error). All other files: tests/encoders/test_weights.py.
WEIGHT_FILES = {
    "program.pth": (program, "refused"),
    "pickle.safetensors": (lambda p: p.write_bytes(pickle.dumps(Touches())), "not a safetensors file"),
    "missing.safetensors": (lacking, "1 keys missing"),
    "pipe.safetensors": (os.mkfifo, "plain file|do not exist"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHT_FILES)
def test_bad_weights_give_a_one_line_error(desk, name):
    write, reason = WEIGHT_FILES[name]
    path = desk.given / name
    write(path)
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
