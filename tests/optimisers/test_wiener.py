"""The filtered attack: its filter against an independent one and the best possible, its mean in closed form."""

import itertools

import numpy as np
import pytest
import scipy.fft
import torch

from attacks import L2, PGD, Linf, Wiener
from attacks.optimisers import wiener
from attacks.optimisers.wiener import LONGEST, MIN_GAIN, POWER, RINGS, SHORT, rings_of
from tests.helpers.sets import double, random
from tests.optimisers.test_gradient import gradients, moves

SIZES = [(96, 96), (33, 48), (48, 33), (16, 40), (5, 7)]


def axes_of(channels):
    return wiener.cosine_axes(channels, double, torch.device("cpu"))


def by_axis(grads):
    """The spectra of gradients (K,N,C,H,W) by colour axis, and the energy of their rings."""
    rings, axes = rings_of(*grads.shape[3:], grads.device), axes_of(grads.shape[2])
    spectra = [torch.view_as_real(torch.fft.rfft2(wiener.across_channels(grad, axes))) for grad in grads]
    return torch.stack(spectra), torch.stack(list(map(rings.energy, spectra)))


def filter_of(grads):
    """The filtered sum of gradients (K,N,C,H,W), the k-th times k."""
    spectra, energies = by_axis(grads)
    weights = torch.arange(1, len(grads) + 1, dtype=double)
    spectrum = torch.einsum("k,k...->...", weights, spectra)
    single = torch.einsum("k,k...->...", weights**2, energies)
    result = wiener.wiener_filter(spectrum, single, len(grads), grads.shape[4])
    return wiener.across_channels(result, axes_of(grads.shape[2]).mT)


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
    # NumPy and SciPy, ring by ring, on all frequencies: `wiener_filter` has half of them, and weighs them.
    count = 5
    grads = torch.stack([smooth(height, width)[0] / 9 + random(2, 3, height, width, value=i) for i in range(count)])
    rings = max(1, min(RINGS, min(height, width) // 4))
    ring = np.minimum((radius(height, width) * rings * (1 + 1e-9)).astype(int), rings - 1)
    weights = np.arange(1, count + 1)
    factor = 1 / (1 - (weights**2).sum() / weights.sum() ** 2)
    for i in range(2):
        singles = np.fft.fft2(scipy.fft.dct(grads[:, i].numpy(), norm="ortho", axis=1))
        total = np.einsum("k,kchw->chw", weights, singles)
        for axis, number in np.ndindex(3, rings):
            mask = ring == number
            energy = (abs(total[axis, mask]) ** 2).sum()
            single = (weights**2 * (abs(singles[:, axis, mask]) ** 2).sum(1)).sum()
            total[axis, mask] *= np.clip(factor * (energy - single) / energy, MIN_GAIN, 1)
        expected = scipy.fft.idct(np.fft.ifft2(total).real, norm="ortho", axis=0)
        tolerance = 1e-12 * float(abs(total).max())
        torch.testing.assert_close(filter_of(grads)[i], torch.tensor(expected), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("level", "left", "worse"), [(0.3, 1.0, 1.1), (3, 0.7, 1.15), (30, 0.4, 1.3)])
def test_the_filter_takes_most_of_the_noise(level, left, worse):
    # Wiener's filter with the true powers of signal and noise is the best linear one. Ours estimates them.
    truth, power = smooth(96, 96)
    grads = torch.stack([truth + level * random(2, 3, 96, 96, value=seed) for seed in range(6)])
    weights = torch.arange(1, 7, dtype=double)
    mean, ours = (total / weights.sum() for total in (torch.einsum("k,k...->...", weights, grads), filter_of(grads)))
    noise = level**2 * float((weights**2).sum() / weights.sum() ** 2) * 96 * 96
    best = torch.fft.ifft2(torch.fft.fft2(mean) * torch.tensor(power / (power + noise))).real

    def error(result):
        return float((result - truth).square().mean())

    assert error(ours) < worse * error(best)
    assert error(ours) < left * error(mean)


@pytest.mark.parametrize("count", [2, 3, 7])
def test_signal_and_noise_are_told_apart_without_bias(count):
    # Noise of either sign: the mean over all sums is the expected energy, exactly.
    signal, noise = random(1, 3, 16, 16), random(count, 1, 3, 16, 16, value=1)
    weights = torch.arange(1, count + 1, dtype=double)
    expected_energy = expected_single = 0
    for signs in itertools.product((-1, 1), repeat=count):
        grads = signal + torch.tensor(signs, dtype=double).view(-1, 1, 1, 1, 1) * noise
        spectra, energies = by_axis(grads)
        spectrum = torch.einsum("k,k...->...", weights, spectra)
        expected_energy += rings_of(16, 16, signal.device).energy(spectrum) / 2**count
        expected_single += torch.einsum("k,k...->...", weights**2, energies) / 2**count
    result = wiener.signal_share(expected_energy, expected_single, count) * expected_energy
    expected = weights.sum() ** 2 * by_axis(signal[None])[1][0]
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("trend", [lambda k: 1 - k / 8, lambda k: (-1) ** k], ids=["drift", "period 2"])
def test_what_changes_along_a_run_counts_as_noise(trend):
    # In frequencies apart: what stays is left whole, and what changes loses its energy, or a part of it.
    rows = 2 * torch.pi * torch.arange(32, dtype=double) / 32
    constant, changing = ((rows * number).cos().view(1, 1, 1, -1).expand(1, 3, 32, -1) for number in (2, 11))
    grads = torch.stack([constant + trend(k) * changing for k in range(16)])
    total = torch.einsum("k,k...->...", torch.arange(1, 17, dtype=double), grads)
    result = filter_of(grads)
    assert abs((result * changing).sum()) < 0.7 * abs((total * changing).sum())
    torch.testing.assert_close((result * constant).sum(), (total * constant).sum())


def test_noise_of_frequencies_beyond_the_encoder_does_not_grow_with_the_picture():
    # The gradient of an encoder that sees 32 x 32 values of a picture, under as much noise of the sum.
    def alike(side):
        pattern = torch.nn.functional.interpolate(random(1, 3, 32, 32), (side, side), mode="bicubic")
        truth = pattern / pattern.std() * 256 / side
        result = filter_of(torch.stack([truth + random(1, 3, side, side, value=seed) for seed in (1, 2)]))
        return float(torch.cosine_similarity(result.flatten(), truth.flatten(), dim=0))

    assert alike(1024) > 0.9 * alike(256) > 0.7


@pytest.mark.parametrize("count", [1, 2, 5])
def test_equal_gradients_stay_as_they_are(count):
    grad = random(2, 3, 24, 40)
    result = filter_of(grad.expand(count, -1, -1, -1, -1))
    torch.testing.assert_close(result, count * (count + 1) / 2 * grad, rtol=0, atol=1e-12)


def test_without_any_signal_the_sum_keeps_its_direction():
    # The first gradient against half of the second: their sum has less energy than both.
    grad = random(2, 3, 24, 40)
    result = filter_of(torch.stack([grad, -grad / 4]))
    torch.testing.assert_close(result, MIN_GAIN * grad / 2, rtol=0, atol=1e-13)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_axes_of_colour_are_orthonormal_and_begin_with_the_mean(channels):
    images = random(2, channels, 3, 5)
    result = wiener.across_channels(images, axes_of(channels))
    torch.testing.assert_close(result, torch.tensor(scipy.fft.dct(images.numpy(), axis=1, norm="ortho")))
    torch.testing.assert_close(result[:, 0], images.mean(1) * channels**0.5)
    torch.testing.assert_close(wiener.across_channels(result, axes_of(channels).mT), images)


def test_values_without_a_gradient_stay_zero():
    grads = gradients(steps=6)
    grads[..., :3, :] = 0
    grads[2:, ..., 3, :] = 0  # they had one
    end = moves(Wiener(), grads, L2(4.0))[-1]
    assert not end[..., :3, :].any()
    assert end[..., 3:, :].all()


def test_a_gradient_has_the_weight_of_its_step():
    # One ring of one channel, so that the filter only scales: the last of the moves from zero goes along the weighted
    # sum.
    grads, constant = gradients(steps=9)[:, :, :1], Wiener(schedule="constant")
    weights = torch.arange(1, 10, dtype=double)
    compressed = grads.sign() * grads.abs() ** POWER
    shares = compressed / compressed.flatten(2).norm(dim=2)[:, :, None, None, None]
    mean = (weights[:, None, None, None, None] * shares).sum(0)
    direction = mean.sign() * mean.abs() ** (1 / POWER)
    expected = -0.8 * LONGEST * 4 * direction / torch.linalg.vector_norm(direction, dim=(1, 2, 3), keepdim=True)
    previous, end = (moves(constant, grads, L2(4.0))[k] for k in (-2, -1))
    # The last move ends at the point, the one before it a move ahead of its own.
    start = moves(constant, grads[:-1], L2(4.0))[-1]
    torch.testing.assert_close(end - start, expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(previous, start)


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
    units = torch.finfo(dtype).eps * float(expected.abs().max())  # of the moves that are added up
    torch.testing.assert_close(result.float(), expected, rtol=0, atol=6 * units)
