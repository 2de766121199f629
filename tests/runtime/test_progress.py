"""Progress: a bar in a terminal, plain lines elsewhere."""

import io
import sys

import pytest

from attacks.runtime.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", ["120", "0"])
def test_a_terminal_gets_a_bar_with_the_figures(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with Progress("eot", 2) as progress:
        for loss in (0.5, 0.25):
            progress.step(loss=loss, held_out_cosine=None, snr=float("nan"))
    output = sys.stderr.getvalue()
    assert "\r" in output and "2/2" in output and "loss=0.250" in output
    assert "held out" not in output and "snr" not in output


@pytest.mark.parametrize(("total", "lines"), [(3, 3), (10, 10), (95, 10)])
def test_without_a_terminal_at_most_ten_lines_end_with_the_last_step(monkeypatch, total, lines):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with Progress("eot", total) as progress:
        for _ in range(total):
            progress.step(held_out_cosine=0.125)
    output = sys.stderr.getvalue().splitlines()
    assert len(output) == lines
    assert output[-1].startswith(f"eot: {total}/{total}  ") and output[-1].endswith("  held out cosine 0.125")
