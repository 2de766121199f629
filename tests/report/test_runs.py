"""Summaries of runs from hostile directories, and the page of a sweep."""

import base64
import hashlib
import json
import re
from dataclasses import replace

import pytest

from attacks.experiment.job import index
from attacks.report.comparison import ComparedRuns, link, own_page, write_page
from attacks.report.runs import MEASURES, collect
from attacks.report.settings import curve_of
from attacks.report.warnings import warnings
from attacks.runtime.untrusted import MOST_LETTERS
from tests.helpers import report_pages
from tests.helpers.page import Page
from tests.helpers.run_directories import encoder, summary


def sweep_page(folder, *directories):
    """The page and its summaries."""
    result = ComparedRuns(*collect({directory: directory.name for directory in directories}))
    return write_page(result, folder).read_text(), result


@pytest.fixture
def sweep(tmp_path):
    seeds = enumerate((3, 1, 2))
    return [summary(tmp_path / str(i), report_pages.content(seed=seed), report_pages.manifest()) for i, seed in seeds]


def test_a_summary_has_the_values_of_its_run(sweep):
    (run, *_), omissions = collect({folder: folder.name for folder in sweep})
    content, values = report_pages.content(seed=3), run.values
    assert omissions == [] and [values[key] for key in ("run", "seed", "pictures", "clusters")] == ["0", 3, 15, 12]
    assert [values[key] for key in ("preset", "encoder", "threat")] == ["evaluate", "pocket", "linf 16/255"]
    for prefix, arms in (("", content["arms"]), ("wide_", content["wide"]["arms"])):
        for arm, measure in ((arm, measure) for arm in arms for measure in MEASURES):
            assert values[f"{prefix}{arm}_{measure}"]._asdict() == arms[arm][measure]
    assert values["eot_worst_cosine"]._asdict() == content["arms"]["eot"]["worst_cosine"]
    assert [values[key] for key in ("passes", "seconds", "warnings")] == [32010, 125.0, len(warnings(content))]


def test_a_run_without_a_part_has_an_empty_cell(tmp_path):
    part = report_pages.content(wide=None)
    del part["arms"]["one_view"], part["cost"], part["arms"]["eot"]["worst_cosine"]
    folders = [summary(tmp_path / "a", part), summary(tmp_path / "b", report_pages.content())]
    text, result = sweep_page(tmp_path, *folders)
    missing = {key for key, value in result.runs[0].values.items() if value is None}
    assert missing >= {"eot_worst_cosine", "passes", "seconds", "one_view_success", "wide_eot_success"}
    assert text.count("not measured") >= len(missing & {"passes", "seconds", "one_view_success"})
    assert result.runs[0].values.keys() == result.runs[1].values.keys()


BROKEN_FILES = {
    "empty": ("", "is not JSON"),
    "half": ('{"schema": 2, "arms": {"eot"', "is not JSON"),
    "deep": ("[" * 100_000, "is not JSON"),
    "list": ("[1, 2]", "it holds a list"),
    "binary": ("\udcff\udcfe", "is not JSON"),
    "foreign": ('{"loss": 3}', "it has no `queries`"),
    "no arms": ('{"queries": [], "threat": {"eps": 1}, "arms": {"a": 1}}', "it has no arms"),
    "wrong arms": ('{"queries": [], "threat": {"eps": 1}, "arms": {"eot": {"success": {"mean": "1"}}}}', "no arms"),
    "missing": (None, "`metrics.json`"),
}


@pytest.mark.parametrize("name", BROKEN_FILES)
def test_a_broken_or_foreign_directory_is_left_out_with_its_reason(tmp_path, sweep, name):
    text, reason = BROKEN_FILES[name]
    (tmp_path / "broken").mkdir()
    if text is None:
        (tmp_path / "broken" / "metrics.json").symlink_to("metrics.json")
    else:
        (tmp_path / "broken" / "metrics.json").write_bytes(text.encode(errors="surrogateescape"))
    page, result = sweep_page(tmp_path, sweep[0], tmp_path / "broken", sweep[1])
    assert [run.values["seed"] for run in result.runs] == [3, 1]
    ((name_left_out, reason_given),) = result.omissions
    assert name_left_out == "broken" and reason in reason_given
    assert "Left out" in Page(page).text and "Left out" in Page(sweep_page(tmp_path, tmp_path / "broken")[0]).text


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-1e999", "1e400", "true", '"0.5"', "null", "[0.5]", "10" * 400]
)
def test_a_value_that_is_no_number_is_missing(tmp_path, number):
    content = json.dumps(report_pages.content()).replace('"seconds": 125.0', f'"seconds": {number}')
    folder = summary(tmp_path / "run", {})
    (folder / "metrics.json").write_text(content.replace('"seed": 0', f'"seed": {number}'))
    (run,) = sweep_page(tmp_path, folder)[1].runs
    assert run.values["seconds"] is None and run.values["seed"] is None


def test_strings_are_no_longer_than_a_line_and_reveal_no_folder(tmp_path):
    long = "<b>a\nb</b>" * 100
    content = report_pages.content(preset=long)
    content["encoder"] |= {"model": long, "weights": f"/home/somebody/secret/{long}"}
    content["threat"] |= {"norm": long, "eps": long, "transforms": long}
    text, result = sweep_page(tmp_path, summary(tmp_path / "run", content))
    assert "secret" not in Page(text).text and "<b>a b</b>" in Page(text).text
    assert max(len(value) for value in result.runs[0].values.values() if isinstance(value, str)) <= MOST_LETTERS


def test_only_the_pages_own_script_may_run(sweep, tmp_path):
    text, _ = sweep_page(tmp_path, *sweep)
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'\"" in text
    assert not re.search("https?:", text)


def test_a_link_never_leads_out_of_the_folder_of_the_page(tmp_path):
    inside = summary(tmp_path / "sweep" / "a b#c?d%", report_pages.content())
    outside = summary(tmp_path / "elsewhere", report_pages.content())
    folder = tmp_path / "sweep"
    (folder / "link").symlink_to(outside, target_is_directory=True)
    (folder / "half").mkdir()
    (folder / "half" / "report.html").symlink_to(outside / "report.html")
    assert link(folder, inside) == "a%20b%23c%3Fd%25/report.html"
    for directory in (outside, folder / "link", folder / "half", folder / ".." / "elsewhere"):
        assert link(folder, directory) is None
    page = Page(sweep_page(folder, inside, outside, folder / "link")[0])
    assert [attributes["href"] for attributes in page.all("a")] == ["#content", "a%20b%23c%3Fd%25/report.html"]


def test_a_sweep_replaces_its_page_and_no_foreign_one(sweep, tmp_path, capsys):
    page = tmp_path / "index.html"
    index(tmp_path)
    index(tmp_path)
    assert own_page(page) and capsys.readouterr().out.count(f"sweep: {page}") == 2
    page.write_text("<title>My notes</title>")
    index(tmp_path)
    assert page.read_text() == "<title>My notes</title>"
    assert f"note: {page} was not written by viewproof" in capsys.readouterr().err


def run_curve(runs):
    return curve_of([run.settings for run in runs], [run.values for run in runs])


@pytest.mark.parametrize(
    ("values", "places"),
    [
        (("8/255", "0.5/255", "2/255"), [8 / 255, 0.5 / 255, 2 / 255]),
        (('"wiener"', '"pgd"', '"adam"'), [0.0, 1.0, 2.0]),
        (("28dB", "1", "2"), [0.0, 1.0, 2.0]),
    ],
)
def test_runs_that_differ_in_one_key_make_a_curve_for_each_encoder(tmp_path, values, places):
    folders = {
        encoder(
            tmp_path / f"{name}-{i}", i / 4, name=name, identity={"a.b": value, "encoder.name": f'"{name}"'}
        ): f"{i}"
        for name in ("pocket", "other")
        for i, value in enumerate(values)
    }
    runs, _ = collect(folders)
    curve = run_curve(runs)
    assert curve.key == "a.b" and curve.ticks == dict(
        zip(places, [value.strip('"') for value in values], strict=True)
    )
    for name, line in curve.lines.items():
        eot = [run.values["eot_success"].mean for run in runs if run.values["encoder"] == name]
        means = dict(zip(places, eot, strict=True))
        assert [place for place, _ in line] == sorted(places)
        assert [run["eot_success"].mean for _, run in line] == [means[place] for place, _ in line]
    page = write_page(ComparedRuns(runs, []), tmp_path).read_text()
    assert "Success over <code>a.b</code>" in page and ">pocket</text>" in page and ">other</text>" in page
    one = [run for run in runs if run.values["encoder"] == "pocket"]
    fit = [replace(run, values=run.values | {"fit_success": run.values["eot_success"]}) for run in one]
    page = write_page(ComparedRuns(fit, []), tmp_path).read_text()
    assert ">attack with EOT</text>" in page and ">the pictures that it was made from</text>" in page
    assert run_curve([*one, one[0]]) is None and run_curve(one[:1]) is None  # a place twice, and nothing that differs
    second = replace(one[1], settings=one[1].settings | {"c.d": "1"})
    assert run_curve([one[0], second]) is None
