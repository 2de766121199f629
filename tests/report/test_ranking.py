"""Rankings of encoders: laws of letters and places, names of runs, curves, and hostile names."""

import itertools
import json
import re
import shutil

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.commands import main
from attacks.commands.compare import labels
from attacks.report.compare import compared, judged
from attacks.report.index import collect
from attacks.report.leaderboard import drawing
from attacks.report.ranking import boards, charts, letters
from attacks.runtime.tables import read_rows
from tests.report.test_compare import NAMES, made, shares

EPS = (4 / 255, 8 / 255)


def run(folder, level, eps=EPS[0], wide=None, name="pocket", seed=0):
    """A run in which the attack succeeds on about `level` of the views of each picture."""
    success = [min(1.0, max(0.0, level + 0.1 * (share - 0.5))) for share in shares(seed)]
    mean = {"mean": sum(success) / len(success), "low": max(0.0, level - 0.1), "high": min(1.0, level + 0.1)}
    arm = {"success": mean | {"kind": "interval"}, "cosine": mean | {"mean": 1 - mean["mean"], "kind": "interval"}}
    content = {"encoder": {"name": name, "sha256": name}, "arms": {"eot": arm}}
    content |= {"primary": {"measure": "success"}, "threat": {"norm": "linf", "eps": eps, "transforms": "camera"}}
    made(folder, success, wide=None, **content)
    if wide is not None:
        path = folder / "metrics.json"
        whole = json.loads(path.read_text())
        whole["wide"] = {"factor": wide, "arms": {"eot": arm}}
        path.write_text(json.dumps(whole))
    return folder


def tables_of(folders):
    rows = {row.directory.name: row for row in collect(folders).rows}
    runs = {name: judged(row.directory) for name, row in rows.items()}
    return boards(rows, runs, compared(runs)[0])


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.tuples(*[st.integers(0, n - 1)] * 2)))))
@settings(max_examples=150, deadline=None)
def test_two_share_a_letter_exactly_if_they_are_not_apart(drawn):
    n, raw = drawn
    names = [f"run {i}" for i in range(n)]
    apart = {frozenset((names[i], names[j])) for i, j in raw if i != j}
    marks = letters(names, apart)
    assert set(marks) == set(names) and all(marks.values()) and marks[names[0]].startswith("a")
    for first, second in itertools.combinations(names, 2):
        assert bool(set(marks[first]) & set(marks[second])) == (frozenset((first, second)) not in apart)
    used = set("".join(marks.values()))
    assert used == {chr(ord("a") + i) for i in range(len(used))}
    members = [{name for name in names if letter in marks[name]} for letter in used]
    assert not any(one < other for one in members for other in members)  # no letter is superfluous


def test_too_many_groups_have_no_letters():
    names = [f"{i}" for i in range(40)]
    pairs = {frozenset((names[i], names[i + 1])) for i in range(0, 40, 2)}  # 2 ** 20 groups
    assert letters(names, pairs) == {}


def test_places_and_letters_do_not_depend_on_the_order_of_runs_and_follow_the_pairs(tmp_path):
    levels = {"a": 0.2, "b": 0.21, "c": 0.6, "d": 0.9}
    folders = [
        run(tmp_path / name, level, name=f"of {name}", seed=i) for i, (name, level) in enumerate(levels.items())
    ]
    answers = []
    for order in (folders, folders[::-1], [folders[i] for i in (2, 0, 3, 1)]):
        (table,) = tables_of(order)
        answers.append([(each.name, each.place, each.value, each.letters) for each in table.standings])
    assert answers[0] == answers[1] == answers[2]
    means = [value.mean for *_, value, _ in answers[0]]
    assert means == sorted(means)
    marks = {name: mark for name, *_, mark in answers[0]}
    runs = {folder.name: judged(folder) for folder in folders}
    for pair in compared(runs)[0]:
        if pair.measure == "success":
            assert bool(set(marks[pair.first]) & set(marks[pair.second])) == (pair.p_holm >= 0.05)
    assert marks["a"] != marks["d"]


def test_each_threat_has_a_table_and_encoders_a_line_over_eps_and_width(tmp_path):
    folders = [
        run(tmp_path / f"{name}{i}", level + 0.2 * i, eps, wide=2.0, name=name)
        for name, level in (("one", 0.1), ("two", 0.6))
        for i, eps in enumerate(EPS)
    ]
    tables = tables_of(folders)
    assert [[each.name for each in table.standings] for table in tables] == [["one0", "two0"], ["one1", "two1"]]
    over_eps, *over_width = charts(tables)
    assert (over_eps.over, [line.name for line in over_eps.series]) == ("linf", ["one", "two"])
    for line in over_eps.series:
        assert [x for x, _ in line.points] == list(EPS)
        values = [row.arms["eot"]["success"] for row in collect(folders).rows if row.encoder == line.name]
        assert [value for _, value in line.points] == values
    assert [[x for x, _ in chart.series[0].points] for chart in over_width] == [[1.0, 2.0], [1.0, 2.0]]
    pairs = compared({folder.name: judged(folder) for folder in folders})[0]
    same = [pair for pair in pairs if pair.first[-1] == pair.second[-1]]
    assert all(pair.p_holm == pair.p for pair in same)  # one pair of each threat: nothing to correct
    assert "<svg" in drawing(over_eps, "a")


def test_runs_of_other_protocols_or_pictures_are_not_ranked_together(tmp_path):
    a = run(tmp_path / "a", 0.1)
    b = made(tmp_path / "b", shares(0), seed=1)
    c = made(tmp_path / "c", shares(0), names=[f"x{name}" for name in NAMES])
    assert tables_of([a, b, c]) == []


def test_runs_of_two_sweeps_have_two_names_everywhere(tmp_path, capsys):
    for sweep, i in itertools.product(("first", "second"), range(2)):
        run(tmp_path / sweep / str(i), 0.2 + 0.4 * i, name=f"{sweep} {i}")
    out = tmp_path / "out"
    assert main(["compare", str(tmp_path / "first"), str(tmp_path / "second"), "--out", str(out)]) == 0
    names = {f"{sweep}/{i}" for sweep in ("first", "second") for i in range(2)}
    assert {row["run"] for row in read_rows(out / "index.csv")} == names
    assert {row["run"] for row in read_rows(out / "ranking.csv")} == names
    page = (out / "index.html").read_text()
    printed = capsys.readouterr().out
    assert all(name in page and name in printed for name in names)


def test_runs_of_two_remote_sweeps_have_the_names_of_their_locations(tmp_path, capsys):
    memory = fsspec.filesystem("memory")
    for sweep in ("one", "two"):
        memory.put(str(run(tmp_path / sweep / "0", 0.3, name=sweep)), f"/{sweep}/0", recursive=True)
    arguments = ["compare", "memory://one", "memory://two", "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    first = capsys.readouterr().out
    shutil.rmtree(tmp_path / "out")
    assert main(arguments) == 0 and capsys.readouterr().out == first  # no name of a temporary folder
    assert {row["run"] for row in read_rows(tmp_path / "out" / "index.csv")} == {"one/0", "two/0"}


def test_labels_are_the_paths_below_the_common_folder(tmp_path):
    runs = [tmp_path / "a" / "0", tmp_path / "b" / "0"]
    assert list(labels(runs).values()) == ["a/0", "b/0"]
    assert list(labels(runs[:1]).values()) == ["0"]


def test_names_of_encoders_cannot_change_the_page(tmp_path):
    evil = "<script>alert(1)</script> $x_{$"
    for i, name in enumerate((evil, "pocket")):
        for j, eps in enumerate(EPS):
            run(tmp_path / f"{i}{j}", 0.2 + 0.5 * i, eps, name=name)
    assert main(["compare", str(tmp_path)]) == 0
    page = (tmp_path / "index.html").read_text()
    assert "<script>alert" not in page and page.count("<svg") == 1
    assert re.search(r"Which encoder is the most robust", page)


@pytest.mark.parametrize("few", [3, 12])
def test_too_few_clusters_say_how_many_are_needed(tmp_path, few):
    for i in range(2):
        made(tmp_path / str(i), shares(i)[:few], names=NAMES[:few], primary={"measure": "success"})
    (table,) = tables_of([tmp_path / "0", tmp_path / "1"])
    assert (table.needed is None) == (few == 12)
    assert all(bool(each.letters) == (few == 12) for each in table.standings)
