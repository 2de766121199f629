"""Success on inks that an attack has not assumed: the inks, the arithmetic of the tables, and one outcome."""

import numpy as np
import pytest

from attacks.evaluation.intervals import Interval
from attacks.physical.prediction import Prediction
from scripts.benchmarks import inks


def outcome(predicted, success):
    figures = {"success": Interval(predicted, 0.0, 1.0, "interval")}
    return inks.Outcome(success, 10, Prediction(figures, figures), 12.0, 1.0)


def test_an_ink_is_paper_where_nothing_is_asked_and_darker_where_more_is():
    levels = np.linspace(0, 255, 18).round().astype(np.uint8)
    greys = np.repeat(levels[None, :, None], 3, 2)
    for ink in inks.HELD_OUT.values():
        light = ink(greys)[0]
        np.testing.assert_allclose(light[-1], ink.paper, rtol=1e-5)
        assert (np.diff(light, axis=0) > 0).all() and light.min() > 0


def test_the_tables_compare_with_the_ink_that_was_assumed():
    single = {inks.OWN: outcome(0.8, 0.8)} | {name: outcome(0.5, 0.4) for name in inks.HELD_OUT}
    table = inks._predictions(0.8, single)
    row = dict(zip(table.columns, table.rows["newsprint"], strict=True))
    assert row["off before"] == pytest.approx(40) and row["off now"] == pytest.approx(10)
    assert table.notes == ("held-out inks: off by 10 points at most",)
    worth = inks._worth(single, dict.fromkeys(inks.HELD_OUT, 0.6))
    assert worth.notes[0].endswith("generic 0.50, family 0.75") and worth.rows[inks.OWN][1] is None


@pytest.mark.slow
def test_photographs_of_an_ink_are_scored_and_predicted():
    case = inks.attacked("family", 4, 8)
    made = inks.outcome(case, inks.HELD_OUT["newsprint"], 3)
    assert made.photos == 3 and made.after < 5 < made.before
    assert made.prediction.poses is not None and 0 <= case.digital() <= 1 and 0 <= made.success <= 1
