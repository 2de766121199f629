"""Parts that this project does not have, against the built-in ones that they rewrite, to the bit."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

import attacks.experiment.job
from attacks import EOT, PGD, Away, Linf, load_encoder, robustness, solve, tiles, verify
from attacks.encoders import Panel
from attacks.schema.composition import compose
from attacks.study.assembly import build
from tests.helpers.runs import call
from tests.helpers.wrong import refused
from transforms import Affine, Compose
from transforms.geometry import Crop, Flip

SOURCE = """
from torch.nn.functional import cosine_similarity
from attacks import Linf
from transforms.colour import Gain

LINF = Linf(8 / 255)

class Steps:
    share = 0.1

    def init(self, delta, *, reach, steps):
        return self.share * reach

    def step(self, delta, estimate, state, constraint, progress):
        return constraint.step(delta, estimate.grad, state), state

class Far:
    def __call__(self, features, anchor):
        return cosine_similarity(features, anchor, dim=-1)

class Row:
    def __init__(self, gallery, power=1.0):
        self.gallery, self.power = gallery, power

    def __call__(self, features, anchor):
        return cosine_similarity(features, self.gallery[anchor], dim=-1) ** self.power

class Box:
    reach, random_start = LINF.eps, True
    start, noise, scene, descend, move, norm, quantise = (
        getattr(LINF, name) for name in "start noise scene descend move norm quantise".split()
    )

    def __init__(self, eps=8 / 255):
        self.eps = eps

class Mean:
    def __call__(self, features):
        unit = features / features.norm(dim=-1, keepdim=True)
        return features[:, 0].norm(dim=-1, keepdim=True) * unit.mean(1)

def haze(most):
    return Gain((1 - most, 1 - most))
"""
POINTS = """[viewproof.objectives]
mine = plugin_module:Far
row = plugin_module:Row
[viewproof.optimisers]
mine = plugin_module:Steps
[viewproof.perturbations]
mine = plugin_module:Box
[viewproof.defences]
mine = plugin_module:Mean
[viewproof.stages]
haze = plugin_module:haze
"""
PLAIN = {"rel_step_size": 0.1, "momentum": 0.0, "schedule": "constant"}
SMALL = {"preset": "smoke", "steps": 3, "data.size": 64, "evaluate.views": 4, "evaluate.refine": 0}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """An installed package of one module."""
    (about := tmp_path / "site" / "plugin_parts-1.2.dist-info").mkdir(parents=True)
    (about.parent / "plugin_module.py").write_text(SOURCE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin_parts\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(about.parent)
    monkeypatch.chdir(tmp_path)
    yield importlib.import_module("plugin_module")
    sys.modules.pop("plugin_module")


def test_parts_that_inherit_nothing_equal_the_built_in_ones(mine):
    images, encoder = tiles(128).images[:2], load_encoder()
    rest = {"encoder": encoder, "eot": EOT(Compose([Affine(degrees=10)]), views=2), "steps": 4}
    theirs = {"objective": Away(), "perturbation": Linf(8 / 255), "optimiser": PGD(**PLAIN)}
    ours = {"objective": mine.Far(), "perturbation": mine.Box(), "optimiser": mine.Steps()}
    best = [solve(images, encoder(images), **parts, **rest).delta for parts in (theirs, ours)]
    assert torch.equal(*best)
    del mine.Box.move
    with pytest.raises(AttributeError, match="`move` has no default, and Box lacks it: write it"):
        solve(images, encoder(images), **ours, **rest)


@pytest.mark.slow
def test_a_run_of_plugin_parts_has_the_numbers_of_the_built_in_ones(mine, monkeypatch):
    parts = {"objective": mine.Far(), "optimiser": mine.Steps(), "perturbation": mine.Box()}
    ours = robustness("pocket", out="ours", **parts, **SMALL)
    pgd = {f"optimiser.{key}": value for key, value in PLAIN.items()} | {"optimiser": "pgd", "eps": "8/255"}
    theirs = robustness("pocket", out="theirs", **pgd, **SMALL)
    assert ours.per_image == theirs.per_image and ours.metrics["threat"]["optimiser"] == "plugin_module:Steps"
    digests = ours.metrics["threat"]["plugins"]
    page = (ours.folder / "report.html").read_text()
    assert len(digests) == 3 and all(name in page and digest in page for name, digest in digests.items())
    refused(r"`optimiser` was plugin_module:Steps, given in Python.*verify\(folder, parts", verify, ours.folder)
    assert verify(ours.folder, parts=parts).passed
    words = "config=smoke perturbation.eps=8/255 attack.steps=3 data.size=64 evaluate.views=4 evaluate.refine=0"
    words += "".join(f" {group}=plugin {group}.model=mine" for group in parts) + " hydra.run.dir=installed"
    assert call(monkeypatch, *words.split()) == 0
    assert (Path("installed") / "per_image.csv").read_bytes() == (theirs.folder / "per_image.csv").read_bytes()
    assert verify("installed").passed
    Path("site/plugin_module.py").write_text(SOURCE.replace("share = 0.1", "share = 0.2"))
    importlib.reload(mine)
    problems = verify("installed").problems
    assert any("the source of optimiser mine of plugin_parts 1.2 was" in line for line in problems), problems


@pytest.mark.slow
def test_a_rule_given_in_python_or_installed_has_the_numbers_of_the_built_in_one(mine):
    plain = {**SMALL, "defence.views": 2, "transforms": "eot2d"}
    panel = Panel(load_encoder(), mine.Mean(), [Crop((0.5, 1.0)), Flip(0.5)], views=2)
    ours, theirs, installed, module = (
        robustness(encoder, out=folder, **rule, **plain)
        for folder, encoder, rule, plain in (
            ("ours", "pocket", {"defence": mine.Mean()}, plain),
            ("theirs", "pocket", {"defence": "tte"}, plain),
            ("installed", "pocket", {"defence": "plugin", "defence.model": "mine"}, plain),
            ("module", panel, {}, {key: value for key, value in plain.items() if key != "defence.views"}),
        )
    )
    assert ours.arms["eot"] == theirs.arms["eot"] == installed.arms["eot"] == module.arms["eot"]
    assert verify(installed.folder).passed and verify(ours.folder, parts={"defence": mine.Mean()}).passed


@pytest.mark.slow
@pytest.mark.parametrize("change", [None, "source", "values"])
def test_a_run_goes_on_with_the_same_part_alone(mine, change, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(attacks.experiment.job, "work", stop)
        robustness("pocket", out="run", objective=mine.Far(), **SMALL)
    part = mine.Far()
    if change == "source":
        Path("site/plugin_module.py").write_text(SOURCE.replace("dim=-1)", "dim=-1) * 2", 1))
        part = importlib.reload(mine).Far()
    elif change == "values":
        part.weight = 2.0
    if change is None:
        assert robustness("pocket", out="run", objective=part, **SMALL).arms
        return
    with pytest.raises(ValueError, match=f"the {change} of objective plugin_module:Far of Python was"):
        robustness("pocket", out="run", objective=part, **SMALL)


def study(*words):
    return build(compose("smoke", ["data.size=64", *words]))


def test_an_installed_part_is_made_with_its_arguments_and_code_is_not_named(mine, tmp_path):
    words = ["perturbation=plugin", "perturbation.model=mine", "perturbation.eps=4/255", "objective=plugin"]
    words += ["objective.model=row", "objective.arguments.power=2.0", "+transforms.stages.haze.most=0.25"]
    probe = study(*words)
    assert probe.perturbation.eps == 4 / 255 and probe.threat["norm"] == "mine" and "gain" in probe.transforms.labels
    assert {"objective row of plugin_parts 1.2", "stage haze of plugin_parts 1.2"} < probe.threat["plugins"].keys()
    for words, message in (
        (("objective=plugin", "objective.model=os:getcwd"), "`objective` was os:getcwd, given in Python"),
        (("objective=plugin", "objective.model=other"), r"must be the name of a plugin \(mine, row\); got 'other'"),
        (
            ("optimiser=plugin", "optimiser.model=mine", "optimiser.arguments.x=1"),
            "plugin mine of plugin_parts 1.2 failed",
        ),
        (("+transforms.stages.haze.least=1",), "unknown key `transforms.stages.haze.least`: known here are most"),
    ):
        refused(message, study, *words)
    (tmp_path / "theirs.yaml").write_text(
        "defaults: [smoke, override /objective: plugin]\nobjective: {model: 'os:x'}\n"
    )
    with pytest.raises(ValueError, match="`objective` was os:x, given in Python, which no directory holds"):
        build(compose(str(tmp_path / "theirs.yaml")))
    with pytest.raises(ValueError, match="`workers` must be 1 for a part in memory"):
        robustness("pocket", out="run", objective=mine.Far(), workers=2, **SMALL)
