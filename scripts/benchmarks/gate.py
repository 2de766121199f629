"""How often a verdict of the gate is wrong, and how many clusters it needs."""

import numpy as np

from attacks.evaluation.intervals import Floats, share_ends
from attacks.gate.decide import ALPHA, confidence_sequence

from .table import BenchmarkTable, Row

#: The bar of every requirement (`at_most`), the views of a cluster, and the sizes of a fixed sample.
BAR, VIEWS, SIZES = 0.5, 64, (10, 20, 50, 100, 200, 400)
#: The truth minus the bar; intraclass correlations of the views of a cluster.
DISTANCES, CORRELATIONS = (-0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2), (0.05, 0.3, 0.9)
#: The share of fixed samples that must decide.
POWER = 0.8


def run(repeats: int = 2000) -> list[BenchmarkTable]:
    """Wrong verdicts on an upper bar of 0.5: of a fixed sample of 10 to 400 clusters (the worst size), and of
    confidence sequences that look after every cluster up to 400.

    The clusters' rates are beta distributed round the truth, with the intraclass correlation; each has 64 views. On
    the bar PASS and FAIL are counted apart, and the larger number is given. `fixed`: the smallest sample of which
    80 % decide; `looks`: the mean number of clusters until a sequence decides, 400 where it does not; `ratio` is
    theirs.
    """
    rows: dict[str, Row] = {}
    for correlation in CORRELATIONS:
        for distance in DISTANCES:
            shares = draw_studies(BAR + distance, correlation, repeats)
            fixed = {n: verdicts(*share_ends(shares[:, :n], VIEWS)) for n in SIZES}
            ends = [confidence_sequence(study) for study in shares]
            at_looks = [verdicts(low, high) for low, high in ends]
            sides = [np.sign(distance)] if distance else [-1.0, 1.0]
            wrong = [max(float(np.mean(study == side)) for study in fixed.values() for side in sides)]
            wrong.append(max(float(np.mean([(study == side).any() for study in at_looks])) for side in sides))
            sizes_that_decide = next((n for n, study in fixed.items() if np.mean(study != 0) >= POWER), None)
            first = [int(np.argmax(study != 0)) if (study != 0).any() else SIZES[-1] for study in at_looks]
            looks = float(np.mean(first))
            ratio = None if sizes_that_decide is None else looks / sizes_that_decide
            rows[f"{correlation:g}, {distance:+g}"] = (*wrong, sizes_that_decide, looks, ratio)
    columns = {"wrong, fixed": ".4f", "wrong, looks": ".4f", "fixed": ".0f", "looks": ".0f", "ratio": ".2f"}
    notes = (f"correlation, truth minus bar; {repeats} repeats; each side may err in {ALPHA:.1%}",)
    return [
        BenchmarkTable(
            "Wrong verdicts on a bar of 0.5, and the clusters that a verdict needs", columns, rows, notes=notes
        )
    ]


def draw_studies(truth: float, correlation: float, repeats: int) -> Floats:
    """Shares (repeats, n) of simulated clusters."""
    random, size = np.random.default_rng(0), 1 / correlation - 1
    rates = random.beta(truth * size, (1 - truth) * size, (repeats, SIZES[-1]))
    shares: Floats = random.binomial(VIEWS, rates) / VIEWS
    return shares


def verdicts(low: Floats, high: Floats) -> Floats:
    """1 for PASS, -1 for FAIL, 0 for UNDECIDED, as `attacks.gate.decide` rules of an `at_most`."""
    return np.where(high <= BAR, 1, np.where(low > BAR, -1, 0)).astype(np.float64)
