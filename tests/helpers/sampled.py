"""Parametrised cases, of which the quick suites run a sample."""

import pytest


def mostly_slow(cases, step):
    """Every case: one in `step` in the quick tests, the others in the slow ones."""
    return _sampled(cases, step, (), pytest.mark.slow)


def rows_mostly_slow(rows, step):
    """As `mostly_slow`, of cases that are rows of several arguments."""
    return [pytest.param(*row, marks=pytest.mark.slow if i % step else ()) for i, row in enumerate(rows)]


def mostly_nightly(cases, step):
    """Every case: one in `step` in the slow tests, the others in the nightly ones."""
    return _sampled(cases, step, pytest.mark.slow, pytest.mark.nightly)


def _sampled(cases, step, first, rest):
    return [pytest.param(case, marks=rest if i % step else first) for i, case in enumerate(cases)]
