"""A finished run is checked: honest ones pass, and what is no finished run is named. Edits are in `test_edits.py`."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import hypergeom
from torch import nn

from attacks import verify
from attacks.commands import main
from attacks.evaluation.sanity.battery import NAMES, masking
from attacks.evaluation.sanity.check import Check
from attacks.experiment.directory import misfit
from attacks.verification import judgement
from attacks.verification.records import CheckerError, row_differences, sanity_problems, value_differences
from tests.helpers.check_runs import BATTERY, SCORES, TINY, make_run
from tests.helpers.check_runs import runs as runs
from tests.helpers.check_runs import small as small
from tests.helpers.liars import cell
from tests.run.test_bad_directories import manifest


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lean", "parts", "patch"])
def test_an_honest_run_passes_as_a_copy_and_with_any_sample(runs, tmp_path, kind):
    folder = shutil.copytree(runs(kind), tmp_path / "elsewhere")
    (folder / "mine.txt").write_text("a file of the user")
    for share in (0.1, 1):
        verdict = verify(folder, share)
        assert verdict.passed and not verdict.notes, verdict
    assert "PASS" in str(verdict)


#: Runs that differ in what `verify` has to make again.
HONEST = {
    "one picture": ["data.count=1"],
    "a seed": ["seed=7"],
    "in batches": ["evaluate.batch=2"],
    "l2": ["perturbation=l2", "perturbation.eps=3"],
    "l1": ["perturbation=l1", "perturbation.eps=40"],
    "l0": ["perturbation=l0", "perturbation.eps=50"],
    "universal": ["perturbation.shared=true"],
    "grey": ["perturbation.grey=true"],
    "smooth": ["perturbation.smooth=2"],
    "toward": ["objective=toward"],
    "retrieval": ["objective=retrieval"],
    "triplet": ["objective=triplet"],
    "infonce": ["objective=infonce"],
    "verification": ["objective=verification"],
    "mixed": ["objective=mixed"],
    "layers": ["objective=layers", "objective.layers=[stages.2:mean,stages.8]"],
    "apgd": ["optimiser=apgd", "attack.restarts=2"],
    "square": ["optimiser=square"],
    "adam": ["optimiser=adam"],
    "sgd": ["optimiser=sgd"],
    "a penalty": ["penalty=tv"],
    "a risk": ["risk=cvar", "draws=antithetic", "attack.views=4"],
    "an adversary": ["attack.adversary=4"],
    "views=auto": ["attack.views=auto", "attack.steps=8"],
    "a hash": ["encoder=phash", "objective=bits", "transforms=identity"],
    "a defence": ["defence=jpeg"],
    "a defence among the views": ["transforms=resizers", "defence=random_phase", "evaluate.deploy=2"],
    "a panel": ["defence=agc", "defence.views=2"],
    "a detector": ["defence=consistency", "defence.views=2"],
    "radii of a detector": ["defence=consistency", "defence.views=2", "attack=radius"],
    "a counterattack": ["defence=ttc", "encoder.stochastic=true"],
    "drift": ["evaluate.layers=all"],
    "no views": ["transforms=identity"],
    "two dimensions": ["transforms=eot2d"],
    "a wide bank": ["evaluate.wide=1.5"],
    "maps": ["evaluate.maps=[auto]", "evaluate.curves=[auto]"],
    "left out": ["evaluate.left_out=2"],
    "formats": ["evaluate.deploy=3"],
    "a pipeline": ["evaluate.pipeline=torch_nearest"],
    "explanations": ["evaluate.explain=2"],
    "failures": ["evaluate.failure=2", "evaluate.particles=50", "data.size=32"],
    "a suite": ["attack=suite", "attack.nearest=0"],
    "radii": ["attack=radius"],
    "radii in batches": ["attack=radius", "evaluate.batch=2"],
    "a verification": ["task=verification", "task.threshold=0.6"],
    "a verification by a suite": ["task=verification", "task.threshold=0.6", "attack=suite", "attack.nearest=0"],
    "radii of a verification": ["task=verification", "task.threshold=0.6", "attack=radius"],
    "no one_view": ["evaluate.one_view=false"],
    "by cosine": ["evaluate.primary=cosine"],
    "without refinement": ["evaluate.refine=0"],
    "patch printed": ["printer=paper"],
    "patch anywhere": ["perturbation.place.scale=[0.4,0.6]"],
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", HONEST)
def test_honest_runs_of_every_kind_pass(small, tmp_path, name):
    preset = "patch" if name.startswith("patch") else "smoke"
    verdict = verify(make_run(tmp_path / "run", [*TINY, *HONEST[name]], preset), 1)
    assert verdict.passed and not verdict.notes, verdict


@pytest.mark.nightly
def test_a_run_on_other_threads_passes_with_a_note(runs):
    run, threads = runs("lean"), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        verdict = verify(run, 1)
    finally:
        torch.set_num_threads(threads)
    assert verdict.passed and any("the number of threads was 1" in note for note in verdict.notes)


@pytest.mark.nightly
def test_a_labelled_run_passes(tmp_path, small):
    pictures = make_run(tmp_path / "first", TINY) / "pictures" / "clean"
    table = ["path,cluster,identity", *(f"{path},{i // 2},{i % 2}" for i, path in enumerate(pictures.iterdir()))]
    (tmp_path / "list.csv").write_text("\n".join(table))
    data = ["data=folder", f"data.path={tmp_path / 'list.csv'}", f"data.gallery={tmp_path / 'list.csv'}"]
    folder = make_run(tmp_path / "run", [*(word for word in TINY if "count" not in word), *data])
    assert verify(folder, 1).passed
    (tmp_path / "list.csv").write_text("\n".join([*table[:-1], table[-1][:-1] + "7"]))
    verdict = verify(folder, 1)
    assert any("what is right" in line or "the file of" in line for line in verdict.problems), verdict


@pytest.mark.nightly
def test_a_module_in_memory_must_be_passed(tmp_path):
    torch.manual_seed(1)
    module = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, 16)).eval()
    folder = make_run(tmp_path / "run", TINY, module=module)
    assert verify(folder, 1, module).passed
    with pytest.raises(ValueError, match="module in memory"):
        verify(folder)
    with torch.no_grad():
        module[2].weight.mul_(1.01)
    problems = verify(folder, 1, module).problems
    assert any("the encoder's weights" in line for line in problems)
    assert any(line.startswith(SCORES) for line in problems)


@pytest.mark.slow
def test_what_is_no_finished_run_is_named(runs, tmp_path):
    folder = shutil.copytree(runs("lean"), tmp_path / "run")
    (folder / "metrics.json").unlink()
    assert "not finished" in verify(folder).problems[0]
    (folder / "metrics.json").symlink_to(runs("lean") / "metrics.json")
    with pytest.raises(ValueError, match="leads out"):
        verify(folder)
    with pytest.raises(FileNotFoundError, match="must be the directory"):
        verify(tmp_path / "none")


@pytest.mark.slow
def test_the_command_names_what_is_wrong(runs, tmp_path, capsys):
    folder = shutil.copytree(runs("lean"), tmp_path / "run")
    assert main(["verify", str(folder)]) == 0
    assert "PASS" in capsys.readouterr().out
    cell("per_image", "cosine")(folder)
    assert main(["verify", str(folder), "--sample", "0.5"]) == 1
    assert "per_image.csv line 2, cosine: recorded" in capsys.readouterr().out
    for words in (["--sample", "2"], ["--sample", "x"], ["--seed", "x"]):
        assert main(["verify", str(folder), *words]) == 1
        assert words[0].lstrip("-") in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", [AttributeError, TypeError, RuntimeError, ValueError, KeyError])
def test_an_error_of_the_check_is_no_damage_of_the_run(runs, monkeypatch, capsys, kind):
    monkeypatch.setattr(judgement, "view_problems", lambda *_: (_ for _ in ()).throw(kind("broken")))
    with pytest.raises(CheckerError, match=f"verify itself failed: {kind.__name__}.*says nothing about the run"):
        verify(runs("lean"))
    assert main(["verify", str(runs("lean"))]) == 5
    assert "verify itself failed" in capsys.readouterr().err


@pytest.mark.slow
def test_a_maker_cannot_choose_the_sample(runs):
    folder = runs("lean")
    first_seed, other = verify(folder).seed, verify(folder).seed
    assert first_seed != other and verify(folder, seed=first_seed).seed == first_seed


@pytest.mark.parametrize(
    ("sizes", "views", "drawn_count"), [([1], 8, 1), ([3, 1], 32, 4), ([1] * 40, 32, 4), ([2, 5], 6, 6)]
)
def test_what_a_sample_can_miss_is_the_best_of_all_forgeries(sizes, views, drawn_count):
    """Against a search of all ways to alter views, by the hypergeometric distribution."""
    clusters = [f"{i}" for i, size in enumerate(sizes) for _ in range(size)]
    pulls = [1 / (1 + i) for i in range(len(sizes))]
    limit = judgement.missable_change(clusters, views, drawn_count, [pulls[int(name)] for name in clusters])
    weights = np.array([pulls[int(name)] / (sum(pulls) * sizes[int(name)] * views) for name in clusters])
    random, best = np.random.default_rng(0), 0.0
    for _ in range(2000):
        alterations = np.minimum(
            random.multinomial(random.integers(1, 3 * views), random.dirichlet(weights * 40)), views
        )
        if hypergeom.pmf(0, views, alterations, drawn_count).prod() > judgement.ESCAPE:
            best = max(best, float(weights @ alterations))
    hits = [3 in judgement.Portion(drawn_count / views, seed).of(views, "same/eot/0") for seed in range(2000)]
    assert abs(np.mean(hits) - drawn_count / views) < 0.04
    assert best <= limit + 1e-12 and limit <= best + 1.5 * weights.max() + 0.2 * limit


def test_a_directory_runs_no_program(runs, tmp_path, monkeypatch):
    (tmp_path / "metrics.json").write_text('{"files": "0"}')
    config = {"encoder": {"name": "torchscript", "model": "evil.pt"}}
    (tmp_path / "manifest.json").write_text(json.dumps({"config": config}))
    assert not verify(tmp_path).passed


@pytest.mark.parametrize("content", ["{}", "[]", "3", '{"files": "0"}'])
@pytest.mark.parametrize("record", ["metrics", "manifest"])
def test_a_record_without_its_keys_is_a_problem(tmp_path, record, content):
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "manifest.json").write_text(manifest())
    (tmp_path / f"{record}.json").write_text(content)
    (line,) = verify(tmp_path).problems
    assert ".json` " in line and ("is not what a run writes: " in line or "has no `config`" in line)


@pytest.mark.parametrize(
    ("value", "lacking"),
    [
        ({"a": [{"b": 1}], "c": None}, None),
        ({"a": [], "c": {"d": "x"}}, None),
        ({"a": [{"b": 1}, {}], "c": None}, "a.1.b"),
        ({"a": [{"b": "x"}], "c": None}, "a.0.b"),
        ({"a": {}, "c": None}, "a"),
        ({"a": []}, "c"),
        ({"a": [], "c": {"d": 1}}, "c.d"),
        ([], ""),
    ],
)
def test_the_first_key_that_does_not_fit_is_named(value, lacking):
    assert misfit(value, {"a": [{"b": int}], "c": ({"d": str}, None)}) == lacking


def test_a_difference_has_its_place():
    was, recomputation = {"a": [1, 2.0], "b": "x", "c": None}, {"a": [1, 2.5], "b": "y", "d": 1}
    assert sorted(value_differences("f", was, recomputation)) == [
        "f a 1: recorded 2.0, recomputed 2.5",
        "f b: recorded x, recomputed y",
        "f c: null is recorded, and there is none",
        "f d: it is missing; recomputed 1",
    ]
    assert not [*value_differences("f", 1.0, 1.0 + 1e-12)]
    assert all([*value_differences("f", old, new)] for old, new in ((True, 1), (float("nan"), 1.0)))
    assert [*row_differences("t.csv", [{"a": "1"}], [{"a": 1}, {"a": 2}])] == ["t.csv: it has 1 rows; recomputed 2"]
    assert [*row_differences("t.csv", [{"b": "1"}], [{"a": 1}])] == [
        't.csv line 2: its columns are ["b"]; recomputed ["a"]'
    ]


def test_sanity_checks_that_do_not_fit_are_named():
    sane = json.loads(json.dumps(BATTERY))
    study, defended = (SimpleNamespace(sanity=SimpleNamespace(pictures=2), bare=bare) for bare in (None, object()))
    sane["checks"][-1]["words"] = masking([Check(x["name"], "passed", "") for x in sane["checks"][:-1]]).message
    assert not [*sanity_problems(study, {"sanity": sane, "failed": []})]
    for at in range(len(NAMES)):
        for edit in ({"verdict": "failed"}, {"name": "another"}):
            content = json.loads(json.dumps(sane))
            content["checks"][at] |= edit
            assert [*sanity_problems(study, {"sanity": content, "failed": []})]
    assert [*sanity_problems(defended, {"sanity": sane, "failed": []})]  # without the check of a defence
    study.sanity.pictures = 0
    assert [*sanity_problems(study, {"sanity": sane, "failed": []})]
    study.sanity.pictures = 2
    assert [*sanity_problems(study, {"sanity": None, "failed": []})]
