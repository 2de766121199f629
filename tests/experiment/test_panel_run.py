"""Runs of a defence over several views: what they record and count, that they pass verify, and that they resume."""

import itertools
import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torchvision.transforms.functional import to_tensor

from attacks import bank, verify
from attacks.encoders import Counterattack, Panel
from attacks.encoders.engine import Decision
from attacks.experiment.arms import first_of, problem_of, trace_of
from attacks.experiment.bench import Place, bench_of
from attacks.experiment.unit import attempt_of
from attacks.runtime.checkpoint import Task
from attacks.runtime.tables import read_rows
from attacks.schema.composition import compose
from attacks.schema.groups import CHOICES
from attacks.solvers.loop import start
from attacks.study.assembly import build, check_black_box
from attacks.study.encoder import behind_defence
from attacks.study.study import Views
from tests.helpers.processes import facts
from tests.helpers.runs import LEAN, TINY, call
from tests.helpers.small import small
from transforms.draws import stream

WORDS = [*TINY, *LEAN, "evaluate.wide=1", "engine=fixed"]
KINDS = {
    "tte": ["defence=tte", "defence.views=2"],
    "ttc": ["defence=ttc", "defence.threshold=10"],
    "consistency": ["defence=consistency", "defence.views=2"],
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "passes", "back"), [("tte", 3, 3), ("ttc", 4, 3), ("consistency", 3, 3)])
def test_a_run_counts_all_passes_and_passes_verify(shared_runs, name, passes, back):
    folder = shared_runs(*WORDS, *KINDS[name])
    content = json.loads((folder / "metrics.json").read_text())
    record, cost = content["encoder"], content["costs"]["eot"]
    last_rows = {line.batch: line for line in trace_of(folder) if line.arm == "eot"}
    views = sum(line.evals for line in last_rows.values())
    assert record["draws"] == ["defence (seed)"] and record["passes"] == passes and record["defence"]
    assert cost["forward"] - cost["selection"] == views * passes
    assert cost["backward"] == views * back + (cost["selection"] // passes * 2 if name == "ttc" else 0)
    bare, plain = content["costs"]["bare"], views * (passes + back)
    step = 2 * 2 * len(content["queries"])  # forward and back, two views of each picture
    assert 0 <= plain - (bare["forward"] - bare["selection"] + bare["backward"]) < step
    assert "BPDA" in (folder / "report.html").read_text() or name != "ttc"
    assert verify(folder, 1).passed


@pytest.mark.slow
@pytest.mark.parametrize("after", [3, 7, 20])  # steps: in the arm bare, in eot, and in bare of the second batch
def test_a_stopped_run_of_a_panel_ends_with_the_same_bytes(shared_runs, tmp_path, monkeypatch, after):
    real, steps = Task.update, itertools.count(1)

    def stop(task, make):
        real(task, make)
        if next(steps) == after:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Task, "update", stop)
        assert call(patch, *WORDS, *KINDS["tte"], f"hydra.run.dir={tmp_path / 'run'}") == 130
    assert call(monkeypatch, f"resume={tmp_path / 'run'}") == 0
    assert facts(tmp_path / "run") == facts(shared_runs(*WORDS, *KINDS["tte"]))


@pytest.mark.slow
def test_two_workers_make_the_run_of_one(shared_runs, tmp_path, monkeypatch):
    assert call(monkeypatch, *WORDS, *KINDS["tte"], "workers=2", f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert facts(tmp_path / "run") == facts(shared_runs(*WORDS, *KINDS["tte"]))


def view_features(study, pictures, bank):
    """The features (N,V,D) of pictures in the views of a bank, one view at a time."""
    rows = [u.expand(len(pictures), -1) for u in bank.u[:, None]]
    return torch.stack([study.encoder(study.transforms(pictures, u), draws=u[:, -1:]) for u in rows], 1)


@pytest.mark.slow
def test_all_arms_are_judged_through_the_defence(shared_runs):
    folder = shared_runs(*WORDS, *KINDS["tte"])
    study = build(compose("evaluate", [word for word in [*WORDS, *KINDS["tte"]] if "config=" not in word]))
    views, rows = bank(study.transforms, 4, seed=0, purpose="evaluate"), read_rows(folder / "per_image.csv")
    anchor = study.encoder(study.queries.images)[:, None]
    for arm in study.arms:
        files = [folder / "pictures" / arm / f"{Path(name).stem}.png" for name in study.queries.names]
        pictures = torch.stack([to_tensor(Image.open(path).convert("RGB")) for path in files])
        cosine = F.cosine_similarity(view_features(study, pictures, views), anchor, dim=-1).mean(1)
        table = [float(row["cosine"]) for row in rows if row["arm"] == arm]
        assert cosine.tolist() == pytest.approx(table, abs=1e-4), arm


@pytest.mark.slow
def test_the_attack_through_the_defence_begins_at_the_better_of_two_starts(tmp_path):
    study = build(compose("smoke", ["defence=tte", "defence.views=2", "data.count=4", "data.size=64"]))
    bench = bench_of(study, study.encoder, Decision(), Place(tmp_path))
    attempt = attempt_of(bench, study, range(4), 0)
    images, anchor = study.queries.images, study.encoder(study.queries.images)[:, None]
    plain = start(problem_of("eot", attempt), stream(0, "eot"))
    gradient = images.clone().requires_grad_()
    F.cosine_similarity(study.encoder(gradient), anchor[:, 0]).sum().backward()
    better = torch.tensor([True, False, True, False])  # the untouched picture is worse than noise
    size = study.perturbation.eps * better[:, None, None, None]
    bare = (images - size * gradient.grad.sign()).clamp(0, 1) - images
    views, losses = bank(study.transforms, 32, seed=stream(0, "eot"), purpose="select"), []
    views = views._replace(u=views.u[:4])  # the fewest, as of any attack so short
    with torch.no_grad():
        for delta in (plain, bare):
            features = view_features(study, images + delta, views)
            losses.append(F.cosine_similarity(features, anchor, dim=-1).mean(1))
    first = first_of(attempt, bench.meter(), bare)
    assert torch.equal(losses[1] < losses[0], better)
    assert torch.allclose(first.loss, torch.minimum(*losses), atol=1e-5)
    assert torch.equal(first.delta, torch.where(size > 0, bare, plain))


@pytest.mark.slow
def test_only_a_defence_that_draws_anew_has_an_attack_on_the_bare_encoder():
    def study(*words):
        return build(compose("smoke", ["data.count=1", "data.size=32", *words]))

    arms = {"tte": True, "ttc": True, "jpeg": False}
    assert {name: "bare" in study(f"defence={name}").arms for name in arms} == arms
    assert "bare" not in study("defence=tte", "objective=layers", "objective.layers=[stem]").arms
    tte = study("defence=tte", "transforms=identity", "attack.steps=5", "attack.views=2")
    assert (tte.bare.views, tte.bare.transforms.dims, tte.bare.bare) == (Views(1, 2 * 5 * 9), 0, None)


def test_keys_of_a_defence_reach_its_parts_and_wrong_ones_are_refused():
    def encoder(name, **keys):
        return behind_defence(small(), CHOICES["defence"][name](**keys))

    panel = encoder("dbd", gain=3.0, threshold=0.5, views=2, stages={"flip": {}})
    assert isinstance(panel, Panel) and (panel.views, panel.rule.gain, panel.rule.threshold) == (2, 3.0, 0.5)
    counterattack = encoder("ttc", eps="2/255", steps=3)
    assert isinstance(counterattack, Counterattack) and (counterattack.eps, counterattack.steps) == (2 / 255, 3)
    for name, keys, message in (
        ("tte", {"views": 0}, r"`defence\.views` must be .*at least 1.*got 0"),
        ("rtpt", {"share": 0.0}, r"`defence\.share` must be above 0 and at most 1; got 0"),
        ("ttc", {"step": "0"}, r"`defence\.step` must be above 0"),
        ("ttc", {"eps": "x"}, r"`defence\.eps` must be a number or a fraction"),
        ("tte", {"stages": {"crop": {"scale": [0, 1]}}}, r"`defence\.stages\.crop`: `scale`"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder(name, **keys)
    words = ["defence=tte", "encoder=callable", "encoder.model=x:y"]
    with pytest.raises(ValueError, match="`defence=tte` encodes views of its own"):
        check_black_box(compose("smoke", words))
