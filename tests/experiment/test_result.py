"""The perturbation of a finished run, used again: on other pictures, and as a start."""

import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

from attacks import PGD, bank, load_encoder, tiles, verify
from attacks.commands import main
from attacks.experiment import arms
from attacks.experiment.result import NAME, read_result
from attacks.runtime.tables import read_rows
from attacks.schema.composition import compose
from attacks.study.assembly import check_attack
from tests.helpers.liars import combine, delete, entry, file_bytes, tensors
from tests.helpers.recomputation import read
from tests.helpers.runs import call
from transforms import Brightness, Compose

TINY = ["data.size=64", "attack.steps=2", "attack.views=2", "evaluate.views=8", "evaluate.refine=0", "sanity=none"]
TINY += ["transforms=identity", "+transforms.stages.brightness.amount=[-0.2,0.2]"]
KINDS = {"universal": ["config=smoke", "perturbation.shared=true", *TINY, "data.count=10"]}
KINDS["patch"] = ["config=patch", "perturbation.size=[8,8]", *TINY, "data.count=10"]


def pixels(path):
    return torch.from_numpy(np.array(Image.open(path))).permute(2, 0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_applied_to_the_held_out_pictures_it_scores_what_the_run_did(kind, shared_runs, tmp_path, capsys):
    folder = shared_runs(*KINDS[kind])
    for side, names in {side: read(folder)["split"][side] for side in ("fit", "judge")}.items():
        (tmp_path / side).mkdir()
        for name in names:
            shutil.copy(folder / "pictures" / "clean" / f"{name}.png", tmp_path / side)
    assert main(["apply", str(folder), str(tmp_path / "judge"), "--out", str(tmp_path / "eot")]) == 0
    files = sorted((tmp_path / "eot").iterdir())
    assert len(files) == 5
    for path in files:
        assert torch.equal(pixels(path), pixels(folder / "pictures" / "eot" / path.name))
        assert kind == "patch" or (pixels(path).int() - pixels(tmp_path / "judge" / path.name)).abs().max() <= 16
    assert main(["judge", str(folder), "--data", str(tmp_path / "judge"), "--out", str(tmp_path / "scores")]) == 0
    content, words = read(folder)["arms"], map(str, ("judge", folder, "--data", tmp_path / "fit"))
    for row in read_rows(tmp_path / "scores" / "transfer.csv"):  # against another gallery, so only the cosine
        assert float(row["cosine"]) == pytest.approx(content[row["arm"]]["cosine"]["mean"], abs=1e-6)
    assert main([*words]) == 1 and "pictures that no RUN was made from" in capsys.readouterr().err
    if kind == "universal":
        encoder, amount = load_encoder("pocket"), Brightness((-0.2, 0.2))
        views, gallery, scores = bank(Compose([amount]), 8, seed=0, purpose="evaluate"), tiles(64), []
        embeddings = F.normalize(encoder(gallery.images), dim=1)
        for path in files:
            row, shift = gallery.names.index(path.stem), views.transforms.values(views.u)[:, :, None, None]
            alike = F.normalize(encoder((pixels(path) / 255 + shift).clamp(0, 1)), dim=1) @ embeddings.T
            scores.append(torch.stack([(alike.argmax(1) != row).float().mean(), alike[:, row].mean()]))
        expected = torch.tensor([content["eot"][measure]["mean"] for measure in ("success", "cosine")])
        assert torch.allclose(torch.stack(scores).mean(0), expected, atol=0.005)


@pytest.mark.slow
def test_an_attack_goes_on_from_the_deltas_of_the_same_pictures(tmp_path, monkeypatch, capsys):
    problems, run_steps = [], arms.run_steps
    monkeypatch.setattr(arms, "run_steps", lambda case, *x, **y: problems.append(case) or run_steps(case, *x, **y))
    for name, image in zip("abc", tiles(64).spread(3).images, strict=True):
        Image.fromarray((image * 255).byte().permute(1, 2, 0).numpy()).save(tmp_path / f"{name}.png")

    def run(name, pictures, *words):
        (path := tmp_path / f"{name}.csv").write_text("\n".join(["path", *(f"{x}.png" for x in pictures)]))
        source = [*TINY, "data=folder", "data.count=null", "data.gallery=bundled", f"data.path={path}"]
        return call(monkeypatch, "config=smoke", *source, *words, f"hydra.run.dir={tmp_path / name}")

    start = f"attack.start_from={tmp_path / 'one'}"
    assert run("one", "abc") == 0
    problems.clear()
    assert run("two", "ca", "perturbation.eps=4/255", "objective=mixed", start) == 0
    eot, *baselines = problems
    near = (eot.images + load_file(tmp_path / "one" / NAME)["eot"][[2, 0]].clamp(-4 / 255, 4 / 255)).clamp(0, 1)
    assert torch.allclose(eot.images + eot.first, near, atol=1e-7) and {case.first for case in baselines} == {None}
    record = {"run": str(tmp_path / "one"), "sha256": read(tmp_path / "one")["files"], "gradients": 4}
    assert read(tmp_path / "two")["threat"]["start_from"] == record and verify(tmp_path / "two").passed
    steps = [row["arm"] for row in read_rows(tmp_path / "two" / "steps.csv")]
    assert steps.count("eot") == 2 and steps.count("one_view") == 8  # of two views: 4 gradients before, and 4 here
    for pictures, word, message in (
        ("ab", "seed=1", "`attack.start_from` must be a run of the same pictures"),
        ("ca", "perturbation=l2", "(perturbation, shared, height, width), ('l2', False, 64, 64)"),
    ):
        assert run("three", pictures, word, start.replace("one", "two")) == 1
        assert message in capsys.readouterr().err
    combine(entry("metrics.json", "seed", value=7), file_bytes)(tmp_path / "one")
    assert "the run of attack.start_from was" in str(verify(tmp_path / "two"))


@pytest.mark.slow
def test_no_held_out_picture_led_to_a_shared_start(shared_runs, tmp_path, monkeypatch, capsys):
    folder, out = shared_runs(*KINDS["universal"]), f"hydra.run.dir={tmp_path / 'run'}"
    assert call(monkeypatch, *KINDS["universal"], f"attack.start_from={folder}", out, "seed=1") == 1
    assert "is not attacked here: keep its data and seed" in capsys.readouterr().err
    assert call(monkeypatch, *KINDS["universal"], f"attack.start_from={folder}", out) == 0


@pytest.mark.parametrize("word", ["attack=radius", "attack.restarts=2", "optimiser=label_only"])
def test_an_attack_of_other_starts_takes_none(word):
    with pytest.raises(ValueError, match=r"`attack.start_from` is the one start of an attack; \S+ has others"):
        check_attack(compose("smoke", [word, "attack.start_from=run"]), PGD())


def data(change):
    return lambda folder: (folder / NAME).write_bytes(change((folder / NAME).read_bytes()))


def seal(change):
    return combine(data(change), file_bytes)


def delta(change):
    return combine(tensors("perturbation", lambda arms: arms.update(eot=change(arms["eot"]))), file_bytes)


def link(target):
    return lambda folder: (folder / NAME).symlink_to(shutil.move(folder / NAME, folder.parent / target))


#: Damages of what a run has stored of its perturbation, by how they are named.
DAMAGES = {
    f"{NAME}: its sha256 is": [data(lambda x: x[:-1]), data(lambda x: x[:-1] + b"?"), data(lambda x: b"")],
    f"{NAME}: it is missing": [delete(NAME), link("run/copy")],
    "is a link that leads out of its run directory": [link("copy")],
    "metrics.json` does not exist": [delete("metrics.json")],
    f"{NAME}: it cannot be read": [seal(lambda x: x[:-1]), seal(lambda x: x + b"?"), seal(lambda x: b"{}")],
    "within eps": [delta(change) for change in (lambda x: x * torch.nan, lambda x: x / 0, lambda x: x + 0.5)],
    "eot must be F32": [delta(change) for change in (torch.Tensor.double, torch.Tensor.half, torch.Tensor.byte)],
    "F32 of [2, 3": [delta(lambda x: x[:1]), delta(lambda x: x[:, :1]), delta(lambda x: x.repeat(1, 1, 4, 4))],
    "its arms are": [combine(tensors("perturbation", lambda arms: arms.pop("eot")), file_bytes)],
    "`pixels` is missing": [combine(entry("metrics.json", "pixels", value="x"), file_bytes)],
}
CASES = [(message, edit) for message, edits in DAMAGES.items() for edit in edits]


@pytest.mark.slow
@pytest.mark.parametrize(("message", "edit"), CASES)
def test_no_damage_of_a_stored_perturbation_is_used(message, edit, shared_runs, tmp_path):
    shutil.copytree(shared_runs("config=smoke", *TINY), tmp_path / "run")
    edit(tmp_path / "run")
    with pytest.raises((ValueError, OSError)) as error:
        read_result(tmp_path / "run")
    assert message in str(error.value) and str(tmp_path) in str(error.value) and "\n" not in str(error.value)
