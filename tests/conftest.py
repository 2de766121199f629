"""Fixtures shared by all tests."""

import os

import pytest
import skimage.data
import torch


def pytest_configure(config):
    """Each of several test processes has one core: more threads of torch, or of a started command, would compete."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture
def photo():
    """A photograph, (1,3,80,120) float64 in [0,1]; not square, so that swapped axes show."""
    crop = skimage.data.astronaut()[60:140, 160:280]
    return torch.tensor(crop, dtype=torch.float64).permute(2, 0, 1)[None] / 255
