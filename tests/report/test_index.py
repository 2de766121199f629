"""The index of a sweep: rows from hostile directories, and the page."""

import base64
import csv
import hashlib
import json
import math
import re

import pytest

from attacks.experiment.job import index
from attacks.report.index import collect, own_page, place, write_index
from attacks.report.warnings import warnings
from attacks.runtime.untrusted import MOST_LETTERS
from tests.helpers import reported
from tests.report.test_page import Page

SEEDS = (3, 1, 2)


def run(folder, content, manifest=None):
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(content))
    if manifest is not None:
        (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "report.html").write_text("a report")
    return folder


@pytest.fixture
def sweep(tmp_path):
    return [run(tmp_path / str(i), reported.content(seed=seed), reported.manifest()) for i, seed in enumerate(SEEDS)]


def test_a_row_has_the_values_of_its_run(sweep):
    (row, *_), skipped = collect(sweep)
    content = reported.content(seed=3)
    assert skipped == [] and (row.seed, row.pictures, row.clusters, row.preset) == (3, 15, 12, "evaluate")
    assert (row.encoder, row.threat, row.transforms) == ("pocket", "linf 16/255", "camera")
    for arm, result in content["arms"].items():
        for measure in ("success", "cosine"):
            assert row.arms[arm][measure]._asdict() == result[measure]
            assert row.wide[arm][measure]._asdict() == content["wide"]["arms"][arm][measure]
    assert row.worst._asdict() == content["arms"]["eot"]["worst_cosine"]
    assert (row.passes, row.seconds, row.warnings) == (20010 + 12000, 125.0, len(warnings(content)))


def test_the_csv_holds_every_number_bit_for_bit(sweep, tmp_path):
    rows = collect(sweep).rows
    write_index(tmp_path / "index.html", rows)
    with (tmp_path / "index.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    for row, line in zip(rows, lines, strict=True):
        flat = row.flat(row.directory.name)
        assert float(line["eot_success_low"]) == row.arms["eot"]["success"].low
        assert float(line["wide_no_eot_cosine"]) == row.wide["no_eot"]["cosine"].mean
        assert [(key, value == "") for key, value in line.items()] == [
            (k, value is None) for k, value in flat.items()
        ]


def test_every_numeric_column_is_sortable_and_every_row_has_all_columns(sweep, tmp_path):
    rows = collect(sweep).rows
    write_index(tmp_path / "index.html", rows)
    text = (tmp_path / "index.html").read_text()
    heads = re.findall(r'<th scope="col" data-type="(number|text)"><button type="button">', text)
    lines = re.findall(r'<tr><th scope="row".*?</tr>', text, re.DOTALL)
    assert len(lines) == 3
    for row, line in zip(rows, lines, strict=True):
        values = re.findall(r'data-value="([^"]*)"', line)
        assert len(values) == len(heads)
        known = [float(value) for value, head in zip(values, heads, strict=True) if head == "number" and value]
        assert {row.arms["eot"]["success"].mean, row.worst.mean, row.wide["eot"]["cosine"].mean} <= set(known)
        assert all(math.isfinite(value) for value in known)
    spans = sum(int(result) for result in re.findall(r'class="span" colspan="(\d+)"', text))
    assert spans == len(heads) - 1


def test_a_run_without_a_part_has_an_empty_cell(tmp_path):
    some = reported.content(wide=None)
    del some["arms"]["one_view"], some["cost"], some["arms"]["eot"]["worst_cosine"]
    (row,), _ = collect([run(tmp_path / "a", some)])
    assert row.wide == {} and row.worst is None and row.passes is None and row.seconds is None
    write_index(tmp_path / "index.html", [row])
    assert "not measured" in (tmp_path / "index.html").read_text()
    assert row.flat("a").keys() == collect([run(tmp_path / "b", reported.content())]).rows[0].flat("b").keys()


def test_an_index_without_runs_is_a_page(tmp_path):
    write_index(tmp_path / "index.html", [], collect([tmp_path]).skipped)
    assert "Left out" in Page((tmp_path / "index.html").read_text()).text


BROKEN = {
    "empty": ("", "is not JSON"),
    "half": ('{"schema": 2, "arms": {"eot"', "is not JSON"),
    "deep": ("[" * 100_000, "is not JSON"),
    "list": ("[1, 2]", "it holds a list"),
    "binary": ("\udcff\udcfe", "is not JSON"),
    "foreign": ('{"loss": 3}', "it has no `queries`"),
    "no arms": ('{"queries": [], "threat": {"eps": 1}, "arms": {"a": 1}}', "it has no arms"),
    "wrong arms": ('{"queries": [], "threat": {"eps": 1}, "arms": {"eot": {"success": {"mean": "1"}}}}', "no arms"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_or_foreign_directory_is_left_out_with_its_reason(tmp_path, sweep, name):
    text, reason = BROKEN[name]
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "metrics.json").write_bytes(text.encode(errors="surrogateescape"))
    rows, skipped = collect([sweep[0], tmp_path / "broken", sweep[1]])
    assert [row.seed for row in rows] == [3, 1]
    assert [each.directory.name for each in skipped] == ["broken"] and reason in skipped[0].reason


def test_missing_files_are_left_out_too(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "metrics.json").symlink_to("metrics.json")
    rows, skipped = collect([tmp_path / "none", tmp_path / "file", tmp_path / "loop"])
    assert rows == [] and all("`metrics.json`" in each.reason for each in skipped) and len(skipped) == 3


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-1e999", "1e400", "true", '"0.5"', "null", "[0.5]", "10" * 400]
)
def test_a_value_that_is_not_a_number_is_none(tmp_path, number):
    content = json.dumps(reported.content()).replace('"seconds": 125.0', f'"seconds": {number}')
    content = content.replace('"seed": 0', f'"seed": {number}')
    folder = run(tmp_path / "run", {})
    (folder / "metrics.json").write_text(content)
    (row,), _ = collect([folder])
    assert row.seconds is None and row.seed is None
    write_index(tmp_path / "index.html", [row])


def test_strings_are_no_longer_than_a_line_and_reveal_no_folder(tmp_path):
    long = "<b>a\nb</b>" * 100
    content = reported.content(preset=long)
    content["encoder"] |= {"model": long, "weights": f"/home/somebody/secret/{long}"}
    content["threat"] |= {"norm": long, "eps": long, "transforms": long}
    (row,) = rows = collect([run(tmp_path / "run", content)]).rows
    write_index(tmp_path / "index.html", rows)
    page = Page((tmp_path / "index.html").read_text())
    assert "secret" not in page.text and "<b>a b</b>" in page.text
    assert max(map(len, (row.preset, row.encoder, row.threat, row.transforms))) <= MOST_LETTERS


def test_only_the_pages_own_script_may_run(sweep, tmp_path):
    write_index(tmp_path / "index.html", collect(sweep).rows)
    text = (tmp_path / "index.html").read_text()
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\"" in text
    assert not re.search("https?:", text)


def test_a_link_never_leads_out_of_the_folder_of_the_index(tmp_path):
    inside = run(tmp_path / "sweep" / "a b#c?d%", reported.content())
    outside = run(tmp_path / "elsewhere", reported.content())
    folder = tmp_path / "sweep"
    (folder / "link").symlink_to(outside, target_is_directory=True)
    (folder / "half").mkdir()
    (folder / "half" / "report.html").symlink_to(outside / "report.html")
    assert place(folder, inside) == ("a b#c?d%", "a%20b%23c%3Fd%25/report.html")
    assert place(folder, outside) == ("elsewhere", None)
    assert place(folder, folder / "link") == ("elsewhere", None)
    assert place(folder, folder / "half") == ("half", None)
    assert place(folder, folder / ".." / "elsewhere") == ("elsewhere", None)
    rows = collect([inside, outside, folder / "link"]).rows
    write_index(folder / "index.html", rows)
    links = [attributes["href"] for attributes in Page((folder / "index.html").read_text()).all("a")]
    assert links == ["#content", "a%20b%23c%3Fd%25/report.html"]


def test_a_sweep_leaves_a_page_of_something_else_and_writes_its_own_again(sweep, tmp_path, capsys):
    page = tmp_path / "index.html"
    index(tmp_path)
    index(tmp_path)
    assert own_page(page) and capsys.readouterr().out.count(f"sweep: {page}") == 2
    page.write_text("<title>My notes</title>")
    index(tmp_path)
    assert page.read_text() == "<title>My notes</title>"
    assert f"note: {page} was not written by viewproof" in capsys.readouterr().err
