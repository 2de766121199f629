"""The time to the best peer's result: equal tasks, and shares of the peers' times."""

import pytest
import torch
from torch import nn

from attacks import Linf
from attacks.encoders.engine import Decision
from attacks.runtime.progress import Progress
from scripts.benchmarks import wallclock
from scripts.benchmarks.case import PIPELINE
from scripts.benchmarks.contest import OURS, Counting, Setting
from scripts.benchmarks.peers import kornia_views
from scripts.benchmarks.strength import marks
from scripts.benchmarks.wallclock import WIDE, Cell, Encoders, Measured, best, by_kornia, measured, median, question


def network():
    torch.manual_seed(1)
    layers = [nn.Conv2d(3, 8, 5, 4), nn.Tanh(), nn.Conv2d(8, 8, 5, 4), nn.Tanh(), nn.AdaptiveAvgPool2d(4)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(8 * 16, 16)).eval()


@pytest.fixture
def encoders():
    frozen = network().requires_grad_(False)
    return Encoders(frozen, Counting(network()), Counting(frozen).eval(), Decision(chunk=16), ())


def test_kornia_shows_a_batch_as_it_shows_each_picture():
    images, u = torch.rand(3, 3, 32, 32), torch.rand(3, WIDE.dims)
    alone = [kornia_views(images[i : i + 1], u[i : i + 1], WIDE) for i in range(3)]
    torch.testing.assert_close(kornia_views(images, u, WIDE), torch.cat(alone))
    assert not torch.allclose(kornia_views(images, u, WIDE), kornia_views(images, u))


def test_loop_by_hand_spends_its_budget_in_the_ball(encoders):
    asked = question(Cell("wide", 8), encoders, torch.rand(2, 3, 64, 64), 16, 0)
    attacked = by_kornia(asked, Setting(0.3, 4))
    assert (encoders.ordinary.gradients, encoders.ordinary.forwards) == (2 * 16, 2 * 16)
    change = attacked - asked.image
    assert change.abs().max() <= 8.001 / 255 and Linf(8 / 255).norm(change).min() > 7.9 / 255
    assert attacked.min() >= 0 and attacked.max() <= 1
    bank = wallclock.held_out(PIPELINE, 16, "table")
    judged = [wallclock.score(asked, encoders.frozen, pictures, bank).mean() for pictures in (attacked, asked.image)]
    assert judged[0] < judged[1]


@pytest.mark.slow
def test_all_contestants_are_measured_in_each_round(encoders, monkeypatch):
    monkeypatch.setattr(wallclock, "SIZE", 64)
    monkeypatch.setattr(wallclock, "PEERS", {"kornia": wallclock.PEERS["kornia"]})
    with Progress("attacking", 2) as progress:
        result = measured(Cell("narrow", 4), encoders, 16, 2, 8, progress)
    assert set(result.seconds) == {*marks(16), OURS, "kornia"}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in result.seconds.values())
    assert all(torch.cat(each).shape == (2 * wallclock.GROUP,) for each in result.cosine.values())
    assert str(wallclock.details(Cell("narrow", 4), result, 16))


def test_time_is_read_where_our_curve_meets_the_best_peer():
    result = Measured()
    values = {**dict.fromkeys(marks(64), 0.9), 8: 0.7, 16: 0.5, 24: 0.4, 32: 0.4, 40: 0.4, OURS: 0.4}
    for key, value in values.items():
        result.add(key, 64.0 if key == OURS else key, torch.full((3,), value))
    for name, value, seconds in (("ART", 0.6, 1000.0), ("Foolbox", 0.8, 500.0)):
        result.add(name, seconds, torch.full((3,), value))
    assert best(result) == "ART"
    seconds, ratios = wallclock.shared(result, 64)
    assert seconds == pytest.approx(8 * 2**0.5, rel=1e-5)  # half way from 8 to 16 on a logarithmic axis
    assert ratios == pytest.approx({"ART": seconds / 1000, "Foolbox": seconds / 500})


def test_a_goal_that_is_not_reached_counts_as_infinite():
    assert median([0.1, None, 0.2]) == pytest.approx(0.2)
    assert median([0.1, None, None]) is None
