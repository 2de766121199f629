"""Progress: one bar of a run in a terminal, a few plain lines elsewhere; notes of a kind are one line."""

import io
import re
import sys

import pytest

from attacks.runtime.command_line import print_notes
from attacks.runtime.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(progress, steps=4):
    """Two units of two parts and checks, 10 of work each; the last part of a unit ends early."""
    with progress:
        for _ in range(2):
            progress.part("eot", 6, steps)
            for _ in range(steps):
                progress.step(loss=0.25, held_out_cosine=None, snr=float("nan"))
            progress.part("judging", 4, 4)
            progress.step()
            progress.close(10)
        progress.part("report")


@pytest.mark.parametrize("columns", [60, 80, 160, 0])
def test_a_terminal_gets_one_bar_as_wide_as_itself_with_the_figures(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stderr", Terminal())
    progress = Progress("attack", 20)
    progress.bar.mininterval = progress.bar.miniters = 0  # every step is drawn
    run(progress)
    output = sys.stderr.getvalue()
    frames = [frame for frame in re.split(r"[\r\n]", output) if frame]
    assert output.count("\n") == 1 and all(len(frame) <= (columns or 80) for frame in frames)
    assert "100 %" in frames[-1] and frames[-1].startswith("report ")
    assert "held out" not in output and "snr" not in output and "loss" in output


@pytest.mark.parametrize("steps", [1, 3, 10, 95])
def test_without_a_terminal_there_are_at_most_ten_lines(monkeypatch, steps):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    run(Progress("attack", 20), steps)
    lines = sys.stderr.getvalue().splitlines()
    shares = [int(re.fullmatch(r"[a-z]+: (\d+) %  \d\d:\d\d(, \d\d:\d\d left)?.*", line)[1]) for line in lines]
    assert len(lines) <= 10 and shares == sorted(shares) and shares[-1] == 100 and 50 in shares
    assert "\r" not in sys.stderr.getvalue()


def test_the_time_left_is_that_of_the_work_of_this_process(monkeypatch):
    """A quarter was done before; after 10 s another quarter is: half, the rest, takes 20 s."""
    clock = iter([0.0, 0.0, 10.0, 10.0])
    monkeypatch.setattr("attacks.runtime.progress.time.perf_counter", lambda: next(clock, 10.0))
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress = Progress("attack", 4)
    progress.close(1, is_old=True)
    progress.part("eot", 1, 1)
    progress.step()
    assert sys.stderr.getvalue().splitlines()[-1] == "eot: 50 %  00:10, 00:20 left"


def test_notes_that_differ_in_a_name_and_numbers_are_one_line_with_their_number(capsys):
    sizes = [f"photo{i}.png: {500 + i}x400 resized and cropped to 160x160" for i in range(30)]
    print_notes([*sizes[:20], "a.png: alpha channel laid over white", *sizes[20:], "plain"], "manifest.json")
    assert capsys.readouterr().err.splitlines() == [
        f"note: {sizes[0]} (and 29 more like it, in manifest.json)",
        "note: a.png: alpha channel laid over white",
        "note: plain",
    ]
