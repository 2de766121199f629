"""Untrusted weights and run directories: one line, exit code 1, and nothing is run or written."""

import dataclasses
import functools
import json
import os
import pickle

import pytest
import torch

from attacks import load_encoder
from attacks.experiment.job import job, resume
from attacks.run import compose
from attacks.runtime.untrusted import refuse_links
from tests.helpers.wrong import refused


class Touches:
    """A pickle that writes a file when it is read."""

    def __reduce__(self):
        return (open, ("mark", "w"))


def program(path):
    torch.save({"a": torch.zeros(1), "b": Touches()}, path)


#: File name of weights -> (what writes it; the error). All others: tests/encoders/test_weights.py.
WEIGHT_FILES = {
    "program.pth": (program, "refused"),
    "pickle.safetensors": (lambda p: p.write_bytes(pickle.dumps(Touches())), "not a safetensors file"),
    "pipe.safetensors": (os.mkfifo, "plain file|do not exist"),
}


@pytest.mark.parametrize("name", WEIGHT_FILES)
def test_weights_that_hold_a_program_are_refused_in_one_line(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write, reason = WEIGHT_FILES[name]
    write(tmp_path / name)
    refused(f"{name}.*({reason})", load_encoder, "pocket", weights=name)


@functools.cache
def manifest_text():
    """The manifest of a run that was stopped, as text."""
    config = dataclasses.asdict(compose("smoke"))
    decision = {key: config["engine"][key] for key in ("layout", "precision", "fold", "chunk")}
    message = {"config": config, "preset": "smoke", "overrides": [], "engine": {"decision": decision}, "threads": 1}
    return json.dumps(message)


def manifest(**changes):
    """The same, with values replaced by dotted names (`__` for a dot)."""
    message = json.loads(manifest_text())
    for key, value in changes.items():
        *path_to, last = key.split("__")
        functools.reduce(lambda node, part: node[part], path_to, message)[last] = value
    return json.dumps(message)


#: Content of a directory -> its files, and the error of `resume=`.
MANIFESTS = {
    "nothing": ({}, "manifest.json"),
    "an empty manifest": ({"manifest.json": ""}, "is not JSON"),
    "a deep manifest": ({"manifest.json": "[" * 10**6}, "is not JSON"),
    "a number that is none": ({"manifest.json": lambda: manifest(threads=float("nan"))}, "."),
    "bytes": ({"manifest.json": "\udcff\udcfe"}, "is not JSON"),
    "a large manifest": ({"manifest.json": lambda: manifest_text() + " " * 65 * 2**20}, "larger than 64 MiB"),
    "a configuration in words": ({"manifest.json": lambda: manifest(config="smoke")}, "no `config`"),
    "a target": ({"manifest.json": lambda: manifest(config__encoder__weights={"_target_": "os.system"})}, "_target_"),
    "the environment": ({"manifest.json": lambda: manifest(config__seed="${oc.env:HOME}")}, "environment"),
    "steps in words": ({"manifest.json": lambda: manifest(config__attack__steps="many")}, "steps"),
    "a program": (
        {"manifest.json": lambda: manifest(config__encoder={"name": "torchscript", "model": "x.pt"})},
        "a run directory may not choose it",
    ),
    "a server": (
        {"manifest.json": lambda: manifest(config__tracker={"name": "wandb", "mode": "online", "project": "x"})},
        "sends the run over the network",
    ),
    "no decision": ({"manifest.json": lambda: manifest(engine=None)}, "no engine decision"),
    "a finished run": ({"manifest.json": manifest_text, "metrics.json": "{}"}, "is finished"),
    "pictures elsewhere": ({"manifest.json": manifest_text, "pictures": "link"}, "pictures` is a link"),
    "a manifest that is a pipe": ({"manifest.json": "pipe"}, "does not exist|plain file|there is no"),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_bad_run_directory_gives_a_one_line_error(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    files, reason = MANIFESTS[name]
    for folder in ("elsewhere", "run"):
        (tmp_path / folder).mkdir()
    for file, content in files.items():
        path = tmp_path / "run" / file
        content = content() if callable(content) else content
        if content == "link":
            path.symlink_to(tmp_path / "elsewhere")
        elif content == "pipe":
            os.mkfifo(path)
        else:
            path.write_bytes(content.encode(errors="surrogateescape"))
    refused(reason, resume, tmp_path / "run")
    assert {path.name for path in tmp_path.rglob("*")} == {"elsewhere", "run", *files}


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


@pytest.mark.parametrize(("shard", "environment"), [("0/2", {}), (None, {"SUBMITIT_EXECUTOR": "slurm"})])
def test_a_run_that_would_remove_its_own_results_is_refused(tmp_path, monkeypatch, shard, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    run = dataclasses.replace(compose("smoke", ["overwrite=true"]), shard=shard)
    refused("^`overwrite` must be false", job, run, tmp_path / "out", "smoke", [])
