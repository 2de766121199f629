"""The benchmark of an evaluation's parts."""

import json

import pytest

from scripts.benchmarks import parts

SPENT = {"forward": 1, "backward": 1, "seconds": 3.0, "selection": 1, "selection_seconds": 1.0}


def test_the_parts_of_a_run_are_all_of_it(tmp_path, monkeypatch):
    costs = dict.fromkeys(("gallery", "anchors", "judging", "eot", "no_eot", "left_out"), SPENT)
    (tmp_path / "metrics.json").write_text(json.dumps({"costs": costs}))
    seconds = {"whole": 40.0, "pictures": 2.0, "sanity": 5.0}
    monkeypatch.setattr(parts, "ran", lambda words: ["the table of arms", json.dumps(seconds)])
    found = parts.measured([], tmp_path)
    assert found.pop("whole") == pytest.approx(sum(found.values())) == pytest.approx(40.0)
    assert (found["attack"], found["selection"], found["judging"], found["left out"]) == (4.0, 2.0, 9.0, 3.0)
    double = {part: 2 * each for part, each in found.items()}
    rows = parts.table({"fixed": [found, found, double], "auto": [double]}, "", ()).rows
    assert rows["attack"] == (4.0, 8.0, 2.0)
    assert "engine" not in rows


@pytest.mark.parametrize(("part", "module", "name"), parts.UNMETERED)
def test_what_is_timed_exists(part, module, name):
    owner, last = parts.owner_of(module, name)
    assert callable(getattr(owner, last))
