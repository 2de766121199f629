"""Laws of the draws, and how even they are."""

import numpy as np
import pytest
import torch
from scipy.stats import qmc

from transforms import Grid, Sobol, Uniform, stream

RANDOM = [Sobol(), Uniform()]
DRAWS = [*RANDOM, Grid()]


def name(draws):
    return type(draws).__name__


every_draw = pytest.mark.parametrize("draws", DRAWS, ids=name)
random_draws = pytest.mark.parametrize("draws", RANDOM, ids=name)


@every_draw
@pytest.mark.parametrize(("n", "dims"), [(1, 1), (64, 2), (64, 3), (4096, 1), (1, 13)])
def test_points_lie_in_the_unit_cube(draws, n, dims):
    for step in range(3):
        points = draws(n, dims, seed=5, step=step)
        assert points.shape == (n, dims) and points.dtype == torch.float32
        assert (points >= 0).all() and (points < 1).all()


@every_draw
def test_same_seed_and_step_give_the_same_points(draws):
    torch.manual_seed(1)
    first = draws(16, 2, seed=3, step=7)
    torch.manual_seed(2)
    torch.rand(5)  # the global generator has no say
    assert torch.equal(draws(16, 2, seed=3, step=7), first)


@every_draw
def test_the_global_generator_is_left_alone(draws):
    state = torch.get_rng_state()
    draws(16, 2, seed=3, step=7)
    assert torch.equal(torch.get_rng_state(), state)


@random_draws
def test_other_seeds_and_steps_give_other_points(draws):
    calls = [(seed, step) for seed in range(8) for step in range(8)]
    points = torch.cat([draws(4, 3, seed=seed, step=step) for seed, step in calls])
    assert len(points.unique(dim=0)) == len(points)


@every_draw
def test_no_dimensions_give_empty_rows(draws):
    n = 1 if isinstance(draws, Grid) else 7
    assert draws(n, 0, seed=0, step=2).shape == (n, 0)


@pytest.mark.parametrize("n", [1, 7, 16])
def test_sobol_steps_are_one_sequence(n):
    steps = torch.cat([Sobol()(n, 5, seed=3, step=step) for step in range(6)])
    assert torch.equal(steps, Sobol()(6 * n, 5, seed=3))


@pytest.mark.parametrize("n", [1, 2, 8, 64, 256])
def test_every_step_of_a_power_of_two_puts_one_point_in_each_stratum(n):
    for step in range(4):
        strata = (Sobol()(n, 6, seed=2, step=step).double() * n).floor()
        assert torch.equal(strata.sort(0).values, torch.arange(n).double()[:, None].expand(n, 6))


def test_rounding_to_float32_does_not_reach_one(monkeypatch):
    # The engine's largest number: too rare to wait for, so it is put in its mouth.
    largest = torch.full((1, 1), 1 - 2**-30, dtype=torch.float64)
    monkeypatch.setattr("transforms.draws.SobolEngine.draw", lambda *_, **__: largest)
    assert Sobol()(1, 1, seed=0) < 1


def test_sobol_is_more_even_than_uniform():
    def discrepancy(draws, seed):
        points = torch.cat([draws(16, 5, seed=seed, step=step) for step in range(8)])
        return qmc.discrepancy(points.double().numpy())

    for seed in range(5):
        assert discrepancy(Sobol(), seed) < discrepancy(Uniform(), seed) / 4


def test_sobol_integrates_a_smooth_function_better_than_uniform():
    def error(draws):
        points = torch.stack([draws(128, 5, seed=seed) for seed in range(32)]).double()
        return torch.sin(points.sum(-1)).mean(1).std()

    assert error(Sobol()) < error(Uniform()) / 10


@random_draws
def test_points_have_no_bias(draws):
    points = torch.cat([draws(1, 3, seed=seed) for seed in range(1000)]).double()
    assert (points.mean(0) - 0.5).abs().max() < 4 * (1 / 12 / 1000) ** 0.5
    assert np.abs(np.corrcoef(points.T.numpy()) - np.eye(3)).max() < 4 / 1000**0.5


def test_grid_is_the_midpoints_of_equal_cells():
    expected = [[x, y] for x in (1 / 6, 1 / 2, 5 / 6) for y in (1 / 6, 1 / 2, 5 / 6)]
    torch.testing.assert_close(Grid()(9, 2), torch.tensor(expected))


@pytest.mark.parametrize(("k", "dims"), [(2, 13), (3, 8), (5, 4), (10, 3), (17, 2), (1, 6), (1000, 1)])
def test_grid_takes_every_whole_power(k, dims):
    points = Grid()(k**dims, dims)
    assert len(points.unique(dim=0)) == k**dims
    torch.testing.assert_close(points[:, -1].unique(), (torch.arange(k) + 0.5) / k)


@pytest.mark.parametrize(("n", "dims"), [(10, 2), (63, 3), (2, 5), (7, 0)])
def test_grid_refuses_other_numbers(n, dims):
    with pytest.raises(ValueError, match="`n` must be a whole number to the power"):
        Grid()(n, dims)


def test_streams_differ_by_seed_and_purpose():
    purposes = [(), ("attack",), ("evaluation",), ("attack", 1), ("attack", "1"), ("attack1",), (1, "attack")]
    seeds = [stream(seed, *purpose) for seed in range(50) for purpose in purposes]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
