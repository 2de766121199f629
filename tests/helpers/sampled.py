"""Parametrised cases, of which the quick suites run a sample."""

import pytest


def mostly_slow(cases, step):
    """Every case: one in `step` in the quick tests, the others in the slow ones."""
    return _sampled(cases, step, (), pytest.mark.slow)


def half_nightly(cases, step):
    """Every case: one in `step` in the quick tests, half of the others in the slow ones, the rest nightly."""
    marks = [() if i % step == 0 else pytest.mark.nightly if i % 2 else pytest.mark.slow for i in range(len(cases))]
    return [pytest.param(case, marks=mark) for case, mark in zip(cases, marks, strict=True)]


def mostly_nightly(cases, step):
    """Every case: one in `step` in the slow tests, the others in the nightly ones."""
    return _sampled(cases, step, pytest.mark.slow, pytest.mark.nightly)


def _sampled(cases, step, first, rest):
    return [pytest.param(case, marks=rest if i % step else first) for i, case in enumerate(cases)]
