"""Laws of the draws, and their uniformity."""

import numpy as np
import pytest
import torch
from torch.quasirandom import SobolEngine

from tests.helpers.sampling import mostly_slow
from transforms import Sobol
from transforms.draws import Antithetic, Fixed, Grid, Latin, Uniform, stream

FRESH = [Sobol(), Uniform(), Antithetic(), Latin()]  # other points at every step
RANDOM = [*FRESH, Fixed()]
DRAWS = [*RANDOM, Grid()]


def name(draws):
    return type(draws).__name__


every_draw = pytest.mark.parametrize("draws", DRAWS, ids=name)
random_draws = pytest.mark.parametrize("draws", RANDOM, ids=name)
fresh_draws = pytest.mark.parametrize("draws", FRESH, ids=name)


@every_draw
@pytest.mark.parametrize(("n", "dims"), [(1, 1), (64, 2), (64, 3), (4096, 1), (1, 13), (1, 0)])
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
    state = torch.get_rng_state()  # the global generator is neither used nor touched
    assert torch.equal(draws(16, 2, seed=3, step=7), first) and torch.equal(torch.get_rng_state(), state)


@fresh_draws
def test_other_seeds_and_steps_give_other_points(draws):
    calls = [(seed, step) for seed in range(8) for step in range(8)]
    points = torch.cat([draws(4, 3, seed=seed, step=step) for seed, step in calls])
    assert len(points.unique(dim=0)) == len(points)


@pytest.mark.parametrize("n", [1, 7, 16])
def test_sobol_steps_are_one_sequence(n):
    steps = torch.cat([Sobol()(n, 5, seed=3, step=step) for step in range(6)])
    assert torch.equal(steps, Sobol()(6 * n, 5, seed=3))


@pytest.mark.parametrize("count", [*range(1, 70), 1000, 2**20 - 1, 2**20, 3 * 2**18 + 12345])
def test_sobol_jumps_to_where_torch_arrives_point_by_point(count):
    engine = SobolEngine(5, scramble=True, seed=stream(3, "sobol") % 2**31)
    expected = engine.fast_forward(count).draw(4 * count if count < 70 else 64, dtype=torch.float64)
    n = count if count < 70 else 1
    points = torch.cat([Sobol()(n, 5, seed=3, step=1 + i if n > 1 else count + i) for i in range(len(expected) // n)])
    assert torch.equal(points, expected.float())


def exactly_one_in_each_stratum(points):
    n, dims = points.shape
    strata = (points.double() * n).floor()  # exact: 24 bits times less than 29
    return torch.equal(strata.sort(0).values, torch.arange(n).double()[:, None].expand(n, dims))


@pytest.mark.parametrize(
    ("draws", "n"),
    [*((Sobol(), n) for n in (1, 2, 8, 64, 256)), *((Latin(), n) for n in (1, 2, 3, 7, 10, 100, 12345, 2**17 - 1))],
)
def test_a_step_has_one_point_per_stratum(draws, n):
    assert all(exactly_one_in_each_stratum(draws(n, 6, seed=2, step=step)) for step in range(4))


def test_sobol_points_rounded_to_float32_stay_below_one(monkeypatch):
    # The largest number of the engine is too rare to occur here, so it is injected.
    largest = torch.full((1, 1), 1 - 2**-30, dtype=torch.float64)
    monkeypatch.setattr("transforms.draws.samplers.SobolEngine.draw", lambda *_, **__: largest)
    assert Sobol()(1, 1, seed=0) < 1


@random_draws
@pytest.mark.parametrize("n", mostly_slow([5, 1, 4], 3))
def test_each_point_of_a_step_has_uniform_moments(draws, n):
    points = torch.stack([draws(n, 3, seed=seed) for seed in range(1000)]).double()
    assert ((points.mean(0) - 0.5).abs() < 4 * (1 / 12 / 1000) ** 0.5).all()
    assert ((points.square().mean(0) - 1 / 3).abs() < 4 * (4 / 45 / 1000) ** 0.5).all()
    for i in range(n):
        assert np.abs(np.corrcoef(points[:, i].T.numpy()) - np.eye(3)).max() < 4 / 1000**0.5


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_antithetic_points_come_with_their_mirrors(n):
    for step in range(20):
        points = Antithetic()(n, 5, seed=3, step=step).double()
        first, mirror = points[0 : n - n % 2 : 2], points[1::2]
        assert len(first) == len(mirror) == n // 2
        assert torch.equal(mirror, 1 - first)


@pytest.mark.parametrize("edge", [0, -1])
def test_antithetic_mirrors_stay_below_one_at_the_ends_of_the_generator(edge, monkeypatch):
    def randint(high, shape, generator):
        return torch.full(shape, edge % high)

    monkeypatch.setattr("transforms.draws.samplers.torch.randint", randint)
    first, mirror = Antithetic()(2, 1, seed=0).flatten().tolist()
    assert min(first, mirror) >= 0 and max(first, mirror) < 1 and mirror == 1 - first


@pytest.mark.parametrize("jitter", [0.0, 1 - 2**-53])
@pytest.mark.parametrize("n", [3, 10, 49, 12345, 10**6])
def test_latin_points_stay_in_their_strata_after_rounding(n, jitter, monkeypatch):
    uniform, calls = torch.rand, []

    def rand(*shape, **options):
        calls.append(shape)
        return uniform(*shape, **options) if len(calls) == 1 else torch.full(shape, jitter, dtype=torch.float64)

    monkeypatch.setattr("transforms.draws.samplers.torch.rand", rand)
    assert exactly_one_in_each_stratum(Latin()(n, 1, seed=0))
    assert len(calls) == 2


def test_fixed_points_depend_on_no_more_than_the_seed():
    banks = [Fixed()(8, 4, seed=seed) for seed in range(20)]
    for seed, bank in enumerate(banks):
        assert all(torch.equal(Fixed()(8, 4, seed=seed, step=step), bank) for step in (0, 1, 7, 10**6))
        assert torch.equal(bank, Sobol()(8, 4, seed=seed))
    assert len(torch.cat(banks).unique(dim=0)) == 160


@pytest.mark.parametrize(("k", "dims"), [(2, 13), (3, 8), (5, 4), (10, 3), (17, 2), (1, 6), (1000, 1)])
def test_grid_accepts_every_whole_power(k, dims):
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
