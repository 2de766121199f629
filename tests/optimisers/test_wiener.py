"""The filtered attack: its filter against an independent one and the best possible, its mean in closed form."""

import numpy as np
import pytest
import torch

from attacks import L2, PGD, Linf, Wiener
from attacks.optimisers import wiener
from attacks.optimisers.wiener import LONGEST, MIN_GAIN, RINGS, SHORT, Half, rings_of
from tests.helpers.sets import double, random
from tests.optimisers.test_gradient import estimate, gradients, moves, share, without_bound

SIZES = [(96, 96), (33, 48), (48, 33), (16, 40), (5, 7)]


def filter_of(first, odd):
    """The filter of two sums (N,C,H,W)."""
    rings = rings_of(*first.shape[2:], first.device)
    spectra = [torch.view_as_real(torch.fft.rfft2(half)) for half in (first, odd)]
    return wiener.wiener_filter(*[Half(half, rings.sums(half, half)) for half in spectra], first)


def radius(height, width):
    """Of each frequency of the whole transform, as a share of the highest."""
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)
    return np.sqrt(rows**2 + columns**2) / np.sqrt(0.5)


def smooth(height, width, seed=3):
    """A picture whose amplitudes fall with the square of the frequency, and their expected power."""
    fall = 1 / (0.02 + radius(height, width)) ** 2
    spectrum = np.fft.fft2(random(2, 3, height, width, value=seed).numpy()) * fall
    result = np.fft.ifft2(spectrum).real
    return torch.tensor(result), fall**2 * height * width


@pytest.mark.parametrize(("height", "width"), SIZES)
def test_the_filter_equals_that_of_the_full_transform(height, width):
    # NumPy, ring by ring, on all frequencies: `wiener_filter` has half of them, and weighs them.
    first = random(2, 3, height, width) + smooth(height, width)[0] / 9
    odd = random(2, 3, height, width, value=1) + smooth(height, width)[0] / 9
    rings = max(1, min(RINGS, min(height, width) // 4))
    ring = np.minimum((radius(height, width) * rings * (1 + 1e-9)).astype(int), rings - 1)
    for i in range(2):
        left, other = np.fft.fft2(first[i].numpy()), np.fft.fft2(odd[i].numpy())
        total = left + other
        gains = []
        for number in range(rings):
            mask = ring == number
            common = (left[:, mask] * other[:, mask].conj()).sum().real
            r = common / np.sqrt((abs(left[:, mask]) ** 2).sum() * (abs(other[:, mask]) ** 2).sum())
            gains.append(2 * max(0, r) / (1 + max(0, r)))
        for number in range(rings):
            total[:, ring == number] *= max(MIN_GAIN * max(gains), gains[number])
        torch.testing.assert_close(
            filter_of(first, odd)[i],
            torch.tensor(np.fft.ifft2(total).real),
            rtol=0,
            atol=1e-12 * float(abs(total).max()),
        )


@pytest.mark.parametrize(("level", "left", "worse"), [(0.3, 1.0, 1.1), (3, 0.7, 1.1), (30, 0.4, 1.75)])
def test_the_filter_takes_most_of_the_noise(level, left, worse):
    # Wiener's filter with the true powers of signal and noise is the best linear one. Ours estimates them, and keeps
    # a part of what looks like noise.
    truth, power = smooth(96, 96)
    halves = [truth + level * random(2, 3, 96, 96, value=seed) for seed in (0, 1)]
    mean = (halves[0] + halves[1]) / 2
    gain = torch.tensor(power / (power + level**2 / 2 * 96 * 96))
    best = torch.fft.ifft2(torch.fft.fft2(mean) * gain).real
    ours = filter_of(*halves) / 2

    def error(result):
        return float((result - truth).square().mean())

    assert error(ours) < worse * error(best)
    assert error(ours) < left * error(mean)


def test_noise_of_frequencies_beyond_the_encoder_does_not_grow_with_the_picture():
    # The gradient of an encoder that sees 32 x 32 values of a picture, under as much noise of the sum.
    def alike(side):
        pattern = torch.nn.functional.interpolate(random(1, 3, 32, 32), (side, side), mode="bicubic")
        truth = pattern / pattern.std() * 256 / side
        result = filter_of(*[truth + random(1, 3, side, side, value=seed) for seed in (1, 2)])
        return float(torch.cosine_similarity(result.flatten(), truth.flatten(), dim=0))

    assert alike(1024) > 0.9 * alike(256) > 0.7


@pytest.mark.parametrize("share", [1.0, 0.3, 0.0, -0.5])
def test_equal_gains_keep_the_gradient(share):
    # Halves of different weight: only their agreement matters. Without a second half there is no comparison.
    grad = random(2, 3, 24, 40)
    result = filter_of(grad, share * grad)
    torch.testing.assert_close(result, (1 + share) * grad, rtol=0, atol=1e-13)


def test_values_without_a_gradient_stay_zero():
    grads = gradients(steps=6)
    grads[..., :3, :] = 0
    grads[2:, ..., 3, :] = 0  # they had one
    end = moves(Wiener(), grads, L2(4.0))[-1]
    assert not end[..., :3, :].any()
    assert end[..., 3:, :].all()


def test_a_gradient_has_the_weight_of_its_step():
    # One ring, so that the filter only scales: the last of the moves from zero goes along the weighted sum.
    grads, constant = gradients(steps=9), Wiener(schedule="constant")
    weights = torch.arange(1, 10, dtype=double)
    shares = grads / grads.flatten(2).abs().sum(2)[:, :, None, None, None]
    direction = (weights[:, None, None, None, None] * shares).sum(0)
    expected = -0.8 * LONGEST * 4 * direction / torch.linalg.vector_norm(direction, dim=(1, 2, 3), keepdim=True)
    previous, end = (moves(constant, grads, L2(4.0))[k] for k in (-2, -1))
    # The last move ends at the point, the one before it a move ahead of its own.
    start = moves(constant, grads[:-1], L2(4.0))[-1]
    torch.testing.assert_close(end - start, expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(previous, start)


@pytest.mark.parametrize(
    "trend",
    [lambda k: k / 15, lambda k: (k / 15) ** 2, lambda k: (-1) ** k, lambda k: k / 15 * (-1) ** k],
    ids=["drift", "bent drift", "period 2", "growing period 2"],
)
def test_a_trend_is_the_same_in_both_halves(trend):
    # Positive gradients of one L1 norm: normalising keeps the trend. Even and odd steps would differ in all four.
    pattern = random(2, 3, 12, 12).tanh()
    pattern -= pattern.mean((1, 2, 3), keepdim=True)
    state, constraint = Wiener().init(pattern, reach=4.0, steps=16), without_bound(L2(4.0))
    for k in range(16):
        grad = 2 + trend(k) * pattern
        assert (grad > 0).all()
        _, state = Wiener().step(0 * pattern, estimate(grad), state, constraint, share(k, 16, len(grad)))
    torch.testing.assert_close(state.first_half.spectrum, state.second_half.spectrum, rtol=0, atol=1e-12)


def test_without_noise_the_optimiser_is_plain_descent():
    grads = gradients(1).expand(12, -1, -1, -1, -1)
    for perturbation in (Linf(0.1), L2(4.0)):
        ours, plain = (
            moves(optimiser, grads, perturbation) for optimiser in (Wiener(), PGD(0.8 * SHORT / 12, momentum=0.0))
        )
        torch.testing.assert_close(ours[-1], plain.sum(0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_accumulated_in_full_precision(dtype):
    grads = gradients(steps=40).to(dtype)
    result, expected = (moves(Wiener(0.3), values, L2(4.0)) for values in (grads, grads.float()))
    assert result.dtype == dtype
    torch.testing.assert_close(result.float(), expected, rtol=0, atol=0.03 * 4)
