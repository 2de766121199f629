"""Every number in every table of a real run, recomputed from its CSV files alone."""

from collections import Counter

import pytest

from attacks.experiment import sections
from attacks.report import warnings as cautions
from tests.helpers.recomputed import cells, read
from tests.run.test_run import call

TINY = ["config=evaluate", "data.size=96", "attack.steps=1", "attack.views=1", "evaluate.views=4", "sanity=none"]
TINY += ["evaluate.refine=0", "data.count=3", "evaluate.left_out=2", "evaluate.deploy=1", "evaluate.explain=2"]
TINY += ["evaluate.map_pictures=3", "evaluate.curves=[angle]", "transforms=eot2d"]
PARTS = {"same", "wide", "comparisons", "map", "curve", "left_out", "deployment", "explanations", "spectrum"}


@pytest.mark.slow
def test_every_number_follows_from_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sections, "CELLS", 3)
    monkeypatch.setattr(sections, "CURVE_CELLS", 2)
    monkeypatch.setattr(sections.Sections, "draw", lambda self, out: None)
    monkeypatch.setattr("attacks.report.page.write_report", lambda *_, **__: None)
    assert call(monkeypatch, *TINY, f"hydra.run.dir={tmp_path / 'run'}") == 0
    content, seen = read(tmp_path / "run"), Counter()
    for where, there, computed in cells(content, tmp_path / "run"):
        assert there == pytest.approx(computed, abs=1e-9), where
        seen[where[0]] += 1
    assert set(seen) == PARTS
    # An interval has three numbers, and a cell two measures of five arms.
    assert seen["map"] >= 9 * 2 * 5 * 3 and seen["curve"] == 2 * 2 * 5 * 3
    assert seen["left_out"] == 4 * 4 * 2 * 3 and seen["deployment"] == 5 * 9 * 5 * 2 * 3
    assert seen["comparisons"] == 2 * 2 * 4 * 5


def test_a_part_with_few_pictures_gives_a_warning():
    content = {"response": None, "left_out": {"pictures": 4}, "explanations": {"pictures": ["a", "b"]}}
    message = cautions.few_in_parts(content | {"deployment": {"pictures": 5}})
    assert [line.split(":")[0] for line in message] == [
        "4 pictures in the part left_out",
        "2 pictures in the part explanations",
    ]
