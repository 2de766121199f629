"""Parametrised cases, of which the quick suites run a sample."""

import pytest


def mostly_slow(cases, step):
    """Every case: one in `step` in the quick tests, the others in the slow ones."""
    return _sample(cases, step, (), pytest.mark.slow)


def mostly_nightly(cases, step):
    """Every case: one in `step` in the slow tests, the others in the nightly ones."""
    return _sample(cases, step, pytest.mark.slow, pytest.mark.nightly)


def _sample(cases, step, first, rest):
    return [pytest.param(case, marks=rest if i % step else first) for i, case in enumerate(cases)]
