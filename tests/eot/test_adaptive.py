"""The views of a step follow from the noise of the gradients and from how many are left."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attacks import EOT, Linf, Universal, attack
from attacks.eot.adaptive import PILOT, Adaptive, Noise
from attacks.eot.estimate import Estimate
from tests.helpers.solving import small_problem
from transforms import Affine, Brightness, Compose, Sobol
from transforms.draws import Fixed, Grid

NOISY = Compose([Affine(degrees=90, translate=0.3), Brightness(0.2)])
QUIET = Compose([Brightness(1e-4)])


def integers(*values):
    return torch.tensor(values)


def noise(*c):
    spread = torch.tensor(c, dtype=torch.float64)
    return Noise(torch.ones_like(spread), spread, torch.full_like(spread, PILOT, dtype=torch.long))


@pytest.fixture
def problem():
    images, anchor, parts = small_problem(3, torch.float32)
    return images, anchor, parts | {"steps": 100, "adaptive": Adaptive(4)}


def views_of(steps):
    return [step.estimate.views.tolist() for step in steps]


@given(st.integers(1, 10**5), st.floats(0, 1), st.floats(0, 1e6), st.integers(1, 500), st.integers(1, 8))
def test_more_views_need_noise_and_gradients_for_many_steps(total, used, c, steps, block):
    rule = Adaptive(steps)
    left = integers(total - int(used * total))
    times = rule.next_blocks(noise(c), integers(total), left, block)
    assert (times.item() >= 1 and times.item().bit_count() == 1) or left.item() < 2 * block * times.item()
    assert times.item() == 1 or times.item() * block <= min(c, left.item(), total / steps)
    assert rule.start(integers(total), block).item() == (2 if total >= 2 * steps * block else 1)


def test_noise_is_that_of_the_estimator():
    # cosine^2 = n / (n + c): with n views and the constant c the snr is n / c. A single view shows nothing.
    zeros, noise = torch.zeros(2), Noise(*torch.zeros(3, 2).double())
    for n in (2, 8, 64):
        snr = n / torch.tensor([3.0, 50.0])
        noise = noise.update(Estimate(zeros, zeros, snr, zeros, integers(n, n), 8, zeros))
    torch.testing.assert_close(noise.c, torch.tensor([3.0, 50.0]).double(), rtol=1e-6, atol=0)
    repeat = noise.update(Estimate(zeros, zeros, torch.full((2,), torch.nan), zeros, integers(1, 1), 8, zeros))
    assert torch.equal(repeat.c, noise.c) and repeat.steps.tolist() == noise.steps.tolist() == [3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_without_any_noise_are_all_signal_and_later_steps_still_count(dtype):
    zeros = torch.zeros(1)

    def update(noise, snr):
        return noise.update(Estimate(zeros, zeros, torch.tensor([snr], dtype=dtype), zeros, integers(2), 8, zeros))

    noise = update(Noise(*torch.zeros(3, 1).double()), torch.inf)
    assert (noise.signal.item(), noise.c.item()) == (1, pytest.approx(0))
    assert update(noise, 0.5).c.item() == pytest.approx((2 / 1.5) / (0.9 + 0.5 / 1.5))
    assert update(Noise(*torch.zeros(3, 1).double()), 0.0).c.item() == torch.inf


def test_views_are_raised_where_the_noise_asks_for_them_and_every_gradient_is_used(problem):
    images, anchor, parts = problem
    noisy, quiet = (
        list(attack(images, anchor, eot=EOT(camera, views=1), budget=64, **parts)) for camera in (NOISY, QUIET)
    )
    assert max(map(max, views_of(noisy))) > 4
    assert views_of(quiet)[:PILOT] == [[2, 2, 2]] * PILOT  # the noise must show first
    assert views_of(quiet)[PILOT:] == [[1, 1, 1]] * (64 - 2 * PILOT)
    assert noisy[-1].evals == quiet[-1].evals == 3 * 64
    assert noisy[-1].last and quiet[-1].last
    assert not any(step.last for step in noisy[:-1])


@pytest.mark.slow
def test_a_picture_does_not_depend_on_its_neighbours(problem):
    # The pictures' noise differs, and with it the views of their steps.
    images, anchor, parts = problem
    images = images * torch.tensor([1.0, 0.05, 0.3])[:, None, None, None]
    parts |= {"eot": EOT(NOISY, views=1), "budget": 512, "steps": 400, "perturbation": Linf(0.1, random_start=False)}
    batch = list(attack(images, anchor, **parts))
    assert any(len(set(row)) > 1 for row in views_of(batch))
    for i in range(3):
        *_, single = attack(images[i, None], anchor[i, None], **parts)
        torch.testing.assert_close(single.delta[0], batch[-1].delta[i], rtol=0, atol=1e-6)


def test_pictures_that_share_a_perturbation_have_one_budget_and_number_of_views(problem):
    images, anchor, parts = problem
    parts |= {"perturbation": Universal(parts["perturbation"]), "eot": EOT(NOISY, views=1)}
    steps = list(attack(images, anchor, budget=64, **parts))
    assert all(len(row) == 1 for row in views_of(steps)) and steps[-1].evals == 3 * 64
    with pytest.raises(ValueError, match=r"`budget` must be one number .* got 8 to 64"):
        next(attack(images, anchor, budget=integers(8, 64, 64), **parts))
    deltas = [list(attack(images, anchor, budget=budget, **parts))[-1].delta for budget in (16, integers(16, 16, 16))]
    assert torch.equal(*deltas)
    *_, end = attack(images, anchor, budget=integers(8, 16, 32), **parts | {"adaptive": None})
    assert end.evals == 56 and end.delta.shape == images[:1].shape


@pytest.mark.parametrize("bad", [0, 1.5])
def test_invalid_arguments_are_refused(bad):
    with pytest.raises(ValueError, match="`steps` must"):
        Adaptive(bad)


@pytest.mark.parametrize(
    ("draws", "budget", "message"),
    [(Fixed(), 10**4, "draws that are new"), (Grid(), 10**4, "draws that are new"), (Sobol(), None, "a `budget`")],
    ids=["fixed", "grid", "budget"],
)
def test_a_budget_and_fresh_draws_are_required(problem, draws, budget, message):
    images, anchor, parts = problem
    eot = EOT(Compose([Brightness(0.2)]), draws, views=2)
    with pytest.raises(ValueError, match=f"`adaptive` needs {message}"):
        next(attack(images, anchor, eot=eot, budget=budget, **parts))
