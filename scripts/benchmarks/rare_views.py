"""Does the estimate of rare failures agree with plain sampling on a real encoder?"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy
import torch

from attacks.evaluation.failure import score_of
from attacks.experiment.batch import SAME, Bench
from attacks.experiment.failure import failure_of
from attacks.experiment.reopened import reopened

from .table import Row, Table

#: Of the run that the documentation describes: the encoder fails in 1e-5 to 1e-2 of the views of each.
FIVE = ("cell-13-13", "astronaut-8-10", "clock-5-8", "rocket-11-1", "cell-11-12")
#: Views of a batch of plain sampling, after which its count is written.
BATCH = 9_600


def run(directory: str, names: tuple[str, ...] = FIVE, views: int = 1_000_000, jobs: str = "") -> list[Table]:
    """The probability of a failure of the encoder for pictures of a finished run: as `viewproof failure` estimates
    it, and the share of plain views, each with its 95 % interval."""
    bench = reopened(Path(directory))
    rows: dict[str, Row] = {}
    for picture in names:
        row = bench.parts.queries.names.index(picture)
        estimate = failure_of(bench, row, "clean", 1000, 0)
        failed, n = plain(bench, row, views, Path(jobs) if jobs else None)
        ends = scipy.stats.binomtest(failed, n).proportion_ci(0.95, "exact")
        share = (failed / n, float(ends.low), float(ends.high))
        rows[picture] = (estimate.p, estimate.low, estimate.high, estimate.views, *share, n)
    columns = {"p": ".2e", "low": ".2e", "high": ".2e", "views": ",.0f"}
    columns |= {"plain p": ".2e", "plain low": ".2e", "plain high": ".2e", "plain views": ",.0f"}
    return [Table("Rare failures beside plain sampling", columns, rows)]


def plain(bench: Bench, row: int, views: int, jobs: Path | None) -> tuple[int, int]:
    """Failures among that many views; the counts so far are kept in `jobs`."""
    transforms = bench.banks[SAME].transforms
    faster = torch.compile(bench.parts.encoder, dynamic=False, options={"freezing": True})  # by a fifth
    score = score_of(
        replace(bench.judge, encoder=faster), bench.exhibits.shown("clean", [row]), row, transforms, "clean"
    )
    kept = None if jobs is None else jobs / f"{bench.parts.queries.names[row]}.json"
    failed, n = json.loads(kept.read_text()) if kept is not None and kept.exists() else (0, 0)
    while n < views:
        size = min(BATCH, views - n)
        u = np.random.default_rng((row, n)).random((size, transforms.dims))
        failed, n = failed + int((score(u) <= 0).sum()), n + size
        if kept is not None:
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps([failed, n]))
    return failed, n
