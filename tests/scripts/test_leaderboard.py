"""The leaderboard: the page has the numbers of the runs, and a finished run is not made again."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from scripts.boards import leaderboard
from tests.helpers.report_pages import interval

ROOT = Path(__file__).resolve().parents[2]
MEASURES = [("clean", "success"), ("no_eot", "success"), ("eot", "success"), ("eot", "success_survived")]


def write(folder, rng, eps=4, patch=None, **manifest):
    """The files of a finished run with random figures; those of its arms and its minutes."""
    arms = {arm: {} for arm, _ in MEASURES}
    for arm, measure in MEASURES:
        arms[arm][measure] = interval(rng.random(), rng.random() / 2, 0.0) | {
            "kind": "range" if patch else "interval"
        }
    content = {"queries": ["a", "b"], "bank": {"views": 16}, "arms": arms, "sanity": None}
    content["threat"] = {"patch": patch, "eps": eps / 255, "transforms": folder.name.split("-")[0], "gradients": 32}
    content["cost"] = {"seconds": 1000 * rng.random()}
    about = {
        "config": {"task": {"name": "classification"}},
        "git": "0" * 40,
        "versions": {"viewproof": "1", "torch": "2"},
    }
    about |= {"started": "2026-01-01T00:00:00", "device": "cpu", "cpu": "a CPU", "threads": 1} | manifest
    folder.mkdir(parents=True)
    for name, value in {"metrics": content, "manifest": about}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    values = [arms[arm][measure][key] for arm, measure in MEASURES for key in ("mean", "low", "high")]
    return [*values, content["cost"]["seconds"] / 60]


def test_every_row_has_the_numbers_of_its_run(tmp_path):
    rng = np.random.default_rng(0)
    names = {"a": ["web-8", "camera-2"], "b": ["identity-4", "patch"]}
    expected = {}
    for encoder, cells in names.items():
        for cell in cells:
            views, _, eps = cell.partition("-")
            key = (encoder, f"{eps}/255" if eps else "patch", "camera" if cell == "patch" else views)
            expected[key] = write(tmp_path / encoder / cell, rng, int(eps or 4), {} if eps else {"id": "x"})
    page = leaderboard.board_page(tmp_path)
    rows = [line.strip("|").split("|") for line in page.splitlines() if re.match(r"\|[ab]\|", line)]
    assert len(rows) == len(expected)
    order = [(row[0], int(row[2].partition("/")[0])) for row in rows if row[2] != "patch"]
    assert order == sorted(order)
    for row in rows:
        figures = expected.pop((row[0], row[2], row[3].replace("patch", "camera")))
        assert row[1] == "classification" and ("(" in row[4]) == (row[2] == "patch")
        found = [float(text) for text in re.findall(r"\d*\.\d+", "|".join(row[4:]))]
        assert np.allclose(found[:-1], figures[:-1], atol=0.005) and abs(found[-1] - figures[-1]) <= 0.05
    assert not expected, "a run has no row"


def test_a_finished_cell_is_not_run_again_and_one_of_other_words_is_refused(tmp_path, monkeypatch, capsys):
    options = leaderboard.board_options().parse_intermixed_args(["--pictures", "2", "encoder=pocket", "data.size=64"])
    assert leaderboard.encoders(options) == {"pocket": ""}
    words = leaderboard.cell_words("", "web-8", options)
    assert len({word.partition("=")[0] for word in words}) == len(words)  # a run takes a key once
    write(tmp_path / "pocket" / "web-8", np.random.default_rng(0), 8, overrides=words)
    monkeypatch.setattr(leaderboard.subprocess, "run", lambda *_, **__: pytest.fail("a finished cell was run"))
    command = ["x", "--out", str(tmp_path), "--cells", "web-8", "--pictures", "2", "encoder=pocket", "data.size=64"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="0"):
        leaderboard.main()
    monkeypatch.setattr(sys, "argv", [*command, "seed=3"])
    with pytest.raises(SystemExit, match="2"):
        leaderboard.main()
    assert "seed=3" in capsys.readouterr().err


@pytest.mark.slow
def test_a_row_of_an_encoder_by_the_command(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = ["encoder=pocket", "data=bundled", "data.size=64", "attack.views=2"]
    sizes = ["--pictures", "2", "--gradients", "4", "--views", "4", "--cells", "identity-8"]
    command = ["x", "--out", str(tmp_path), *sizes, "--page", str(tmp_path / "page.md"), *words]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit, match="0"):
        leaderboard.main()
    assert "|pocket|retrieval|8/255|identity|" in (tmp_path / "page.md").read_text()


def test_the_page_of_the_docs_is_of_this_command():
    text = (ROOT / "docs" / "leaderboard.md").read_text()
    head = "|" + "|".join(leaderboard.HEAD) + "|"
    assert text.count(head) == 2 and text.endswith(leaderboard.PAGE.rpartition("{command}")[2])
