"""The optimised arms of a run: one bank chooses all iterates, and none has more gradients than EOT."""

import csv
import itertools
import json

import pytest
import torch

import attacks.experiment.arms
import attacks.experiment.units
from attacks.eot.bank import bank
from attacks.run import compose
from attacks.solvers.selection import VIEWS
from attacks.study.assembly import build
from tests.helpers.report_pages import ARMS
from tests.helpers.runs import call
from transforms.draws import stream

SHORT = ["sanity=none", "data.count=1", "data.size=64", "evaluate.views=4", "evaluate.refine=0"]
RUNS = {
    "plain": ["config=smoke", "attack.steps=24"],
    "risk": ["config=smoke", "attack.steps=3", "attack.views=4", "risk=cvar"],
    "stop": ["config=smoke", "attack.steps=20", "attack.stop=0.9"],
    "adversary": ["config=smoke", "attack.steps=3", "attack.adversary=4"],
    "adaptive": ["config=smoke", "attack.steps=null", "attack.gradients=300", "attack.views=auto"],
    "suite": ["config=smoke", "attack=suite", "attack.steps=2", "attack.views=2", "attack.nearest=0"],
    "patch": ["config=patch", "attack.steps=3", "attack.views=2", "printer=paper"],
}


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    """A run: the (options, selection) of each arm, the result of its batch, and its directory."""
    watch_calls, results = [], []
    real, real_attack = attacks.experiment.arms.run_steps, attacks.experiment.units.attack_unit

    def watch(problem, options, **rest):
        watch_calls.append((options, rest["select"]))
        return real(problem, options, **rest)

    def spy(bench, unit):
        results.append(real_attack(bench, unit))
        return results[-1]

    folder = tmp_path_factory.mktemp("arms") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attacks.experiment.arms, "run_steps", watch)
        patch.setattr(attacks.experiment.units, "attack_unit", spy)
        assert call(patch, *SHORT, *RUNS[request.param], f"hydra.run.dir={folder}") == 0
    return watch_calls, results[0], folder


@pytest.mark.nightly
def test_all_arms_are_chosen_on_the_bank_of_eot(run):
    watch_calls, result, folder = run
    for options, select in watch_calls:
        views = bank(select.bank.transforms, VIEWS, seed=stream(0, "eot"), purpose="select")
        assert select.bank.transforms is watch_calls[0][1].bank.transforms and select.risk == watch_calls[0][1].risk
        assert select.bank.transforms.dims and torch.equal(select.bank.u, views.u)
        assert select.early == (not options.eot.transforms.dims)
    assert sum(select.early for _, select in watch_calls) == 1
    rows = list(csv.DictReader((folder / "steps.csv").read_text().splitlines()))
    for arm, choice in result.chosen.items():
        lines = [row for row in rows if row["arm"] == arm]
        if len({row["attack"] for row in lines}) == 1:  # of a suite, the step is one of its member
            values = ["", *(row["held_out"] for row in lines)]
            looks = [
                i for i, (previous, value) in enumerate(itertools.pairwise(values)) if value not in ("", previous)
            ]
            assert int(choice) - 1 in looks  # one picture


@pytest.mark.slow
def test_no_arm_has_more_gradients_than_eot(run):
    _, result, folder = run
    costs = json.loads((folder / "metrics.json").read_text())["costs"]
    evals = {arm: [line.evals for line in result.trace if line.arm == arm][-1] for arm in result.chosen}
    assert all(0 < count <= evals["eot"] for count in evals.values())
    for arm in result.chosen:
        assert costs[arm]["backward"] <= evals[arm]  # fewer where some views only choose others
        passes, choosing = costs[arm]["forward"] + costs[arm]["backward"], costs[arm]["selection"]
        assert 0 < choosing <= costs[arm]["forward"] - evals[arm]  # the views that choose iterates are counted too
        assert 0 < costs[arm]["selection_seconds"] < costs[arm]["seconds"]
        # The members of a suite, and pictures that seem solved, are looked at from the whole bank as well.
        is_suite = (
            json.loads((folder / "metrics.json").read_text())["threat"]["attack"] == "suite" or evals["eot"] < 12
        )
        if arm != "no_eot" and not is_suite and "attack.stop=0.9" not in (folder / "manifest.json").read_text():
            assert choosing <= max(1, passes / 10)


@pytest.mark.slow
def test_arms_follow_the_configuration():
    arms_without_one_view = tuple(arm for arm in ARMS if arm != "one_view")

    def arms(*overrides, preset="quickstart"):
        return build(compose(preset, ["data.count=1", *overrides])).arms

    assert arms("attack.views=8") == arms("attack.views=8", preset="evaluate") == ARMS
    assert arms("attack.views=8", "evaluate.one_view=false") == arms_without_one_view
    # With one view a step `eot` is that arm itself, unless there may be more or an adversary chooses the view.
    assert arms("attack.views=1") == arms() == arms_without_one_view
    assert arms("attack.gradients=800") == ARMS
    assert arms("attack.views=1", "attack.adversary=4") == ARMS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "views"),
    [
        ([], (1, 128, True)),
        (["transforms=identity"], (1, 128, False)),  # all views are the same
        (["optimiser=apgd"], (4, 32, False)),
        (["optimiser=square"], (4, 32, False)),
        (["draws=fixed"], (4, 32, False)),
        (["attack.adversary=8"], (4, 32, False)),
        (["attack.steps=5"], (1, 5, True)),
        (["attack=suite", "attack.gradients=30"], (4, 7, False)),
        (["attack.steps=5", "attack.views=8"], (8, 5, False)),
    ],
)
def test_views_of_a_step_are_chosen_where_the_attack_allows_that_choice(overrides, views):
    run = compose("quickstart", ["data.count=1", *overrides])
    study_views = build(run).views
    assert (study_views.per_step, study_views.steps, study_views.adaptive is not None) == views
