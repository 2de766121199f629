"""The attacks of the command line: every choice runs, and its checks are shown and stored."""

import json
import re

import imagehash
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from attacks import load_encoder
from attacks.data.images import file_names, save_image
from attacks.experiment import job
from attacks.experiment.unit import joined_units
from attacks.experiment.view_scores import view_scores
from attacks.schema.encoder import SAMPLING
from attacks.schema.groups import CHOICES
from attacks.study import encoder as subject
from tests.helpers.galleries import all_pictures
from tests.helpers.runs import call

SHORT = ("config=smoke", "data.count=1", "evaluate.views=4", "evaluate.refine=1", "attack.steps=2")
#: Overrides that a choice needs.
NEEDS = {
    "toward": ["objective.target=another"],
    "l2": ["perturbation.eps=4"],
    "l1": ["perturbation.eps=50"],
    "l0": ["perturbation.eps=50", "attack.steps=8"],
    "bits": ["encoder=phash", "transforms=web"],
    "suite": ["attack.nearest=1"],
    "apgd": ["attack.steps=3"],
    "sgd": ["attack.steps=8"],
    "phash": ["attack.steps=12", "transforms=camera"],
}
GROUPS = {
    **{group: [name for name in CHOICES[group] if name != "plugin"] for group in ("objective", "optimiser")},
    "perturbation": ["l2", "l1", "l0"],
    "penalty": ["tv", "ssim"],
    "attack": ["suite", "radius"],
    "encoder": ["phash"],
}


def pixels(path):
    with Image.open(path) as image:
        return torch.from_numpy(np.array(image))


def content(folder):
    return json.loads((folder / "metrics.json").read_text())


OPTIONS = """perturbation.grey=true|perturbation.keep=8|perturbation.smooth=2|attack.restarts=2
perturbation.shared=true perturbation.keep=8|attack.adversary=4 attack.refine=1|optimiser=pgd optimiser.nesterov=true
objective.anchor=paired|objective.anchor=views|transforms=di"""
CASES = [f"{group}={name}" for group, names in GROUPS.items() for name in names] + re.split(r"[|\n]", OPTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("words", CASES)
def test_every_choice_and_option_runs_and_stays_in_its_budget(words, tmp_path, monkeypatch):
    folder, name = tmp_path / "run", words.partition("=")[2]
    assert call(monkeypatch, *SHORT, *words.split(), *NEEDS.get(name, []), f"hydra.run.dir={folder}") == 0
    arms = content(folder)["arms"]
    absent = {"one_view"} if name in SAMPLING else set()  # a step of which takes several losses
    assert set(arms) == {"clean", "noise", "no_eot", "one_view", "eot"} - absent or words in OPTIONS
    assert arms["eot"]["cosine"]["mean"] < arms["clean"]["cosine"]["mean"] or name == "toward"
    assert arms["eot"]["budget_used"] <= 1 + 1e-4


@pytest.mark.slow
def test_a_patch_is_saved_as_a_texture_and_in_the_pictures(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    overrides = ("config=patch", "sanity=none", *SHORT[1:], f"hydra.run.dir={folder}")
    assert call(monkeypatch, *overrides) == 0
    texture_file = pixels(folder / "patch.png")
    assert texture_file.shape == (48, 48, 3)
    texture = load_file(folder / "perturbation.safetensors")["eot"][0]
    assert torch.equal((texture * 255).round().byte().permute(1, 2, 0), texture_file)
    clean, attacked_picture = (pixels(next((folder / "pictures" / arm).iterdir())) for arm in ("clean", "eot"))
    change = (clean != attacked_picture).any(2)
    assert change[45:83, 45:83].double().mean() > 0.9 and not change[:36].any() and not change[:, 92:].any()


class EndOfTest(ValueError):
    """These tests need no report, and it takes time."""


@pytest.fixture
def outcomes(monkeypatch):
    """The study and the scores of each run, which then ends."""
    result = []

    def end(_, bench, results_and_failures, *__):
        result.append((bench.study, view_scores(bench, joined_units(results_and_failures[0], shared=False))))
        raise EndOfTest

    monkeypatch.setattr(job, "_tables", end)
    return result


def file_bits(path):
    with Image.open(path) as image:
        return torch.from_numpy(imagehash.phash(image).hash).flatten()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])  # the encoder itself, and as the engine wraps it
def test_a_hash_is_evaluated_on_the_bits_of_the_saved_files(layout, outcomes, tmp_path, monkeypatch):
    overrides = ("encoder=phash", "objective=bits", "transforms=identity", "data.count=2", f"engine.layout={layout}")
    folder = tmp_path / "run"
    call(monkeypatch, *SHORT, *overrides, f"hydra.run.dir={folder}")
    ((parts, outcome),) = outcomes
    names = file_names(parts.queries.names)
    files = ([folder / "pictures" / arm / name for name in names] for arm in ("clean", "eot"))
    clean, eot = (torch.stack([*map(file_bits, paths)]) for paths in files)
    flips, result = (eot != clean).sum(1), outcome.scores["same"]["eot"]
    assert (flips > 8).all()
    assert torch.equal(result.cosine, (1 - 2 * flips[:, None] / 64).expand(2, 4).to(result.cosine))
    # And retrieved by them: no row of the gallery differs in fewer bits than the nearest one.
    for number, image in enumerate(all_pictures(parts.gallery)):
        save_image(tmp_path / f"{number}.png", image)
    gallery = torch.stack([file_bits(tmp_path / f"{number}.png") for number in range(len(parts.gallery))])
    far = (gallery != eot[:, None]).sum(2)
    assert torch.equal(far.gather(1, result.nearest), far.amin(1, True).expand(2, 4))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["fixed", "auto"])
@pytest.mark.parametrize("anchor", ["own", "nobody"])
def test_hooks_are_removed_after_a_run_or_its_failure(engine, anchor, outcomes, tmp_path, monkeypatch):
    loads = []
    monkeypatch.setattr(subject, "load_encoder", lambda *a, **k: loads.append(load_encoder(*a, **k)) or loads[-1])
    overrides = ("objective=layers", f"objective.anchor={anchor}", f"engine={engine}")
    call(monkeypatch, *SHORT, *overrides, f"hydra.run.dir={tmp_path / 'run'}")
    assert len(outcomes) == (anchor == "own")  # the other is refused, in the run or while the engine measures
    assert not any(module._forward_hooks for encoder in loads for module in encoder.modules())
    assert len(loads) == 1


@pytest.mark.slow
def test_the_checks_are_in_all_outputs_and_a_failed_one_gives_the_first_warning(tmp_path, monkeypatch, capsys):
    # Steps a thousand times too short: the checks must fail.
    folder = tmp_path / "run"
    overrides = ("sanity=short", "sanity.pictures=1", "sanity.steps=8", "optimiser=sgd", "optimiser.lr=1e-5")
    assert call(monkeypatch, *SHORT[:-1], "attack.steps=8", *overrides, f"hydra.run.dir={folder}") == 0
    assert "active test" in content(folder)["sanity"]["failed"]
    lines, page = capsys.readouterr().out.splitlines(), (folder / "report.html").read_text()
    assert next(line for line in lines if line.startswith("warning:")).startswith(
        "warning: A stronger attack may exist (the check"
    )
    assert page.index("A stronger attack may exist") < page.index("Five arms")
    words = {check["name"]: check["verdict"] for check in content(folder)["sanity"]["checks"]}
    assert {"active test", "largest radius", "one step", "gradient-free", "transfer", "masking"} <= set(words)
    for name, word in words.items():  # the terminal has those that did not pass
        assert name in page and (word == "passed" or any(line.startswith(name) for line in lines)), name
