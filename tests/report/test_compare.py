"""Tables and comparisons of several runs: hostile files, and runs that cannot be compared."""

import itertools
import json
import os
import re

import fsspec
import pytest
import torch

from attacks.commands import main
from attacks.commands.compare import runs_of
from attacks.evaluation.intervals import interval
from attacks.evaluation.significance import paired_shares
from attacks.report.compare import compared, judged
from attacks.runtime.tables import read_rows, write_rows
from attacks.runtime.untrusted import MOST_BYTES
from tests.helpers import reported

FEW = "fewer than two pictures in common: run both with the same data and data.count"
NAMES = [f"{i:03}.png" for i in range(12)]


def made(folder, success, *, names=NAMES, seed=0, views=64, wide=None, targeted=False, pixels=None, **more):
    """A run directory with the files that a comparison reads."""
    folder.mkdir(parents=True)
    rows = [
        {"bank": bank, "arm": arm, "picture": name, "success": value, "cosine": 1 - value}
        for bank in ("same", "wide")[: 1 if wide is None else 2]
        for arm in ("clean", "eot")
        for name, value in zip(names, success, strict=True)
    ]
    write_rows(folder / "per_image.csv", rows)
    content = reported.content(seed=seed, queries=list(names), wide=wide and {"factor": wide}) | more
    content["pixels"] = pixels or [f"digest of {name}" for name in names]
    content["threat"]["targeted"] = targeted
    content["bank"] |= {"views": views, "refine": seed}
    (folder / "metrics.json").write_text(json.dumps(content))
    (folder / "manifest.json").write_text(json.dumps(reported.manifest()))
    return folder


def with_radii(folder, radii, norm="l2"):
    """The same run with the smallest radii of its pictures; None is beyond the largest, 4."""
    path = folder / "metrics.json"
    content = json.loads(path.read_text())
    content["threat"]["norm"] = norm
    path.write_text(json.dumps(content))
    rows = [{"picture": n, "radius": radius, "largest": 4.0} for n, radius in zip(NAMES, radii, strict=True)]
    write_rows(folder / "radii.csv", rows)
    return folder


def test_radii_are_paired_in_one_norm_and_one_beyond_the_largest_counts_as_that(tmp_path):
    one, two = shares(2), [None, *shares(3)[1:]]
    a, b = (with_radii(made(tmp_path / n, shares(0)), radii) for n, radii in (("a", one), ("b", two)))
    (pair,) = [pair for pair in pairs_of(a, b)[0] if pair.measure == "radius l2"]
    differences = torch.tensor([4.0, *two[1:]]).double() - torch.tensor(one).double()
    assert pair.difference.mean == pytest.approx(float(differences.mean()))
    assert pair.pictures == 12 and pair.p is not None
    other = with_radii(made(tmp_path / "c", shares(0)), two, norm="linf")
    assert not [pair for pair in pairs_of(a, other)[0] if "radius" in pair.measure]


def shares(seed):
    return torch.rand(len(NAMES), generator=torch.Generator().manual_seed(seed)).tolist()


def pairs_of(*folders):
    return compared({folder.name: judged(folder) for folder in folders})


def test_the_difference_is_paired_by_name_and_its_test_enumerates_all_signs(tmp_path):
    one, two = shares(0), shares(1)
    a = made(tmp_path / "a", one)
    mixed = [5, 3, 11, 0, 1, 2, 4, 6, 7, 8, 9, 10]
    b = made(tmp_path / "b", [two[i] for i in mixed], names=[NAMES[i] for i in mixed])
    pairs, refused = pairs_of(a, b)
    success, cosine = pairs
    change = torch.tensor(two, dtype=torch.float64) - torch.tensor(one, dtype=torch.float64)
    assert refused == [] and success.pictures == 12 and (success.first, success.second) == ("a", "b")
    assert cosine.difference[:3] == pytest.approx(interval(-change)[:3], abs=1e-12)
    assert success.difference == paired_shares(torch.tensor(two), torch.tensor(one), 64)
    assert success.difference.mean == pytest.approx(float(change.mean()), abs=1e-12)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=12)), dtype=torch.float64)
    exact = ((signs @ change).abs() >= abs(float(change.sum())) - 1e-12).double().mean()
    assert cosine.p == success.p == pytest.approx(float(exact)) and success.p_holm == success.p


def test_p_values_are_corrected_over_the_pairs_of_a_bank_and_measure(tmp_path):
    folders = [made(tmp_path / name, shares(i), wide=1.5) for i, name in enumerate("abc")]
    pairs, _ = pairs_of(*folders)
    assert len(pairs) == 3 * 2 * 2
    for at in {(pair.bank, pair.measure) for pair in pairs}:
        family = sorted((pair.p, pair.p_holm) for pair in pairs if (pair.bank, pair.measure) == at)
        running = 0.0
        for place, (p, corrected) in enumerate(family):
            running = max(running, min(1.0, (3 - place) * p))
            assert corrected == pytest.approx(running)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"seed": 1}, "another seed: run both with seed=0"),
        ({"views": 128}, "another bank: run both with evaluate.views=64"),
        ({"gallery": 9}, "another gallery: run both with the same data"),
        ({"targeted": True}, "another aim: run both with the same objective"),
        ({"names": [f"other {i}" for i in range(12)]}, FEW),
        ({"pixels": [f"other {i}" for i in range(12)]}, FEW),
    ],
)
def test_runs_that_differ_in_more_than_the_attack_are_not_compared(tmp_path, capsys, other, why):
    a, b = made(tmp_path / "a", shares(0)), made(tmp_path / "b", shares(1), **other)
    assert pairs_of(a, b) == ([], [("a", "b", why)])
    assert main(["compare", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert f"not compared: a and b: {why}" in output.err and "| a " in output.out and "| b " in output.out
    assert (tmp_path / "pairs.csv").read_text().count("\n") == 1


def test_runs_whose_views_have_another_order_are_not_compared(tmp_path):
    a, b = made(tmp_path / "a", shares(0)), made(tmp_path / "b", shares(1))
    for folder, names in ((a, ("jpeg", "downscale")), (b, ("downscale", "jpeg"))):
        manifest = json.loads((folder / "manifest.json").read_text())
        manifest["config"]["transforms"] = {"name": "web", "stages": {name: {} for name in names}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    assert pairs_of(a, b) == ([], [("a", "b", "another bank: run both with the same transforms")])
    manifest["config"]["transforms"]["stages"] = {"jpeg": {}, "downscale": {}}
    (b / "manifest.json").write_text(json.dumps(manifest))
    assert pairs_of(a, b)[1] == []


def test_only_banks_that_both_runs_have_are_compared(tmp_path):
    runs = [made(tmp_path / name, shares(i), wide=2.0 if name == "c" else 1.5) for i, name in enumerate("abc")]
    result = {(pair.first, pair.second, pair.bank) for pair in pairs_of(*runs)[0]}
    assert result == {("a", "b", "same"), ("a", "c", "same"), ("b", "c", "same"), ("a", "b", "wide x1.5")}


def test_runs_in_memory_are_compared(tmp_path, capsys):
    for i, name in enumerate("ab"):
        made(tmp_path / "sweep" / name, shares(i))
    fsspec.filesystem("memory").put(str(tmp_path / "sweep"), "/compared", recursive=True)
    assert main(["compare", "memory://compared"]) == 1 and "`--out`" in capsys.readouterr().err
    assert main(["compare", "memory://compared", "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "pairs.csv").read_text().count("\n") > 1


def test_only_pictures_that_both_runs_attacked_are_compared(tmp_path):
    a = made(tmp_path / "a", shares(0))
    changed = [f"digest of {name}" if i < 5 else "other" for i, name in enumerate(NAMES)]
    b = made(tmp_path / "b", shares(1), pixels=changed)
    assert {pair.pictures for pair in pairs_of(a, b)[0]} == {5}


def test_a_sweep_becomes_a_table_a_page_and_two_files(tmp_path, capsys):
    sweep = tmp_path / "sweep"
    for i in (0, 2, 10):
        made(sweep / str(i), shares(i))
        (sweep / str(i) / "report.html").write_text("a page")
    assert main(["compare", str(sweep)]) == 0
    output = capsys.readouterr()
    ranking, first, second = output.out.split("\n\n")
    assert ranking.count("\n") == 2 + 3 - 1
    assert re.findall(r"^\| (\d+)", first, re.MULTILINE) == ["0", "2", "10"]
    assert len(second.splitlines()) == 2 + 3 * 2 + 1 and output.err == ""
    assert len({len(line) for line in first.splitlines()}) == 1  # columns are aligned
    assert 'href="10/report.html"' in (sweep / "index.html").read_text()
    rows = read_rows(sweep / "pairs.csv")
    assert {(row["first"], row["second"]) for row in rows} == {("0", "2"), ("0", "10"), ("2", "10")}
    assert f"{float(rows[0]['mean']):+.2f}" in second
    index = read_rows(sweep / "index.csv")
    assert [row["run"] for row in index] == ["0", "2", "10"]


def test_the_default_folder_of_the_files(tmp_path, capsys):
    a, b = made(tmp_path / "x" / "a", shares(0)), made(tmp_path / "y" / "a", shares(1))
    assert main(["compare", str(a), str(b)]) == 1 and "`--out`" in capsys.readouterr().err
    assert main(["compare", str(a), str(b), str(a), "--out", str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "index.html",
        "index.csv",
        "ranking.csv",
        "pairs.csv",
    }
    assert "| x/a " in capsys.readouterr().out
    c = made(tmp_path / "x" / "c", shares(2))
    assert main(["compare", str(a), str(c)]) == 0 and (tmp_path / "x" / "index.html").exists()


@pytest.mark.parametrize("name", ["index.html", "ranking.csv"])
def test_a_file_of_somebody_else_is_kept(tmp_path, capsys, name):
    a, file = made(tmp_path / "x" / "a", shares(0)), tmp_path / "x" / name
    file.write_text("<h1>my site</h1>")
    assert main(["compare", str(a)]) == 1
    assert f"{file} was not written by viewproof, so it is kept; name another" in capsys.readouterr().err
    assert file.read_text() == "<h1>my site</h1>"
    for _ in range(2):  # its own page is replaced
        assert main(["compare", str(a), "--out", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("arguments", [[], ["nowhere"], ["empty"], ["file"], ["broken"], ["empty", "--fast"]])
def test_an_error_is_one_line_with_exit_code_2(tmp_path, capsys, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "metrics.json").write_text("[" * 100_000)
    assert main(["compare", *arguments]) == 1
    output = capsys.readouterr()
    assert output.err.startswith("error: ") and output.err.count("\n") == 1 and output.out == ""


def test_hostile_files_are_skipped_or_shown_as_text(tmp_path, capsys):
    name = "\x1b[2J|<script>alert(1)</script>\n"
    made(tmp_path / "good", shares(0))
    made(tmp_path / name, shares(1), preset="<b>", encoder={"name": "<img src=x onerror=alert(1)>"})
    cases = {
        "no rows": ("per_image.csv", "bank,arm\n"),
        "no numbers": ("per_image.csv", "bank,arm,picture,success\nsame,eot,a,nan\nsame,eot,b,__import__('os')\n"),
        "long cell": ("per_image.csv", "a\n" + "x" * 200_000),
        "not text": ("per_image.csv", "\udcff"),
        "deep": ("manifest.json", "[" * 100_000),
    }
    for case, (file, content) in cases.items():
        folder = made(tmp_path / case, shares(2))
        (folder / file).write_bytes(content.encode(errors="surrogateescape"))
    with (made(tmp_path / "huge", shares(2)) / "per_image.csv").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    pipe = made(tmp_path / "pipe", shares(2)) / "per_image.csv"
    pipe.unlink()
    os.mkfifo(pipe)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert main(["compare", str(tmp_path)]) == 0
    output = capsys.readouterr()
    for case in ("no rows", "no numbers", "long cell", "not text", "huge", "pipe"):
        assert f"skipped: {case}: " in output.err
    assert "\x1b" not in output.out + output.err
    for line in output.out.splitlines():
        assert not line.startswith("|") or line.count(" | ") in (8, 9, 7)
    page = (tmp_path / "index.html").read_text()
    assert "<script>alert" not in page and "<img src=x" not in page and "<b>" not in page


def test_too_many_runs_or_folders_are_refused(tmp_path, monkeypatch):
    made(tmp_path / "a", shares(0))
    made(tmp_path / "b", shares(1))
    monkeypatch.setattr("attacks.commands.compare.MOST_RUNS", 1)
    with pytest.raises(ValueError, match="at most 1 runs"):
        runs_of([tmp_path])
    monkeypatch.setattr("attacks.commands.compare.MOST_FOLDERS", 0)
    with pytest.raises(ValueError, match="more than 0 folders"):
        runs_of([tmp_path])
    monkeypatch.setattr("attacks.report.compare.MOST_PAIRS", 0)
    with pytest.raises(ValueError, match="more than 0 pairs"):
        pairs_of(tmp_path / "a", tmp_path / "b")
