"""The probability of rare failures of some pictures of a run, as a part of an evaluation and for a finished run."""

import numpy as np
import torch

from attacks.evaluation.clusters import Sample
from attacks.evaluation.rare.failure import ARMS, Arm, Failures, PictureFailure, margin_score
from attacks.evaluation.rare.splitting import rare
from attacks.experiment.batch import SAME, Bench
from transforms.doors import unchecked
from transforms.draws import stream


def failures_of(bench: Bench, sample: Sample) -> Failures:
    """Both arms of some pictures. A picture's rows do not depend on the others."""
    particles, rows = bench.run.evaluate.particles, sample.rows.tolist()
    return Failures(
        tuple(failure_of(bench, row, arm, particles, bench.run.seed) for arm in ARMS for row in rows), particles
    )


@torch.no_grad()
def failure_of(bench: Bench, row: int, arm: Arm, particles: int, seed: int) -> PictureFailure:
    """The failure probability of the picture with that number."""
    views, shown = bench.banks[SAME].transforms, bench.exhibits.shown(arm, [row])
    name, cluster = bench.parts.queries.names[row], bench.parts.queries.clusters[row]
    score = margin_score(bench.judge, shown, row, views, arm)
    found = rare(score, views.dims, particles, stream(seed, "failure", arm, name))
    point = torch.from_numpy(np.ascontiguousarray(found.worst[:1])).to(bench.banks[SAME].u)
    values = dict(zip(views.names, views.values(point)[0].tolist(), strict=True))
    view = unchecked(views)(shown, point)[0].cpu()
    numbers = (found.p, found.low, found.high, found.worth, found.passes, found.method)
    return PictureFailure(name, cluster, arm, *numbers, values, view)
