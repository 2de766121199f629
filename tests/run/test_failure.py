"""`viewproof failure`: its score agrees with the judge, its probability with plain views, and wrong inputs."""

import numpy as np
import pytest
import torch

from attacks.commands import main
from attacks.evaluation.failure import score_of
from attacks.experiment.reopened import reopened
from attacks.experiment.view_scores import read_scores
from attacks.runtime.tables import read_rows
from tests.run.test_run import call

WORDS = "config=quickstart attack.gradients=8 evaluate.views=64 data.size=32 perturbation.eps=24/255 sanity=none"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failure") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert call(patch, *WORDS.split(), "data.count=4", f"hydra.run.dir={folder}") == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["clean", "eot"])
def test_the_sign_of_the_score_is_the_judges_verdict(finished, arm):
    bench, success = reopened(finished), read_scores(finished).success["same"][arm]
    bank = bench.banks["same"]
    for row in range(len(bench.parts.queries)):
        score = score_of(bench.judge, bench.exhibits.shown(arm, [row]), row, bank.transforms, arm)
        failed = torch.from_numpy(score(bank.u.double().numpy()) <= 0)
        assert torch.equal(failed, success[row] if arm == "clean" else ~success[row])
    assert 0 < success.double().mean() < 1


@pytest.mark.slow
def test_probabilities_agree_with_plain_views_and_are_written(finished, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["failure", str(finished), "--pictures", "2", "--particles", "100", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = read_rows(out / "failure.csv")
    assert len(rows) == 2 and len(lines) == 3 and (out / "views.png").stat().st_size > 1000
    bench = reopened(finished)
    views = bench.banks["same"].transforms
    for number, row in enumerate(rows):
        assert lines[number].startswith(f"{row['picture']} clean: ")
        score = score_of(bench.judge, bench.exhibits.shown("clean", [number]), number, views, "clean")
        plain = float((score(np.random.default_rng(5).random((3000, views.dims))) <= 0).mean())
        spread = 4 * np.sqrt(max(plain, 1e-3) / 3000)
        assert float(row["low"]) - spread <= plain <= float(row["high"]) + spread
        if float(row["p"]):
            assert -20 <= float(row["affine angle (deg)"]) <= 20


@pytest.mark.slow
def test_wrong_inputs_are_one_line(finished, tmp_path, capsys):
    for arguments, part in (
        ([str(finished), "--particles", "10"], "`--particles` must be at least 50"),
        ([str(finished), "--pictures", "0"], "`--pictures` must be at least 1"),
        ([str(finished), "--arm", "noise"], "invalid choice"),
        ([str(tmp_path)], "manifest.json|metrics.json"),
    ):
        assert main(["failure", *arguments]) == 1
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and any(each in error for each in part.split("|")), error
