"""An evaluation in batches: saved, resumed, and equal to the last bit."""

import json

import pytest
import torch
from PIL import Image

from attacks.runtime.tables import read_rows, write_rows
from tests.helpers.report_pages import ARMS
from tests.helpers.runs import LEAN, TINY


@pytest.fixture
def finished_run(shared_runs):
    """A run without interruption."""
    return shared_runs(*TINY, *LEAN)


@pytest.mark.slow
def test_every_arm_is_in_every_table_and_has_the_same_cost(finished_run):
    content = json.loads((finished_run / "metrics.json").read_text())
    assert tuple(content["arms"]) == tuple(content["wide"]["arms"]) == ARMS
    costs = content["costs"]
    # As many gradients with all views and with one view a step: 3 pictures, 2 steps, 2 views.
    assert costs["eot"]["backward"] == costs["one_view"]["backward"] == 12 >= costs["no_eot"]["backward"]
    assert len(read_rows(finished_run / "per_image.csv")) == 2 * len(ARMS) * 3


@pytest.mark.slow
def test_the_wide_bank_contains_the_ranges_of_the_same_bank(finished_run):
    content = json.loads((finished_run / "metrics.json").read_text())
    narrow, wide = content["bank"]["ranges"], content["wide"]["bank"]["ranges"]
    assert all(a[0] <= b[0] and b[1] <= a[1] for a, b in zip(wide, narrow, strict=True)) and narrow != wide


@pytest.mark.slow
def test_batches_have_independent_noise(finished_run):
    def change(name):
        clean, noisy = (
            torch.tensor(list(Image.open(path).convert("RGB").tobytes()), dtype=torch.int16)
            for path in (finished_run / "pictures" / "clean" / name, finished_run / "pictures" / "noise" / name)
        )
        return noisy - clean

    names = json.loads((finished_run / "metrics.json").read_text())["queries"]
    first, _, third = (change(f"{name}.png") for name in names)
    assert (first.float() * third.float()).mean() < 0.2 * first.float().square().mean()


def test_rows_read_back_bit_for_bit(tmp_path):
    rows = [{"name": 'a "b",\n<c>', "value": 0.1 + 0.2, "whole": 3, "yes": True, "none": None}]
    write_rows(tmp_path / "rows.csv", rows)
    (result,) = read_rows(tmp_path / "rows.csv")
    assert result == {"name": rows[0]["name"], "value": repr(0.1 + 0.2), "whole": "3", "yes": "1", "none": ""}
    assert float(result["value"]) == rows[0]["value"]
    with pytest.raises(ValueError, match="same keys"):
        write_rows(tmp_path / "rows.csv", [{"a": 1}, {"b": 2}])
