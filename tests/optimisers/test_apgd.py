"""APGD: when the step halves, the point it returns to, and the values that decide."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from attacks.eot.estimate import Estimate
from attacks.optimisers.apgd import APGD

double = torch.float64
FREE = SimpleNamespace(
    step=lambda at, grad, length: at - length[:, None, None, None] * grad.sign(), project=torch.add
)


def estimate(value, grad, mean=None):
    value = torch.as_tensor(value, dtype=double)
    zeros = torch.zeros_like(value)
    return Estimate(zeros if mean is None else mean, zeros, zeros[: len(grad)], grad, 8, 8, value)


def run_of(values, optimiser=None, *, means=None, signs=None, shared=False):
    """A run with these values (steps,N), with gradients of ones, or of `signs` (steps): every delta, the start first,
    and every state."""
    values, optimiser = torch.as_tensor(values, dtype=double), optimiser or APGD()
    delta = torch.zeros(1 if shared else values.shape[1], 1, 1, 1, dtype=double)
    state, deltas, states = optimiser.init(delta, reach=1.0, steps=len(values)), [delta], []
    for index, value in enumerate(values):
        grad = torch.full_like(delta, 1.0 if signs is None else signs[index])
        mean = None if means is None else means[index]
        delta, state = optimiser.step(delta, estimate(value, grad, mean), state, FREE, None)
        deltas.append(delta)
        states.append(state)
    return torch.stack(deltas).flatten(1), states


def lengths(states):
    return torch.stack([state.length for state in states])


def gaining(gains):
    """Values of a run, the start first, that fall by 1 at a gain and rise by 1 otherwise."""
    return torch.cat([torch.zeros(1), torch.cumsum(1 - 2 * torch.as_tensor(gains, dtype=double), 0)])[:, None]


#: The paper's p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06), of 100 moves.
CHECKPOINTS = [22, 41, 57, 70, 80, 87, 93, 99]
#: And of 59, every share rounded down, as in the published code: 12 moves, then 1 less each time.
ODD = [12, 23, 33, 42, 50, 57]


@pytest.mark.parametrize(("gain", "n", "checkpoints"), [(0, 100, CHECKPOINTS), (0, 59, ODD), (1, 100, [])])
def test_the_step_halves_at_every_checkpoint_without_gains_and_never_with_gains(gain, n, checkpoints):
    _, states = run_of(gaining([gain] * n))
    changes = [k for k in range(1, n + 1) if states[k].length != states[k - 1].length]
    assert changes == checkpoints
    assert states[0].length == 2.0
    assert states[-1].length == 2.0 / 2 ** len(checkpoints)


@pytest.mark.parametrize("rho", [0.5, 0.75])
def test_a_step_halves_unless_more_than_rho_of_the_moves_gained(rho):
    below, minimum = math.floor(rho * 22), math.floor(rho * 22) + 1
    for gains, length in ((below, 1.0), (minimum, 2.0)):
        _, states = run_of(gaining([1] * gains + [0] * (100 - gains)), APGD(rho=rho))
        assert states[22].length == length


def test_an_unchanged_best_loss_halves_the_step_but_not_twice_in_a_row():
    # Falls throughout at first; then only the first of many moves loses, by more than the others gain.
    first, rest = torch.arange(0, -23, -1.0), torch.linspace(5, 4, 78)
    _, states = run_of(torch.cat([first, rest])[:, None])
    at = [float(states[k].length) for k in CHECKPOINTS]
    # 22: all gain. 41: stuck. 57: stuck, but halved the last time. 70: stuck once more. And so on.
    assert at == [2.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25, 0.125]


def test_halving_returns_a_picture_to_its_best_point_and_gradient():
    signs = [1.0 if index == 5 else -1.0 for index in range(101)]  # the gradient of the best point is different
    deltas, states = run_of(gaining([1] * 5 + [0] * 95), signs=signs)
    best, previous = deltas[5], deltas[21]
    assert torch.equal(states[21].best.flatten(), best)
    assert torch.equal(states[22].previous.flatten(), best)
    torch.testing.assert_close(deltas[23], best + 0.75 * -1.0 + 0.25 * (best - previous), rtol=0, atol=1e-12)


def test_each_move_is_mixed_with_the_previous_move():
    deltas, _ = run_of(gaining([1] * 21), APGD(rel_step_size=1.5, momentum=0.6))
    steps = deltas.diff(dim=0)[:20, 0]
    assert steps[0] == -1.5
    for before_move, other in pairwise(steps):
        torch.testing.assert_close(other, -0.6 * 1.5 + 0.4 * before_move)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_returns_the_best_point_that_it_tried(seed):
    values = torch.randn(30, 4, dtype=double, generator=torch.Generator().manual_seed(seed))
    deltas, _ = run_of(values)
    assert torch.equal(deltas[-1], deltas[values.argmin(0), torch.arange(4)])


def test_a_run_of_one_step_moves():
    deltas, _ = run_of([[0.3]])
    assert deltas[1] == -2.0


def test_only_the_value_decides():
    # The means fall while the values rise: a risk of the tail that gets worse, though the average view gets better.
    values = gaining([0] * 40)
    deltas, states = run_of(values, means=-values)
    assert torch.equal(deltas[-1], deltas[0])
    assert (lengths(states)[-1] < 0.1).all()


def test_a_universal_delta_decides_by_the_mean():
    values = torch.tensor([[0.0, 0.0], [-5.0, 1.0], [-1.0, -1.5], [-0.5, -9.0], [9.0, -10.0]], dtype=double)
    deltas, states = run_of(values, shared=True)
    assert states[-1].best_loss.shape == (1,)
    assert torch.equal(deltas[-1], deltas[int(values.mean(1).argmin())])
