"""Parametrised cases, of which the quick suites run a sample."""

import pytest


def mostly_slow(cases, step):
    """Every case: one in `step` in the quick tests, the others in the slow ones."""
    return rows_mostly_slow([(case,) for case in cases], step)


def rows_mostly_slow(rows, step):
    """As `mostly_slow`, of cases that are rows of several arguments."""
    return _sample(rows, step, (), pytest.mark.slow)


def mostly_nightly(cases, step):
    """Every case: one in `step` in the slow tests, the others in the nightly ones."""
    return _sample([(case,) for case in cases], step, pytest.mark.slow, pytest.mark.nightly)


def _sample(rows, step, first, rest):
    return [pytest.param(*row, marks=rest if i % step else first) for i, row in enumerate(rows)]
