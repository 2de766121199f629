"""The stopwatch, without a look at the time: who takes turns, and what is compared."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))

import benchmark


def test_every_contestant_runs_once_a_round_in_changing_order():
    calls = []
    runs = {name: (lambda name=name: calls.append(name)) for name in "abc"}
    medians = benchmark.compare(runs, rounds=6)
    rounds = [tuple(calls[i : i + 3]) for i in range(0, len(calls), 3)]
    assert len(rounds) == 7 and all(sorted(turn) == ["a", "b", "c"] for turn in rounds)
    assert len(set(rounds)) > 1
    assert set(medians) == {"a", "b", "c"} and all(seconds >= 0 for seconds in medians.values())


def test_many_samples_of_a_whole_reduction_are_the_mean_of_its_pixels():
    image = torch.rand(1, 1, 48, 48)
    view = benchmark.finer(image, benchmark.reduction(4, 1, 48, 12, turn=0.0), 12, 4)
    torch.testing.assert_close(view, torch.nn.functional.avg_pool2d(image, 4))


def test_the_contestants_show_the_same_views(monkeypatch):
    """Ours, kornia's and torchvision's four stages differ by blur and borders, not by where things are."""
    shown = {}

    def keep(image, views):
        shown[len(shown)] = views(image).detach()
        return lambda: None

    monkeypatch.setattr(benchmark, "there_and_back", keep)
    benchmark.transforms(rounds=1)
    _, ours, plain, kornia, torchvision = shown.values()
    middle = (slice(None), slice(None), slice(64, 160), slice(64, 160))
    assert (ours[middle] - plain[middle]).abs().mean() < 0.02
    assert (kornia[middle] - torchvision[middle]).abs().mean() < 0.02
    assert (plain[middle] - kornia[middle]).abs().mean() < 0.03
    assert (plain[middle] - plain[middle].roll(3, -1)).abs().mean() > 0.04  # three pixels off would show


@pytest.mark.parametrize("name", ["nothing", ""])
def test_an_unknown_benchmark_is_refused(name, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["benchmark.py", name])
    with pytest.raises(SystemExit):
        benchmark.main()
