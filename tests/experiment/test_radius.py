"""A run with attack=radius: its tables follow from its files, it keeps to three runs, and it resumes to the byte."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import attacks.experiment.sections.attacks
from attacks.encoders.passes import Passes
from attacks.experiment.bench import Cost
from attacks.experiment.sections.attacks import RadiiSection
from attacks.report.pairs import read_pair_scores
from attacks.runtime.tables import read_rows
from tests.helpers.processes import facts
from tests.helpers.runs import LEAN, call

pytestmark = pytest.mark.slow
RUN = ["config=quickstart", "attack=radius", "data.count=3", "data.size=64", "attack.steps=6", "attack.views=2"]
RUN += ["perturbation=l2", "perturbation.eps=3", "sanity=none", "evaluate.views=8", "evaluate.refine=0", *LEAN]


@pytest.fixture
def finished_run(shared_runs):
    return shared_runs(*RUN, "evaluate.one_view=false")


def pixels(path):
    with Image.open(path) as image:
        return np.asarray(image, dtype=float) / 255


def test_the_radius_is_the_norm_of_the_change_in_the_file(finished_run):
    rows = read_rows(finished_run / "radii.csv")
    rows_with_radius = [row for row in rows if row["radius"]]
    assert len(rows) == 3 and rows_with_radius
    for row in rows_with_radius:
        clean, radius_picture = (
            pixels(finished_run / "pictures" / arm / f"{row['picture']}.png") for arm in ("clean", "radius")
        )
        assert np.linalg.norm(radius_picture - clean) == pytest.approx(float(row["radius"]), rel=1e-5)
        assert float(row["found"]) >= 0.5
        assert float(row["radius"]) <= 3 * (1 + 1e-9)


def test_the_search_costs_two_runs_or_fewer_passes(finished_run):
    content = json.loads((finished_run / "metrics.json").read_text())
    passes, cost = content["radii"]["passes"], content["costs"]
    assert passes["runs"] <= 3
    assert 3 * passes["attack"] == cost["eot"]["forward"] + cost["eot"]["backward"]
    judging = 3 * content["bank"]["views"]  # of the files that were found, on the held-out views
    assert cost["radii"]["forward"] + cost["radii"]["backward"] == 3 * passes["search"] + judging


def test_the_report_has_the_median_and_the_curve(finished_run):
    page, content = (
        (finished_run / "report.html").read_text(),
        json.loads((finished_run / "metrics.json").read_text()),
    )
    assert "Success over the radius" in page and 'id="radii"' in page
    shares = [point["success"]["mean"] for point in content["radii"]["curve"]]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(
        np.mean([bool(row["radius"]) for row in read_rows(finished_run / "radii.csv")])
    )


def test_another_run_can_be_compared_with_its_radii(finished_run):
    (column,) = [
        column_values
        for (_, name), column_values in read_pair_scores(finished_run).values.items()
        if name == "radius l2"
    ]
    rows = read_rows(finished_run / "radii.csv")
    assert sorted(column.values()) == sorted(float(row["radius"] or 3.0) for row in rows)


def test_a_search_that_was_stopped_ends_with_the_same_bytes(finished_run, tmp_path, monkeypatch):
    folder, real = tmp_path / "run", attacks.experiment.sections.attacks.smallest_radius

    def stopping(*args, **options):
        for number, state in enumerate(real(*args, **options)):
            yield state
            if number == 2:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(attacks.experiment.sections.attacks, "smallest_radius", stopping)
        assert call(patch, *RUN, "evaluate.one_view=false", f"hydra.run.dir={folder}") == 130
    trial_counts = []
    monkeypatch.setattr(
        attacks.experiment.sections.attacks,
        "smallest_radius",
        lambda *a, **o: trial_counts.append(o["state"].trials) or real(*a, **o),
    )
    assert call(monkeypatch, f"resume={folder}") == 0
    assert trial_counts == [3]
    assert facts(folder) == facts(finished_run)
    assert (folder / "radii.csv").read_bytes() == (finished_run / "radii.csv").read_bytes()
    shutil.rmtree(folder)


def test_a_target_is_searched_with_the_runs_own_objective(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    assert call(monkeypatch, *RUN, "objective=toward", "attack.steps=3", f"hydra.run.dir={folder}") == 0
    content = json.loads((folder / "metrics.json").read_text())
    assert content["threat"]["targeted"] and content["radii"]["pictures"] == 3
    assert torch.tensor([point["success"]["mean"] for point in content["radii"]["curve"]]).diff().min() >= 0


def test_of_the_passes_only_those_of_the_search_are_taken_as_recorded():
    encoder, study = SimpleNamespace(passes_of_view=Passes()), SimpleNamespace(queries=range(2))
    bench = SimpleNamespace(costs={"eot": Cost(forward=6, backward=4)}, study=study, encoder=encoder)
    forgery = {"passes": {"search": 7, "attack": 90, "runs": 1.0}}
    facts = RadiiSection(2, 0.1).recorded_facts(bench, forgery)
    assert facts == {"passes": {"search": 7, "attack": 5, "runs": 12 / 5}}
