"""The radial spectrum: NumPy's Fourier transform, Parseval, and waves whose frequency is known."""

import math

import numpy as np
import pytest
import torch

from attacks.evaluation.explain.spectrum import frequencies, radial, ring_count, shares


@pytest.mark.parametrize("size", [(32, 32), (33, 40), (64, 21)])
def test_the_spectrum_equals_numpy_ring_by_ring(size):
    deltas = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(0))
    rings = ring_count(*size)
    result, centres = radial(deltas, rings), frequencies(rings)
    radius = np.hypot(np.fft.fftfreq(size[0])[:, None], np.fft.fftfreq(size[1])[None])
    for n in range(2):
        power = (np.abs(np.fft.fft2(deltas[n].double().numpy())) ** 2).mean(0) / math.prod(size) ** 2
        for k, centre in enumerate(centres.tolist()):
            low, high = centre - 0.25 / rings, centre + 0.25 / rings
            inside = (radius >= low - 1e-12) & ((radius <= 0.5) if k == rings - 1 else (radius < high - 1e-12))
            assert result[n, k] == pytest.approx(power[inside].sum(), rel=1e-9)
        # Parseval: with the corners it is the mean square.
        whole = float(result[n].sum()) + power[radius > 0.5].sum()
        assert whole == pytest.approx(float(deltas[n].double().square().mean()), rel=1e-9)


def test_all_pictures_count_equally_whatever_their_power():
    deltas = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    power = radial(deltas * torch.tensor([1.0, 9.0])[:, None, None, None], 16)
    assert shares(power, "ab") == pytest.approx(shares(radial(deltas, 16), "ab"))
    assert sum(shares(power, "ab")) == pytest.approx(1.0)


def test_no_perturbation_has_no_spectrum():
    none = torch.zeros(1, 3, 16, 16)
    assert shares(radial(none, 8), "a") is None
    some = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    assert shares(radial(torch.cat([none, some]), 8), "ab") == shares(radial(some, 8), "b")
