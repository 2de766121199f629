"""What untrusted weights, presets and run directories may not do: refused in one line, nothing run or written."""

import dataclasses
import functools
import importlib
import json
import os
import pickle
from types import SimpleNamespace

import pytest
import torch

from attacks import load_encoder
from attacks.evaluation.classes import class_embeddings
from attacks.experiment.job import job, resume
from attacks.run import CONFIGS, compose
from attacks.runtime.untrusted import refuse_links
from attacks.schema import presets
from attacks.schema.composition import refuse_unchecked, stored_preset
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
    "bytes": ({"manifest.json": "\udcff\udcfe"}, "is not JSON"),
    "a large manifest": ({"manifest.json": lambda: manifest_text() + " " * 65 * 2**20}, "larger than 64 MiB"),
    "a finished run": ({"manifest.json": manifest_text, "metrics.json": "{}"}, "is finished"),
    "pictures elsewhere": ({"manifest.json": manifest_text, "pictures": "link"}, "pictures` is a link"),
    "a manifest that is a pipe": ({"manifest.json": "pipe"}, "does not exist|plain file|there is no"),
}
ONLINE = {"name": "wandb", "mode": "online", "project": "x"}
#: The same, of a manifest with other values.
CHANGES = {
    "a number that is none": ({"threads": float("nan")}, "threads|NaN|nan"),
    "a configuration in words": ({"config": "smoke"}, "no `config`"),
    "a target": ({"config__encoder__weights": {"_target_": "os.system"}}, "_target_"),
    "the environment": ({"config__seed": "${oc.env:HOME}"}, "environment"),
    "steps in words": ({"config__attack__steps": "many"}, "steps"),
    "a program": ({"config__encoder": {"name": "torchscript", "model": "x.pt"}}, "directory may not choose it"),
    "a server": ({"config__tracker": ONLINE}, "sends the run over the network"),
    "no decision": ({"engine": None}, "no engine decision"),
}
for case, (values, error) in CHANGES.items():
    MANIFESTS[case] = {"manifest.json": functools.partial(manifest, **values)}, error


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
    refused("out` is a link", refuse_links, tmp_path / "link")


@pytest.mark.parametrize(("shard", "environment"), [("0/2", {}), (None, {"SUBMITIT_EXECUTOR": "slurm"})])
def test_a_run_that_would_remove_its_own_results_is_refused(tmp_path, monkeypatch, shard, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    run = dataclasses.replace(compose("smoke", ["overwrite=true"]), shard=shard)
    refused("^`overwrite` must be false", job, run, tmp_path / "out", "smoke", [])


#: Logging as Hydra would set it up before the run: it opens the file.
LOGGING = "version: 1\nhandlers: {x: {class: logging.FileHandler, filename: MARK}}\nroot: {handlers: [x]}\n"
UNDER_HYDRA = "# @package hydra.job_logging\n"
FILES = {
    "dir/config/header.yaml": UNDER_HYDRA + LOGGING,
    "dir2/config/placed.yaml": "# @package _global_\ndefaults: [{/stuff@hydra.job_logging: y}]\n",
    "dir2/stuff/y.yaml": LOGGING,
    "dir3/hydra/job_logging/y.yaml": LOGGING,
    "elsewhere/config/key.yaml": "# @package _global_\nhydra:\n  job_logging: {LOG}\n",
    "evil.yaml": UNDER_HYDRA + LOGGING,
    "bare.yaml": LOGGING,
    "up.yaml": "defaults: [UP/evil]\n",
    "up_value.yaml": "defaults: [override /encoder: UP/evil]\n",
    "up_placed.yaml": "defaults: [UP/bare@hydra.job_logging]\n",
    "root.yaml": "defaults: [/ROOT/evil]\n",
    "dir4/encoder/theirs.yaml": "a: [{b: {_target_: os.system}}]\n",
    "quickstart.yaml": "seed: 1\n",
}
PRESETS = [["config={}/up.yaml"], ["config={}/up_value.yaml"], ["config={}/up_placed.yaml"], ["config={}/root.yaml"]]
FOLDERS = [
    ["--config-dir={}/dir", "config=header"],
    ["--config-dir", "{}/dir2", "config=placed"],
    ["--config-dir={}/dir3", "config=smoke"],
    ["--config-dir={}/dir4", "config=smoke"],
    ["--config-dir={}/linked", "config=key"],
    ["--config-d={}/elsewhere", "config=key"],
    ["hydra.searchpath=[file://{}/elsewhere]", "config=key"],
]
PATHS = [
    ["config={}/quickstart.yaml"],
    ["config=UP/evil"],
    ["config=smoke", "encoder=UP/evil"],
    ["--config-path={}/elsewhere"],
    ["-cn", "other"],
    ["--experimental-rerun={}/rerun.pickle"],
]


@pytest.fixture
def place(tmp_path):
    """The files, and a function that fills in the places in a text."""

    def fill(text):
        replacements = {"{}": str(tmp_path), "ROOT": str(tmp_path), "MARK": str(tmp_path / "mark")}
        replacements["UP"] = "/".join([".."] * len((CONFIGS / "config").parts)) + str(tmp_path)
        inside = LOGGING.rstrip().replace("\n", "\n    ")
        text = text.replace("{LOG}", f"\n    {inside}")
        for word, value in replacements.items():
            text = text.replace(word, value)
        return text

    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(fill(text))
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "config").symlink_to(tmp_path / "elsewhere" / "config")
    (tmp_path / "rerun.pickle").write_bytes(pickle.dumps(Touches()))
    return fill


@pytest.mark.parametrize("arguments", PRESETS + FOLDERS + PATHS, ids=" ".join)
def test_unchecked_presets_and_folders_are_refused_unread(place, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)

    def check(words):
        refuse_unchecked([stored_preset(word) for word in words])

    refused("refused|must name a choice|rename", check, [*map(place, arguments), "seed=1"])
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("content", ["seed: ${evaluate.views}", "a: [1, 2]\nb: ${a[0]}", "a: {b: 1, c: '${.b}'}"])
def test_a_preset_refers_to_its_own_keys(tmp_path, content):
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    presets.read_preset(path)


def test_two_presets_with_one_name_are_refused(tmp_path):
    paths = [tmp_path / folder / "mine.yaml" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_text("seed: 1\n")
    refused("b/mine.yaml` has the name of another", stored_preset, f"config={paths[0]},{paths[1]}")


@pytest.mark.slow
def test_only_the_command_line_may_choose_a_secret(tmp_path):
    preset = tmp_path / "theirs.yaml"
    preset.write_text("defaults: [/config/smoke, _self_]\nencoder: {key: VIEWPROOF_KEY}\n")
    words = ["encoder=http", "encoder.model=http://localhost:1/embed"]
    refused("names a secret that is sent, so a preset may not choose it", compose, str(preset), words)
    assert compose(str(preset), [*words, "encoder.key=VIEWPROOF_KEY"]).encoder.key == "VIEWPROOF_KEY"


@pytest.mark.parametrize("error", [KeyError("a"), RecursionError("deep\nand deeper"), ZeroDivisionError("by 0")])
def test_any_error_of_a_library_becomes_one_line(monkeypatch, error):
    def load(_):
        raise error

    monkeypatch.setattr(importlib, "import_module", lambda _: SimpleNamespace(load=load))
    with pytest.raises(ValueError, match=f"encoder timm:x cannot be made .{type(error).__name__}") as info:
        load_encoder("timm", "x")
    assert "\n" not in str(info.value) and info.value.__cause__ is error
    refused("does not take the class 'a'", class_embeddings, load, ["a"], ["{}"])
