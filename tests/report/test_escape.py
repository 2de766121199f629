"""Every string of a run is escaped on its page and in its tables."""

import csv
import json

import pytest

from attacks.data.images import file_names
from attacks.report.comparison import ComparedRuns, write_page
from attacks.report.page import Images, render_page
from attacks.report.pairs import read_pair_scores
from attacks.report.runs import collect
from attacks.report.warnings import warnings
from attacks.runtime.tables import FORMULAS, read_rows, write_rows
from tests.helpers import report_pages
from tests.helpers.page import Page

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)><a href=javascript:alert(1)></a></style></svg>"
EVIL += "{{7*7}}$x$"
#: Keys of strings that select what a page shows, and are not shown themselves.
SELECTORS = {"norm", "kind", "status", "metric", "test", "what", "unit"}


def spoilt(node, key=""):
    """The same with the hostile text appended to every string except the names of arms and banks."""
    if isinstance(node, dict):
        return {name: spoilt(value, name) for name, value in node.items()}
    if isinstance(node, list | tuple):
        return [spoilt(value, key) for value in node]
    is_safe = not isinstance(node, str) or key in SELECTORS or node in (*report_pages.ARMS, "same", "wide")
    return node if is_safe else f"{node}{EVIL}"


def harmless(page, scripts=0):
    elements = Page(page).elements
    names = [name for name, _ in elements]
    assert names.count("script") == scripts
    assert not {"iframe", "object", "embed", "base", "form", "link", "input"} & set(names)
    for name, attributes in elements:
        assert not any(key.startswith("on") for key in attributes), (name, attributes)
        links = [attributes.get(key) or "" for key in ("href", "src", "action", "xlink:href")]
        assert not any("javascript:" in link for link in links)
    return page


@pytest.mark.slow
def test_every_string_of_a_run_is_escaped_on_its_page():
    content, manifest = spoilt(report_pages.content()), spoilt(report_pages.manifest())
    page = harmless(render_page(content, manifest, [EVIL], report_pages.trace(), Images()))
    assert page.count("&lt;script&gt;alert(1)") > 20 and "{{7*7}}" in page and "49" not in page.split("<body")[0]


@pytest.mark.slow
def test_the_name_of_a_picture_is_escaped(tmp_path):
    queries = [EVIL, *report_pages.QUERIES[1:]]
    report_pages.directory(tmp_path, file_names(tuple(queries)))
    content = report_pages.content(queries=queries, response=None, drift=None)
    report_pages.write_report(
        tmp_path, content, report_pages.manifest(queries), warnings(content), report_pages.trace(), 0
    )
    page = harmless((tmp_path / "report.html").read_text())
    assert EVIL not in page and any(EVIL in (attributes.get("alt") or "") for name, attributes in Page(page).elements)


def test_every_string_of_a_sweep_is_escaped_in_its_index(tmp_path):
    for number in range(2):
        folder = tmp_path / f"{number}{EVIL.replace('/', '')}"
        folder.mkdir()
        (folder / "report.html").write_text("")
        for name, content in (("metrics", report_pages.content()), ("manifest", report_pages.manifest())):
            (folder / f"{name}.json").write_text(json.dumps(spoilt(content)))
    (tmp_path / f"broken{EVIL.replace('/', '')}").mkdir()
    result = ComparedRuns(*collect({folder: folder.name for folder in sorted(tmp_path.iterdir())}))
    assert len(result.runs) == 2 and len(result.omissions) == 1
    page = harmless(write_page(result, tmp_path).read_text(), scripts=1)
    assert all(attributes["href"].startswith(("0", "1", "#")) for attributes in Page(page).all("a"))


def test_no_cell_of_a_table_is_a_formula(tmp_path):
    words = """=1+1~+1~-1~@SUM(A1)~\t=1~'=1~''~'~a~~a=1~"=1~ =1~ä,\n"b~=cmd|' /C calc'!A0~'quoted'~''=1"""
    names = words.split("~")
    write_rows(tmp_path / "a.csv", [{"picture": name, "value": -0.5, "rank": -3} for name in names])
    with (tmp_path / "a.csv").open(newline="") as file:
        cells = [row[0] for row in csv.reader(file)][1:]
    assert not any(cell.startswith(FORMULAS[:-1]) for cell in cells)
    write_rows(tmp_path / "b.csv", [{"picture": "\r=1"}, {"picture": "a\r=1"}])
    assert [row["picture"] for row in read_rows(tmp_path / "b.csv")] == [" =1", "a =1"]
    rows = read_rows(tmp_path / "a.csv")
    assert [row["picture"] for row in rows] == names
    assert {(float(row["value"]), int(row["rank"])) for row in rows} == {(-0.5, -3)}


def test_runs_are_compared_by_the_original_names(tmp_path):
    row = {"arm": "eot", "bank": "same", "success": 0.5, "cosine": 0.25}
    write_rows(tmp_path / "per_image.csv", [{"picture": name, **row} for name in ("=1", "'=1", "a")])
    (tmp_path / "metrics.json").write_text(json.dumps({"queries": ["=1", "'=1", "a"], "pixels": ["x", "y", "z"]}))
    (tmp_path / "manifest.json").write_text("{}")
    (values,) = {tuple(result) for result in read_pair_scores(tmp_path).values.values()}
    assert {*values} == {("=1", "x"), ("'=1", "y"), ("a", "z")}
