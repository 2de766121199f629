"""The table of defences: its page has the numbers of the runs, and one command makes both."""

import csv
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from attacks.run import compose
from scripts.boards import defences

ROOT = Path(__file__).resolve().parents[2]


def write(folder, rng, measure):
    """The files of a finished run with random figures; those of its row."""
    values = rng.random(18).reshape(6, 3)
    ends = [dict(zip(("mean", "low", "high"), row, strict=True)) for row in values[:4]]
    clean, bare, eot, gain = (end | {"kind": "interval"} for end in ends)
    arms = {"clean": clean, "bare": bare, "eot": eot}
    comparison = {"bank": "same", "measure": measure, "arm": "eot", "other": "bare", "difference": gain}
    content = {"arms": {arm: {"success": gain, measure: value} for arm, value in arms.items()}}
    content |= {"comparisons": [comparison | {"other": "clean", "difference": clean}, comparison]}
    content["costs"] = {"bare": {"forward": 1}, "eot": {"forward": 12_300}}
    about = {"started": "2026-01-01T00:00:00", "git": "0" * 40, "device": "cpu", "cpu": "a CPU", "threads": 1}
    folder.mkdir(parents=True)
    for name, value in {
        "metrics": content,
        "manifest": about | {"versions": {"viewproof": "1", "torch": "2"}},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return values


def write_transfer(folder, judged_on, values):
    """The table of `viewproof judge`: `values` for one arm of one encoder, others for the rest."""
    columns = dict(zip(("success", "success_low", "success_high"), values, strict=True))
    name, arm = judged_on
    folder.mkdir(exist_ok=True)
    with (folder / "transfer.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["judged_on", "arm", *columns])
        writer.writeheader()
        for row in ((name, "no_eot"), (name, arm), ("another", arm)):
            figures = columns if row == (name, arm) else dict.fromkeys(columns, 0.5)
            writer.writerow({"judged_on": row[0], "arm": row[1]} | figures)


def test_every_row_has_the_numbers_of_its_run(tmp_path):
    rng, expected = np.random.default_rng(0), {}
    for encoder, defence, eps in (("vit", "tte", 4), ("vit", "dbd", 4), ("lite0", "consistency", 1)):
        measure = "fooled_accepted" if defence == "consistency" else "success"
        folder = tmp_path / encoder / f"{defence}-{eps}"
        values = write(folder, rng, measure)
        write_transfer(folder, ("vit", "bare"), values[5])
        order = [0, 5, 1, 4, 2, 3] if measure == "success" else [0, 5, 1, 2, 3]  # a detector has no such run
        expected[encoder, defence, f"{eps}/255"] = [*values[order].flatten(), 12.3]
        if measure == "success":
            folder = folder.parent / f"views of {defence}-{eps}"
            write_transfer(folder, (f"vit defence={defence} x", "eot"), values[4])
    page = defences.table_page(tmp_path)
    rows = [line.strip("|").split("|") for line in page.splitlines() if re.match(r"\|(vit|lite0)\|", line)]
    assert [row[:2] for row in rows] == [["lite0", "consistency"], ["vit", "tte"], ["vit", "dbd"]]
    for row in rows:
        figures = [float(text) for text in re.findall(r"\d*\.\d+", "|".join(row[3:]))]
        assert np.allclose(figures, expected.pop(tuple(row[:3])), atol=0.005)
    assert not expected


def test_defences_with_the_same_views_share_a_run():
    stages = {name: defences.view_stages(name) for name in defences.DEFENCES}
    assert stages["tte"] == stages["rtpt"] == stages["agc"] == stages["consistency"] and stages["ttc"] == "{}"
    run = compose("quickstart", ["transforms=identity", f"+transforms.stages={stages['dbd']}"])
    assert run.transforms.stages == compose("quickstart", ["defence=dbd"]).defence.stages


@pytest.mark.slow
def test_a_row_by_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ["data.count=2", "attack.gradients=8", "evaluate.views=4"]
    monkeypatch.setitem(defences.ENCODERS, "vit", ("encoder=pocket data.size=64", "pocket"))
    sizes = ["--encoders", "vit", "--eps", "4", "--defences", "rtpt,ttc"]
    monkeypatch.setattr(defences, "trace_vit", lambda _: None)
    monkeypatch.setattr(
        sys, "argv", ["x", "--out", str(tmp_path), *sizes, "--page", str(tmp_path / "page.md"), *words]
    )
    with pytest.raises(SystemExit, match="0"):
        defences.main()
    rows = [line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith("|vit|")]
    assert len(rows) == 2 and "|-|" not in rows[0] and rows[1].count("|-|") == 1  # no views


def test_the_page_of_the_docs_is_of_this_command():
    text = (ROOT / "docs" / "defence_table.md").read_text()
    assert "|" + "|".join(defences.HEAD) + "|" in text and text.endswith(defences.PAGE.rpartition("{command}")[2])
