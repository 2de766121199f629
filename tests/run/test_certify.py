"""`viewproof certify`: its table is that of the certifier on the run's own files, and a wrong deviation fails it."""

import pytest
import torch

import attacks.commands.certify
from attacks.commands import main
from attacks.evaluation.certificate import Certifier, certified_figures, smoothing
from attacks.experiment.preparation import reopen
from attacks.runtime.tables import read_rows
from tests.helpers.runs import LEAN, TINY

WORDS = [*TINY, *LEAN, "evaluate.wide=1", "engine=fixed", "defence=smooth", "defence.views=2", "perturbation=l2"]
RADII = (0.05, 0.2)
ARGUMENTS = ["--samples", "200", "--radii", *map(str, RADII)]


@pytest.fixture
def finished(shared_runs):
    return shared_runs(*WORDS, "perturbation.eps=4")


@pytest.mark.slow
def test_the_table_is_that_of_the_files_with_floors_below_values(finished, tmp_path, capsys):
    for out in ("first", "second"):
        assert main(["certify", str(finished), *ARGUMENTS, "--out", str(tmp_path / out)]) == 0
    rows = read_rows(tmp_path / "first" / "certificate.csv")
    assert rows == read_rows(tmp_path / "second" / "certificate.csv") and len(rows) == 3 * (1 + len(RADII))
    assert (tmp_path / "first" / "certificate.png").stat().st_size > 1000
    bench = reopen(finished)
    judge, number = bench.judge, 1
    clean, image = (bench.exhibits.pictures(arm, [number]) for arm in ("clean", "eot"))
    certifier = Certifier(*smoothing(bench.study.encoder), RADII, 200, seed=bench.study.seed)
    mask = torch.arange(len(judge.gallery)) != judge.truth[number]
    gallery = judge.gallery[judge.truth[number]], judge.gallery[mask]
    expected = certifier.rows(clean, image - clean, judge.own[number], gallery, lambda: None)
    lines = [row for row in rows if row["picture"] == bench.study.queries.names[number]]
    for row, other in zip(lines, expected, strict=True):
        for key, value in other.items():
            assert float(row[key]) == pytest.approx(float(value), abs=1e-5)
    for floor, value, *shares in certified_figures(rows).values():
        assert floor.mean < value.mean and shares[0].mean <= shares[1].mean
    assert capsys.readouterr().out.count("radius 0.2: similarity at least") == 2


@pytest.mark.slow
def test_a_wrong_deviation_writes_the_files_and_fails_the_command(finished, tmp_path, monkeypatch):
    def misread(encoder):
        return encoder, 1e4

    monkeypatch.setattr(attacks.commands.certify, "smoothing", misread)
    words = ["--samples", "2000", "--radii", "40", "--pictures", "1", "--out", str(tmp_path)]
    with pytest.raises(RuntimeError, match="WRONG: 1 of 2 floors above what was found"):
        main(["certify", str(finished), *words])
    assert [row["wrong"] for row in read_rows(tmp_path / "certificate.csv")] == ["0", "1"]
    assert (tmp_path / "certificate.png").exists()
