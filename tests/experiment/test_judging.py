"""Judging in a lower precision: its effect is measured, recorded, and decides; a run keeps the decision."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from attacks import verify
from attacks.evaluation.clusters import by_cluster
from attacks.experiment import experiment
from attacks.experiment.build.parts import build
from attacks.experiment.job import job
from attacks.experiment.judging import check_judging
from attacks.run import compose
from tests.helpers.liars import entry, sealed, tensors

TINY = ["data.count=3", "data.size=64", "attack.steps=2", "attack.views=2", "sanity=none", "evaluate.views=8"]
TINY += ["evaluate.refine=1", "evaluate.batch=2", "evaluate.wide=1.5"]
LOWER = "engine.judging=bfloat16"
FIGURES = {"success": lambda x: x["success"].double(), "mrr": lambda x: 1 / x["rank"].double()}
FIGURES["cosine"] = lambda x: x["cosine"].double()


class Blocks(nn.Module):
    """A linear layer of block means. After an `offset` bfloat16 has little left of them, and float32 nearly all."""

    def __init__(self, offset):
        super().__init__()
        self.offset = offset
        self.layer = nn.Linear(3 * 64, 32)
        nn.init.normal_(self.layer.weight, generator=torch.Generator().manual_seed(0))
        nn.init.constant_(self.layer.bias, offset)
        self.eval()

    def forward(self, images):
        means = nn.functional.adaptive_avg_pool2d(images, 8).flatten(1)
        return self.layer(means - means.mean(1, keepdim=True)) - self.offset


KINDS = {"plain": (0, []), "lower": (0, [LOWER]), "exact": (256, []), "refused": (256, [LOWER])}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs by name, each made when it is first used."""
    work, done = tmp_path_factory.mktemp("judging"), {}

    def get(name):
        if name not in done:
            offset, more = KINDS[name]
            job(compose("smoke", [*TINY, *more]), work / name, "smoke", [*TINY, *more], module=Blocks(offset))
            done[name] = work / name
        return done[name]

    return get


def both(folder):
    return json.loads((folder / "metrics.json").read_bytes()), load_file(folder / "scores.safetensors")


def column(scores, bank, arm):
    return {key.split("/")[2]: x for key, x in scores.items() if key.startswith(f"{bank}/{arm}/")}


@pytest.mark.slow
def test_the_recorded_effect_is_that_of_judging_everything_twice(runs):
    (plain, exact), (content, lower) = both(runs("plain")), both(runs("lower"))
    effect, ratios = content["judging"], []
    assert "judging" not in plain and (effect["pictures"], effect["views"]) == (3, 8)
    for arm, recorded in effect["arms"].items():
        one, other = (column(each, "same", arm) for each in (exact, lower))
        assert recorded["success"] == (one["success"] != other["success"]).double().mean()
        for name in ("rank", "cosine"):
            change = (one[name].double() - other[name].double()).abs()
            assert recorded[name]["mean"] == pytest.approx(float(change.mean()), abs=1e-6)
            assert recorded[name]["largest"] == pytest.approx(float(change.max()), abs=1e-6)
        for name, values in FIGURES.items():
            before, after = values(one).numpy(), values(other).numpy()
            error = ((after.mean(1) - before.mean(1)) ** 2).mean()
            noise = (before.std(1, ddof=1) ** 2 / before.shape[1]).mean()
            ratio = error / noise if error else 0.0
            ratios.append(ratio)
            assert recorded["ratio"][name] == pytest.approx(ratio, abs=1e-5)
    assert effect["ratio"] == pytest.approx(max(ratios), abs=1e-5) and max(ratios) < 0.15
    assert any(arm["cosine"]["mean"] > 1e-5 for arm in effect["arms"].values())
    assert (effect["precision"], effect["used"]) == ("bfloat16", "bfloat16")
    headline = [each["primary"]["difference"]["mean"] for each in (plain, content)]
    assert [effect["headline"][key] for key in ("exact", "lower")] == pytest.approx(headline, abs=1e-9)
    assert effect["headline"]["change"] == pytest.approx(headline[1] - headline[0], abs=1e-9)


@pytest.mark.slow
def test_the_other_precision_is_kept_beside_the_tables(runs):
    """The attacks are the same, so that of the run in float32 is the same to rounding."""
    (_, exact), (_, lower) = both(runs("plain")), both(runs("lower"))
    assert not [key for key in exact if key.startswith(("float32/", "bfloat16/"))]
    for arm in ("clean", "eot"):
        was, again = column(exact, "same", arm), column(lower, "float32", arm)
        torch.testing.assert_close(again["cosine"], was["cosine"], rtol=0, atol=1e-6)
        assert torch.equal(again["rank"], was["rank"])
        assert not torch.equal(column(lower, "same", arm)["cosine"], was["cosine"])


@pytest.mark.slow
def test_an_encoder_whose_ranks_bfloat16_changes_is_refused_and_judged_in_float32_to_the_bit(runs):
    (plain, exact), (content, scores) = both(runs("exact")), both(runs("refused"))
    effect = content["judging"]
    assert effect["used"] == "float32" and (effect["ratio"] is None or effect["ratio"] >= 0.15)
    assert max(arm["rank"]["largest"] for arm in effect["arms"].values()) >= 1
    assert (
        {key for key in scores if key not in exact} == {key for key in scores if key.startswith("bfloat16/")} != set()
    )
    assert all(torch.equal(scores[key], column) for key, column in exact.items())
    assert content["arms"] == plain["arms"] and content["primary"] == plain["primary"]
    assert content["costs"]["judging"]["forward"] > 2 * plain["costs"]["judging"]["forward"]
    page = (runs("refused") / "report.html").read_text()
    assert "changes the scores too much" in page and "was refused, and float32 used" in page


@pytest.mark.slow
def test_the_headline_is_a_mean_over_clusters(runs):
    content, scores = both(runs("lower"))
    shares = {
        arm: by_cluster(column(scores, "same", arm)["success"].double().mean(1), content["clusters"]).mean()
        for arm in ("eot", content["primary"]["against"])
    }
    assert content["judging"]["headline"]["lower"] == pytest.approx(
        float(shares["eot"] - shares[content["primary"]["against"]])
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lower", "refused"])
def test_verify_judges_in_the_precision_of_each_score(runs, name):
    verdict = verify(runs(name), 1.0, Blocks(KINDS[name][0]))
    assert verdict.passed, str(verdict)


@pytest.mark.slow
def test_verify_names_a_changed_effect_and_changed_scores_of_the_other_precision(runs, tmp_path):
    def change(columns):
        columns["float32/eot/cosine"] += 0.05

    for edit, line in (
        (
            entry("metrics.json", "judging", "arms", "eot", "rank", "largest", by=1),
            "metrics.json judging arms eot rank",
        ),
        (tensors("scores", change), "scores.safetensors float32/eot/cosine"),
    ):
        folder = shutil.copytree(runs("lower"), tmp_path / line.split()[0])
        edit(folder)
        sealed(folder)
        problems = verify(folder, 1.0, Blocks(0)).problems
        assert any(problem.startswith(line) for problem in problems), problems


@pytest.mark.nightly
def test_a_resumed_run_keeps_the_decision_and_judges_nothing_again(tmp_path, monkeypatch):
    overrides = [*TINY, LOWER, "data.count=2", "data.size=32", "evaluate.views=2", "evaluate.wide=1"]
    folder, whole = tmp_path / "run", tmp_path / "whole"
    job(compose("smoke", overrides), whole, "smoke", overrides)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(experiment, "gathered", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        job(compose("smoke", overrides), folder, "smoke", overrides)
    with pytest.raises(ValueError, match=r"engine\.judging was bfloat16 and is float32"):
        other = [each for each in overrides if each != LOWER]
        job(compose("smoke", other), folder, "smoke", other)
    with monkeypatch.context() as patch:
        patch.setattr("attacks.evaluation.judge.Judge.__call__", None)
        job(compose("smoke", overrides), folder, "smoke", overrides)
    assert (folder / "scores.safetensors").read_bytes() == (whole / "scores.safetensors").read_bytes()
    assert both(folder)[0]["judging"] == both(whole)[0]["judging"]
    record = json.loads((folder / "manifest.json").read_bytes())
    assert record["identity"]["engine.judging"] == record["config"]["engine"]["judging"] == "bfloat16"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "module", "words"),
    [
        (["engine.judging=half"], Blocks(0), r"must be one of float32, tf32, bfloat16; got 'half'"),
        (["engine.judging=tf32", "engine.device=cpu"], Blocks(0), "must not be tf32 on cpu"),
        ([LOWER, "evaluate.most=2"], Blocks(0), "must be float32 with `evaluate.most`"),
        ([LOWER], Blocks(0).bfloat16(), "must be float32 for an encoder in bfloat16"),
        ([LOWER], nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten()).eval(), "`engine.judging=bfloat16` needs"),
    ],
)
def test_what_a_run_cannot_have_is_refused(overrides, module, words):
    run = compose("smoke", [*TINY, *overrides])
    with pytest.raises(ValueError, match=words):
        check_judging(run, build(run, module))
