"""Fixtures shared by all tests."""

import pytest
import skimage.data
import torch


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def photo():
    """A photograph, (1,3,80,120) float64 in [0,1]; not square, so that swapped axes show."""
    crop = skimage.data.astronaut()[60:140, 160:280]
    return torch.tensor(crop, dtype=torch.float64).permute(2, 0, 1)[None] / 255
