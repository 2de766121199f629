"""`viewproof failure` and the part of a run: the score agrees with the judge, the probability with plain views, and
wrong inputs are one line."""

import numpy as np
import pytest
import torch

from attacks.commands import main
from attacks.evaluation.rare import splitting
from attacks.evaluation.rare.failure import margin_score
from attacks.experiment.preparation import reopen
from attacks.experiment.view_scores import read_scores
from attacks.runtime.tables import read_rows
from tests.helpers.runs import call

WORDS = "config=quickstart attack.gradients=8 evaluate.views=64 data.size=32 perturbation.eps=24/255 sanity=none"
PART = ["evaluate.failure=2", "evaluate.particles=100"]


@pytest.fixture(scope="module", autouse=True)
def few_views():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splitting, "MAX_DRAWS", 30)
        yield


@pytest.fixture
def finished(shared_runs):
    constants = {"attacks.evaluation.rare.splitting.MAX_DRAWS": 30}
    return shared_runs(*WORDS.split(), *PART, "data.count=4", constants=constants)


@pytest.mark.nightly
@pytest.mark.parametrize("arm", ["clean", "eot"])
def test_the_sign_of_the_score_is_the_judges_verdict(finished, arm):
    bench, success = reopen(finished), read_scores(finished).success["same"][arm]
    bank = bench.banks["same"]
    for row in range(len(bench.study.queries)):
        score = margin_score(bench.judge, bench.exhibits.displayed(arm, [row]), row, bank.transforms, arm)
        failed = torch.from_numpy(score(bank.u.double().numpy()) <= 0)
        assert torch.equal(failed, success[row] if arm == "clean" else ~success[row])
    assert 0 < success.double().mean() < 1


@pytest.mark.nightly
def test_the_command_gives_the_rows_of_the_run_and_they_agree_with_plain_views(finished, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["failure", str(finished), "--pictures", "2", "--particles", "100", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = read_rows(out / "failure.csv")
    assert rows == [row for row in read_rows(finished / "failure.csv") if row["arm"] == "clean"]
    assert len(rows) == 2 and len(lines) == 3 and (out / "failure.png").stat().st_size > 1000
    bench = reopen(finished)
    views = bench.banks["same"].transforms
    for line, row in zip(lines, rows, strict=False):
        assert line.startswith(f"{row['picture']} clean: ")
        number = bench.study.queries.names.index(row["picture"])
        score = margin_score(bench.judge, bench.exhibits.displayed("clean", [number]), number, views, "clean")
        plain = float((score(np.random.default_rng(5).random((3000, views.dims))) <= 0).mean())
        spread = 4 * np.sqrt(max(plain, 1e-3) / 3000)
        assert float(row["low"]) - spread <= plain <= float(row["high"]) + spread
        assert -20 <= float(row["affine angle (deg)"]) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("change", ["evaluate.particles=49", "evaluate.failure=-1", "transforms=identity"])
def test_a_part_that_cannot_be_made_is_refused_before_the_attack(monkeypatch, capsys, tmp_path, change):
    words = [*WORDS.split(), "data.count=2", "evaluate.failure=1", change, f"hydra.run.dir={tmp_path / 'run'}"]
    assert call(monkeypatch, *words) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "evaluate." in error and not (tmp_path / "run" / "pictures").exists()
