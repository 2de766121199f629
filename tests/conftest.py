"""Fixtures shared by all tests. What takes long to import is imported where it is used: the process that deals out
the tests has no use for it."""

import gc
import os
from collections import defaultdict
from functools import cache

import pytest


def pytest_configure(config):
    """Each of several test processes has one core: more threads of torch, or of a started command, would compete."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        import torch

        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"


def pytest_addoption(parser):
    parser.addoption("--cases", type=int, metavar="N", help="run at most N cases of each test, evenly spread")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """A search for cycles would pass over all modules and tests: there is none until they are collected, and later
    ones leave them out."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs CUDA")


@pytest.hookimpl(trylast=True)  # after the choice by -m and -k
def pytest_collection_modifyitems(config, items):
    """Keep `--cases` cases of each test: the first, the last, and others between them at equal distances."""
    most = config.getoption("--cases")
    if most is None:
        return
    tests = defaultdict(list)
    for item in items:
        tests[item.nodeid.partition("[")[0]].append(item)
    kept = {item for cases in tests.values() for item in spread(cases, most)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def spread(cases, most):
    last = len(cases) - 1
    return cases if last < most else [cases[i * last // max(most - 1, 1)] for i in range(most)]


@pytest.fixture(scope="session", autouse=True)
def photograph_cache():
    """A run decodes the bundled photographs twice, and hundreds of runs begin here: each folder is read once."""
    from attacks.data import gallery

    read = gallery.photographs
    by_folder = cache(lambda _: read())
    gallery.photographs = lambda: by_folder(gallery.PHOTOS)


@pytest.fixture(autouse=True)
def seeded():
    import torch

    torch.manual_seed(0)


@pytest.fixture
def photo():
    """A photograph, (1,3,80,120) float64 in [0,1]; not square, so that swapped axes show."""
    import skimage.data
    import torch

    crop = skimage.data.astronaut()[60:140, 160:280]
    return torch.tensor(crop, dtype=torch.float64).permute(2, 0, 1)[None] / 255


@pytest.fixture(scope="session")
def shared_runs(tmp_path_factory):
    """Finished runs by their words: see `SharedRuns`."""
    from tests.helpers.runs import SharedRuns

    top = tmp_path_factory.getbasetemp()
    runs = SharedRuns(top.parent if "PYTEST_XDIST_WORKER" in os.environ else top)
    yield runs
    runs.close()
