"""Runs of a perturbation that pictures share: made from some clusters, judged on others."""

import json

import pytest
import torch
from safetensors.torch import load_file

from attacks import verify
from attacks.data.gallery import tiles
from attacks.data.images import save_image
from attacks.evaluation.per_image import arms_table
from attacks.gate.decide import decided_row
from attacks.gate.policy import Requirement
from attacks.report.answer import NOT_HELD_OUT, answer, percent
from attacks.report.comparison import ComparedRuns, write_page
from attacks.report.runs import collect
from attacks.runtime.tables import read_rows
from tests.helpers.recomputation import from_rows, leaves, read, rows
from tests.helpers.runs import call

TINY = ["data=folder", "data.size=32", "data.count=null", "attack.steps=2", "attack.views=2", "evaluate.views=4"]
TINY += ["evaluate.refine=0", "evaluate.wide=1.5", "evaluate.pipeline=pil_box", "evaluate.layers=[stem]"]
KINDS = {
    "universal": ["config=smoke", "perturbation.shared=true", "objective=mixed"],  # which reads the whole gallery
    "patch": [
        "config=patch",
        "sanity=none",
        "perturbation.size=[8,8]",
        "objective=infonce",
        "objective.target=another",
    ],
    "one each": ["config=smoke", "objective=mixed"],
}


def run(folder, pictures, *words, sides=None):
    """A run on pictures that are its gallery, too."""
    folder.mkdir()
    sides = sides or [""] * len(pictures)
    lines = [f"{i:02}.png,{side}" for i, side in enumerate(sides)]
    for i, image in enumerate(pictures):
        save_image(folder / f"{i:02}.png", image)
    (folder / "list.csv").write_text("\n".join(["path,split", *lines]))
    data_words = [f"data.path={folder / 'list.csv'}", f"data.gallery={folder / 'list.csv'}"]
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, *TINY, *words, *data_words, f"hydra.run.dir={folder / 'run'}") == 0
    return folder / "run"


@pytest.fixture(scope="module")
def pictures():
    return tiles(64).spread(12).images[:, :, ::2, ::2]


@pytest.fixture(params=[*KINDS][:2])
def shared(request, shared_runs, pictures):
    folder = shared_runs.folder(
        f"held out, {request.param}", lambda folder: run(folder / "a", pictures, *KINDS[request.param])
    )
    return request.param, folder / "a" / "run"


def split_of(folder):
    return {row["picture"]: row["split"] for row in rows(folder, "per_image")}


@pytest.mark.slow
def test_held_out_pictures_do_not_change_the_perturbation(shared, tmp_path, pictures):
    kind, folder = shared
    words = [*split_of(folder).values()]
    fit, held_out = ([i for i, word in enumerate(words) if word == entry] for entry in ("fit", "judge"))
    assert len(fit) == len(held_out) == 6
    other = pictures.clone()
    other[held_out] = torch.rand(other[held_out].shape, generator=torch.Generator().manual_seed(1))
    other_run = run(tmp_path / "b", other, *KINDS[kind])
    assert (folder / "steps.csv").read_bytes() == (other_run / "steps.csv").read_bytes()
    deltas, other_deltas = (load_file(entry / "perturbation.safetensors") for entry in (folder, other_run))
    assert all(len(delta) == 1 and torch.equal(delta, other_deltas[arm]) for arm, delta in deltas.items())
    assert read(folder)["arms"]["eot"]["cosine"] != read(other_run)["arms"]["eot"]["cosine"]


@pytest.mark.slow
def test_all_numbers_are_over_the_held_out_rows(shared):
    folder, content = shared[1], read(shared[1])
    table = rows(folder, "per_image")
    from_table = leaves(from_rows([row for row in table if row["split"] == "judge"], "success"))
    for place, value in from_table.items():
        expected_value = pytest.approx(value, abs=1e-9) if isinstance(value, float) else value
        assert leaves(content)[place] == expected_value, place
    assert content["primary"]["clusters"] == 6 and content["primary"]["p"] is not None
    split_names = json.loads((folder / "manifest.json").read_text())["primary"]["split"]
    assert {name: word for word, names in split_names.items() for name in names} == split_of(folder)
    assert {row["picture"] for row in rows(folder, "detection")} == {*split_names["judge"]}
    fit = content["split"]["arms"]["same"]["eot"]["success"]
    subset = [row for row in table if (row["split"], row["arm"], row["bank"]) == ("fit", "eot", "same")]
    shares = [float(row["success"]) for row in subset]
    assert fit == pytest.approx({"mean": sum(shares) / 6, "low": min(shares), "high": max(shares), "kind": "range"})
    assert f"made from: {percent(fit)}." in answer(content).limits and verify(folder).passed


@pytest.mark.slow
def test_without_held_out_pictures_no_figure_is_of_a_split(tmp_path, pictures):
    folder = run(tmp_path / "a", pictures[:9], *KINDS["universal"])
    content, table = read(folder), rows(folder, "per_image")
    assert {*split_of(folder).values()} == {"fit"} and f"{NOT_HELD_OUT}." in answer(content).limits
    sections = ("arms", "wide", "primary", "comparisons", "drift", "detection")
    kinds = {value for place, value in leaves(content).items() if place[0] in sections and place[-1] == "kind"}
    assert kinds == {"range"}
    assert content["primary"]["p"] is None and content["primary"]["needed"] == 12 and verify(folder).passed
    for of in ("mean", "p10"):
        assert decided_row(Requirement("cosine", "eot", of=of, at_least=-1), table, False).verdict == "UNDECIDED"


@pytest.mark.slow
def test_a_column_chooses_and_pictures_of_their_own_have_no_split(tmp_path, pictures):
    sides = ["judge", "fit", "fit"]
    folder = run(tmp_path / "a", pictures[:3], *KINDS["patch"], sides=sides)
    assert [*split_of(folder).values()] == sides and "With 1 independent picture," in answer(read(folder)).limits
    subset = run(tmp_path / "b", pictures[:3], *KINDS["one each"], sides=sides)
    assert "split" not in rows(subset, "per_image")[0] and "split" not in read(subset)
    assert "split (perturbation.shared=true)" in json.loads((subset / "manifest.json").read_text())["notes"][-1]
    assert arms_table(rows(subset, "per_image"))["same"]["eot"].items() <= read(subset)["arms"]["eot"].items()


@pytest.mark.slow
def test_minibatches_of_some_clusters_are_judged_on_the_same_pictures(tmp_path, pictures):
    words = ["config=smoke", "perturbation.shared=true", "data.fit=4", "attack.pictures=2", "attack.steps=5"]
    folders = [run(tmp_path / name, pictures, *words, *more) for name, more in (("a", []), ("b", ["data.fit=6"]))]
    split, split_of_all = (
        json.loads((folder / "manifest.json").read_text())["primary"]["split"] for folder in folders
    )
    assert split["judge"] == split_of_all["judge"] and len(split["judge"]) == len(split_of_all["fit"]) == 6
    assert {*split["fit"]} < {*split_of_all["fit"]} and len(split["fit"]) == 4
    eot = [row for row in rows(folders[0], "steps") if row["arm"] == "eot"]
    assert [int(row["evals"]) for row in eot] == [4 * (step + 1) for step in range(5)]  # two views of two pictures
    first, other = (load_file(folder / "perturbation.safetensors")["eot"] for folder in folders)
    assert not torch.equal(first[:1], other[:1]) and all(verify(folder).passed for folder in folders)
    write_page(ComparedRuns(*collect({folder: folder.parent.name for folder in folders})), tmp_path)
    table = read_rows(tmp_path / "index.csv")
    assert [row["fit_pictures"] for row in table] == ["4", "6"]
