"""Comparisons of runs: pairs and ranking; runs that cannot be compared, and hostile files."""

import itertools
import os
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.commands import main
from attacks.commands.compare import run_directories
from attacks.inference.pairs import sign_flips
from attacks.report.columns import csv_rows, page_table, text_rows
from attacks.report.comparison import FILES, RANKING, compare_runs, significance_letters
from attacks.report.pairs import PAIRS, compare_pairs, read_pair_scores
from attacks.report.runs import GROUPS, RUNS
from attacks.runtime.tables import read_rows, write_rows
from attacks.runtime.untrusted import MOST_BYTES
from tests.helpers.run_directories import EPS, NAMES, encoder, run, shares
from tests.helpers.wrong import refused

FEW_PICTURES = "fewer than two pictures in common: run both with the same data and data.count"


def run_pairs(*folders):
    return compare_pairs({folder.name: read_pair_scores(folder) for folder in folders})


def compare(*folders):
    return compare_runs({folder: folder.name for folder in folders})


def test_the_difference_is_paired_by_name_and_its_test_enumerates_all_signs(tmp_path):
    first, second = shares(0), shares(1)
    order = [5, 3, 11, 0, 1, 2, 4, 6, 7, 8, 9, 10]
    b = run(tmp_path / "b", [second[i] for i in order], names=[NAMES[i] for i in order])
    pairs, refusals = run_pairs(run(tmp_path / "a", first), b)
    success, cosine = pairs
    change = torch.tensor(second, dtype=torch.float64) - torch.tensor(first, dtype=torch.float64)
    assert refusals == [] and success.pictures == 12 and (success.first, success.second) == ("a", "b")
    assert cosine.difference[:3] == pytest.approx([-success.difference[i] for i in (0, 2, 1)], abs=1e-12)
    exact_values = (torch.tensor(values, dtype=torch.float64) for values in (second, first))
    assert success.difference == sign_flips(*exact_values).difference
    assert success.difference.mean == pytest.approx(float(change.mean()), abs=1e-12)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=12)), dtype=torch.float64)
    exact = ((signs @ change).abs() >= abs(float(change.sum())) - 1e-12).double().mean()
    assert cosine.p == success.p == pytest.approx(float(exact))


def test_radii_are_paired_in_one_norm_and_count_at_most_as_the_largest(tmp_path):
    first, second = shares(2), [None, *shares(3)[1:]]
    radii = {"a": (first, "l2"), "b": (second, "l2"), "c": (second, "linf")}
    a, b, c = (run(tmp_path / n, shares(0), radii=of_run, threat={"norm": x}) for n, (of_run, x) in radii.items())
    rows = read_rows(a / "radii.csv")
    write_rows(a / "radii.csv", [*rows, rows[0] | {"picture": "in no other table"}])
    (pair,) = [pair for pair in run_pairs(a, b)[0] if pair.measure == "radius l2"]
    differences = torch.tensor([4.0, *second[1:]]).double() - torch.tensor(first).double()
    assert pair.difference.mean == pytest.approx(float(differences.mean()))
    assert pair.pictures == 12 and pair.p is not None
    assert not [pair for pair in run_pairs(a, c)[0] if "radius" in pair.measure]


def test_p_values_are_corrected_over_the_pairs_of_a_bank_and_measure_that_both_runs_have(tmp_path):
    widths = {"a": 1.5, "b": 1.5, "c": 1.5, "d": 2.0}
    pairs, _ = run_pairs(*(run(tmp_path / name, shares(i), wide=widths[name]) for i, name in enumerate(widths)))
    assert {(pair.first + pair.second) for pair in pairs if pair.bank == "wide x1.5"} == {"ab", "ac", "bc"}
    for key in {(pair.bank, pair.measure) for pair in pairs}:
        family = [pair for pair in pairs if (pair.bank, pair.measure) == key]
        assert len(family) == (6 if key[0] == "same" else 3)
        for pair in family:
            low, high = pair.difference[1:3]
            assert pair.p == 1 or pair.p * 2**11 % len(family) == 0
            assert (pair.p < 0.05) != (low <= 0 <= high)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"seed": 1}, "another seed: run both with seed=0"),
        ({"views": 128}, "another bank: run both with evaluate.views=64"),
        (
            {"stages": {"downscale": {"size": [0.5, 1.0]}, "jpeg": {}}},
            "another bank: run both with the same transforms",
        ),
        (
            {"side": 224},
            "another bank: encoders of 96 and 224 pixels see other views; give the sizes in transforms in pixels",
        ),
        ({"gallery": 9}, "another gallery: run both with the same data"),
        ({"threat": {"targeted": True}}, "another aim: run both with the same objective"),
        ({"names": [f"other {i}" for i in range(12)]}, FEW_PICTURES),
        ({"pixels": [f"other {i}" for i in range(12)]}, FEW_PICTURES),
    ],
)
def test_runs_that_differ_in_more_than_the_attack_are_neither_compared_nor_ranked(tmp_path, other, reason):
    stages = {"jpeg": {}, "downscale": {"size": [0.5, 1.0]}}
    folders = [run(tmp_path / "a", shares(0), stages=stages)]
    folders.append(run(tmp_path / "b", shares(1), **({"stages": stages} | other)))
    result = compare(*folders)
    assert (result.pairs, result.tables, result.refusals) == ([], [], [f"a and b: {reason}"])
    assert len(result.runs) == 2


@pytest.mark.parametrize("other", [{"seed": 1}, {"views": 128}, {"stages": {"jpeg": {}}}, {"gallery": 9}])
def test_runs_that_differ_in_one_key_are_compared_picture_by_picture(tmp_path, other):
    keys, values = ("attack.name", "transforms.name", "transforms.kernel"), (shares(0), shares(1))
    first = run(tmp_path / "a", values[0], identity=dict.fromkeys(keys, '"x"'))
    one = {"transforms.name": '"y"', "transforms.kernel": '"y"', "the version of torch": "2"}  # of one group
    second = run(tmp_path / "b", values[1], identity=dict.fromkeys(keys, '"x"') | one, **other)
    result = compare(first, second)
    assert (result.refusals, result.tables) == ([], []) and [run.name for run in result.runs] == [
        "a: transforms=x",
        "b: transforms=y",
    ]
    expected = compare(first, run(tmp_path / "c", values[1])).pairs  # of one protocol
    assert [pair.difference for pair in result.pairs] == [pair.difference for pair in expected]
    third = run(tmp_path / "d", values[1], identity=dict.fromkeys(keys, '"z"'), **other)
    assert compare(first, third).pairs == []
    aim = run(tmp_path / "e", values[1], identity=dict.fromkeys(keys, '"x"') | one, threat={"targeted": True})
    assert "another aim" in compare(first, aim).refusals[0]


def test_the_input_of_an_encoder_matters_only_to_views_with_shares_as_sizes(tmp_path):
    stages = {"jpeg": {}, "downscale": {"size": [48, 96]}}
    folders = [run(tmp_path / name, shares(side), stages=stages, side=side) for name, side in (("a", 96), ("b", 224))]
    result = compare(*folders)
    assert result.refusals == [] and len(result.tables) == 1


def test_only_pictures_that_both_runs_attacked_are_compared(tmp_path):
    pixels = [f"digest of {name}" if i < 5 else "other" for i, name in enumerate(NAMES)]
    folders = run(tmp_path / "a", shares(0)), run(tmp_path / "b", shares(1), pixels=pixels)
    assert {pair.pictures for pair in run_pairs(*folders)[0]} == {5}


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.tuples(*[st.integers(0, n - 1)] * 2)))))
@settings(max_examples=150, deadline=None)
def test_two_share_a_letter_exactly_if_they_do_not_differ(case):
    n, raw = case
    names = [f"run {i}" for i in range(n)]
    differing = {frozenset((names[i], names[j])) for i, j in raw if i != j}
    marks = significance_letters(names, differing)
    assert set(marks) == set(names) and all(marks.values()) and marks[names[0]].startswith("a")
    for first, second in itertools.combinations(names, 2):
        assert bool(set(marks[first]) & set(marks[second])) == (frozenset((first, second)) not in differing)
    used = set("".join(marks.values()))
    assert used == {chr(ord("a") + i) for i in range(len(used))}
    members = [{name for name in names if letter in marks[name]} for letter in used]
    assert not any(group < other for group in members for other in members)  # no letter is superfluous


def test_too_many_groups_have_no_letters():
    names = [f"{i}" for i in range(40)]
    pairs = {frozenset((names[i], names[i + 1])) for i in range(0, 40, 2)}  # 2 ** 20 groups
    assert significance_letters(names, pairs) == {}


def test_places_and_letters_do_not_depend_on_the_order_of_runs_and_follow_the_pairs(tmp_path):
    levels = {"a": 0.2, "b": 0.21, "c": 0.6, "d": 0.9}
    folders = [encoder(tmp_path / n, level, name=f"of {n}", seed=i) for i, (n, level) in enumerate(levels.items())]
    answers = []
    for order in (folders, folders[::-1], [folders[i] for i in (2, 0, 3, 1)]):
        (table,) = compare(*order).tables
        answers.append([(row.run.name, row.place, row.value, row.letters) for row in table])
    assert answers[0] == answers[1] == answers[2]
    means = [value.mean for *_, value, _ in answers[0]]
    assert means == sorted(means)
    marks = {name: mark for name, *_, mark in answers[0]}
    for pair in run_pairs(*folders)[0]:
        if pair.measure == "success":
            assert bool(set(marks[pair.first]) & set(marks[pair.second])) == (pair.p >= 0.05)
    assert marks["a"] != marks["d"]


@pytest.mark.parametrize("count", [3, 12])
def test_too_few_clusters_say_how_many_are_needed(tmp_path, count):
    primary = {"primary": {"measure": "success"}}
    folders = (run(tmp_path / n, shares(i)[:count], names=NAMES[:count], **primary) for i, n in enumerate("ab"))
    (table,) = compare(*folders).tables
    assert all((row.clusters_needed is None) == bool(row.letters) == (count == 12) for row in table)
    assert ("too few clusters: 6 needed" in text_rows(RANKING, table)[1]) == (count == 3)


def test_each_threat_has_a_table(tmp_path):
    folders = [
        encoder(tmp_path / f"{name}{i}", level + 0.2 * i, eps, name=name)
        for name, level in (("one", 0.1), ("two", 0.6))
        for i, eps in enumerate(EPS)
    ]
    result = compare(*folders)
    assert [[row.run.name for row in table] for table in result.tables] == [["one0", "two0"], ["one1", "two1"]]


def test_csv_file_terminal_and_page_have_the_same_values(tmp_path):
    folders = [run(tmp_path / n, shares(i), wide=1.5, primary={"measure": "success"}) for i, n in enumerate("abc")]
    result = compare(*folders)
    for columns, rows in ((RUNS, result.runs), (RANKING, result.standings), (PAIRS, result.pairs)):
        write_rows(tmp_path / "a.csv", csv_rows(columns, rows))
        head, *lines = text_rows(columns, rows)
        page = page_table(columns, rows, [None] * len(rows), GROUPS if columns is RUNS else ("",))
        assert sum(span for _, span in page["spans"]) in (0, len(page["columns"]))
        for i, cells in enumerate(read_rows(tmp_path / "a.csv")):
            for column in columns:
                value = column.value(rows[i])
                if column.csv and column.kind == "interval" and value is not None:
                    prefix = "" if column.csv == "mean" else f"{column.csv}_"
                    texts = [cells[key] for key in (column.csv, f"{prefix}low", f"{prefix}high")]
                    assert [*map(float, texts)] == [*value[:3]]
                elif column.csv:
                    assert cells[column.csv] == ("" if value is None else str(value))
                if column.terminal in head and value is not None:
                    assert lines[i][head.index(column.terminal)][:4] in f"{value}" or column.kind == "interval"
                if column in page["columns"]:
                    assert page["rows"][i][1][page["columns"].index(column)] == value


def test_a_sweep_becomes_a_table_a_page_and_files(tmp_path, capsys):
    sweep = tmp_path / "sweep"
    for i in (0, 2, 10):
        run(sweep / str(i), shares(i))
    assert main(["compare", str(sweep)]) == 0
    output = capsys.readouterr()
    ranking, first, second = output.out.split("\n\n")
    assert ranking.count("\n") == 2 + 3 - 1
    assert re.findall(r"^\| (\d+)", first, re.MULTILINE) == ["0", "2", "10"]
    assert len(second.splitlines()) == 2 + 3 * 2 + 1 and output.err == ""
    assert len({len(line) for line in first.splitlines()}) == 1  # columns are aligned
    page, rows = (sweep / "index.html").read_text(), read_rows(sweep / "pairs.csv")
    assert 'href="10/report.html"' in page
    assert {(row["first"], row["second"]) for row in rows} == {("0", "2"), ("0", "10"), ("2", "10")}
    assert f"{float(rows[0]['mean']):+.2f}" in second
    assert [row["run"] for row in read_rows(sweep / "index.csv")] == ["0", "2", "10"]
    heads = re.findall(r'<th scope="col" data-type="(number|text)"><button type="button">', page)
    for line in re.findall(r'<tr><th scope="row".*?</tr>', page[page.index('id="runs"') :], re.DOTALL):
        values = re.findall(r'data-value="([^"]*)"', line)
        assert len(values) == len(heads)
        numbers = [value for value, kind in zip(values, heads, strict=True) if kind == "number" and value]
        assert all(float(value) < 1e9 for value in numbers)


def test_the_default_folder_and_the_names_of_runs(tmp_path, capsys):
    a, b = run(tmp_path / "x" / "a", shares(0)), run(tmp_path / "y" / "a", shares(1))
    assert main(["compare", str(a), str(b)]) == 1 and "`--out`" in capsys.readouterr().err
    out = tmp_path / "out"
    assert main(["compare", str(a), str(b), str(a), "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == {*FILES}
    output, page = capsys.readouterr().out, (out / "index.html").read_text()
    assert all(name in page and f"| {name} " in output for name in ("x/a", "y/a"))
    for file in ("index.csv", "ranking.csv"):
        assert {row["run"] for row in read_rows(out / file)} == {"x/a", "y/a"}
    c = run(tmp_path / "x" / "c", shares(2))
    assert main(["compare", str(a), str(c)]) == 0 and (tmp_path / "x" / "index.html").exists()


@pytest.mark.parametrize("name", ["index.html", "ranking.csv"])
def test_a_foreign_file_stays(tmp_path, capsys, name):
    a, file = run(tmp_path / "x" / "a", shares(0)), tmp_path / "x" / name
    file.write_text("<h1>my site</h1>")
    assert main(["compare", str(a)]) == 1
    assert f"{file} was not written by viewproof, so it is kept; name another" in capsys.readouterr().err
    assert file.read_text() == "<h1>my site</h1>"
    for _ in range(2):  # its own page is replaced
        assert main(["compare", str(a), "--out", str(tmp_path / "out")]) == 0


def test_hostile_files_are_skipped_or_shown_as_text(tmp_path, capsys):
    name = "\x1b[2J|<script>alert(1)</script>\n"
    evil = {"name": "<img src=x onerror=alert(1)> $x_{$"}
    for i, eps in enumerate(EPS):
        run(tmp_path / f"good{i}", shares(0), threat={"eps": eps}, primary={"measure": "success"})
        run(tmp_path / f"{i}{name}", shares(1), threat={"eps": eps}, preset="<b>", encoder=evil)
    cases = {
        "no rows": ("per_image.csv", "bank,arm\n"),
        "no numbers": ("per_image.csv", "bank,arm,picture,success\nsame,eot,a,nan\nsame,eot,b,__import__('os')\n"),
        "long cell": ("per_image.csv", "a\n" + "x" * 200_000),
        "not text": ("per_image.csv", "\udcff"),
        "deep": ("manifest.json", "[" * 100_000),
    }
    for case, (file, content) in cases.items():
        (run(tmp_path / case, shares(2)) / file).write_bytes(content.encode(errors="surrogateescape"))
    with (run(tmp_path / "huge", shares(2)) / "per_image.csv").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    pipe = run(tmp_path / "pipe", shares(2)) / "per_image.csv"
    pipe.unlink()
    os.mkfifo(pipe)
    (tmp_path / "loop").symlink_to(tmp_path)
    assert main(["compare", str(tmp_path)]) == 0
    output = capsys.readouterr()
    for case in (*cases, "huge", "pipe"):
        assert f"skipped: {case}: " in output.err
    assert "\x1b" not in output.out + output.err
    tables = [part.splitlines() for part in output.out.split("\n\n")]
    assert all(len({line.count(" | ") for line in table if line.startswith("|")}) == 1 for table in tables)
    page = (tmp_path / "index.html").read_text()
    assert "<script>alert" not in page and "<img src=x" not in page and "<b>" not in page


def test_too_many_runs_or_folders_are_refused(tmp_path, monkeypatch):
    folders = [run(tmp_path / name, shares(i)) for i, name in enumerate("ab")]
    monkeypatch.setattr("attacks.commands.compare.MAX_RUNS", 1)
    refused("at most 1 runs", run_directories, [tmp_path])
    monkeypatch.setattr("attacks.commands.compare.MAX_FOLDERS", 0)
    refused("more than 0 folders", run_directories, [tmp_path])
    monkeypatch.setattr("attacks.report.pairs.MAX_PAIRS", 0)
    refused("more than 0 pairs", run_pairs, *folders)
