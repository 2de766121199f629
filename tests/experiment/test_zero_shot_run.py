"""Zero-shot classification with a two-tower encoder of colours and their names."""

import json
import sys

import pytest
import torch

from attacks.data.images import save_image
from tests.helpers.runs import call

SOURCE = """
import torch
from torch import nn

COLOURS = {"red": (1.0, 0.0, 0.0), "green": (0.0, 1.0, 0.0), "blue": (0.0, 0.0, 1.0)}

def texts(sentences):
    return torch.stack([torch.tensor(COLOURS[text.rstrip(".").rpartition(" ")[2]]) for text in sentences])

class Colour(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.texts = texts

    def forward(self, images):
        return self.weight * images.mean((2, 3))
"""
COMMON = [
    "config=smoke",
    "task=classification",
    "transforms=identity",
    "data=folder",
    "data.size=16",
    "data.count=null",
]
COMMON += ["encoder=plugin", "encoder.model=colour"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Pictures nearly of one colour; the classes; and a package with the encoder."""
    shades = {"a": (0.60, 0.50, 0.40), "b": (0.40, 0.60, 0.50), "c": (0.40, 0.45, 0.55)}
    for name, shade in shades.items():
        save_image(tmp_path / f"{name}.png", torch.tensor(shade)[:, None, None].expand(3, 16, 16))
    (tmp_path / "classes.txt").write_text("red\ngreen\nblue\n")
    (tmp_path / "known.csv").write_text("path,identity\na.png,red\nb.png,green\nc.png,red\n")
    (tmp_path / "colour_towers.py").write_text(SOURCE)
    about = tmp_path / "colour_towers-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: colour_towers\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[viewproof.encoders]\ncolour = colour_towers:Colour\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("colour_towers", None)


def run(monkeypatch, folder, *arguments):
    out = folder / "run"
    classes = f"task.classes={folder / 'classes.txt'}"
    assert call(monkeypatch, *COMMON, classes, f"hydra.run.dir={out}", *arguments) == 0
    return json.loads((out / "metrics.json").read_text()), json.loads((out / "manifest.json").read_text())


@pytest.mark.slow
def test_recall_is_the_accuracy_over_the_classes(folder, monkeypatch, capsys):
    """The third picture is blue with the label red: the encoder is right about two of three."""
    metrics, manifest = run(monkeypatch, folder, f"data.path={folder / 'known.csv'}", "perturbation.eps=64/255")
    assert metrics["classes"] == ["red", "green", "blue"] and metrics["gallery"] == 3
    assert metrics["arms"]["clean"]["recall_at_1"]["mean"] == pytest.approx(2 / 3)
    assert metrics["arms"]["clean"]["cosine"]["mean"] == pytest.approx(1)  # of the picture to itself, not to a text
    assert not any("no identity" in note for note in manifest["notes"])
    assert "3 classes, task.classes" in (folder / "run" / "report.html").read_text()


@pytest.mark.slow
def test_without_identities_the_encoder_classifies_the_pictures(folder, monkeypatch, capsys):
    metrics, manifest = run(monkeypatch, folder, f"data.path={folder}")
    assert metrics["arms"]["clean"]["recall_at_1"]["mean"] == 1
    assert any("3 pictures have no identity" in note for note in manifest["notes"])
    assert metrics["guessed"] == 3 and "its agreement with itself" in (folder / "run" / "report.html").read_text()
    assert manifest["encoder"]["package"] == "colour_towers 1"


@pytest.mark.slow
def test_a_targeted_attack_reaches_the_class_it_names(folder, monkeypatch, capsys):
    """The margins between the colours are known: 0.2 in two channels is more than 8/255, less than 64/255."""
    words_of_run = [f"data.path={folder / 'a.png'}", "objective=toward", "objective.target=blue", "attack.steps=12"]
    words_of_run += ["overwrite=true"]
    for eps, expected in (("8/255", 0), ("64/255", 1)):
        metrics, _ = run(monkeypatch, folder, *words_of_run, f"perturbation.eps={eps}")
        assert metrics["arms"]["eot"]["success"]["mean"] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words_of_run", "message"),
    [
        (["task.classes={}/none.txt"], "none.txt"),
        (["data.path={}/wrong.csv"], "'mauve' of a picture is no class"),
        (["task.templates=[a photo]"], "`task.templates`"),
        (["encoder=pocket"], "`task=classification` needs logits, and encoder=pocket answers an embedding"),
        (["task.classes={}/alike.txt"], "'red' and 'deep red' are one text"),
        (["encoder.features=[output]"], "`task.classes` are compared with what the encoder answers itself"),
        (["data.gallery={}"], "`data.gallery` has no use with task=classification"),
        (["objective=toward", "objective.target=blue", "objective.metric=l2"], "`objective.metric=l2` toward"),
        (["objective=toward", "objective.target=mauve"], "a class of task.classes"),
        (["objective=toward", "objective.target=red"], "is the class of one of the attacked pictures"),
    ],
    ids=str,
)
def test_an_impossible_setting_gives_a_one_line_error(folder, monkeypatch, capsys, words_of_run, message):
    (folder / "wrong.csv").write_text("path,identity\na.png,mauve\n")
    (folder / "alike.txt").write_text("red\nblue\ndeep red\n")
    base = [f"data.path={folder / 'a.png'}", f"task.classes={folder / 'classes.txt'}"]
    base += [*COMMON, f"hydra.run.dir={folder / 'run'}"]
    values = dict(word.replace("{}", str(folder)).split("=", 1) for word in (*base, *words_of_run))
    if "pocket" in values.values():
        del values["encoder.model"]
    assert call(monkeypatch, *(f"{key}={value}" for key, value in values.items())) == 1
    errors = [line for line in capsys.readouterr().err.strip().splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
