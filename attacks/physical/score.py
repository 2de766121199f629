"""Scores of photographs by the run's encoder and measures, beside the run's own figures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.eot.bank import Bank
from attacks.evaluation.clusters import by_cluster, totals
from attacks.evaluation.intervals import Interval, interval, rate
from attacks.evaluation.scores import embed, evaluate
from attacks.experiment.embeddings import BLOCK, embedded
from attacks.experiment.parts import Parts
from attacks.physical.photo_measure import PhotoMeasurement
from transforms import Compose

#: As in metrics.json.
MEASURES = ("cosine", "recall_at_1", "success")
#: Those of them that are yes or no.
SHARES = ("recall_at_1", "success")
#: The arms of the run that stand beside any arm's photographs.
BESIDE = ("noise", "clean")


@dataclass(frozen=True, eq=False)
class PhotoScores:
    """For each photograph: the cosine to the picture's clean embedding, whether it is recognised, whether the attack
    succeeded (P,), and the name of its nearest picture of the gallery."""

    cosine: Tensor
    recall_at_1: Tensor
    success: Tensor
    nearest: tuple[str, ...]


@torch.no_grad()
def judge(measured: Sequence[PhotoMeasurement], parts: Parts) -> PhotoScores:
    """Score the views on the encoder in its own precision. Raises FloatingPointError if an embedding is not
    finite."""
    rows = torch.tensor([each.photo.row for each in measured])
    views = torch.stack([each.view.pixels for each in measured]).to(parts.device)
    gallery = embedded(parts.gallery, parts.encoder, parts.device, BLOCK).rows
    own = embed(parts.queries.images[rows.unique()], parts.encoder, parts.device)
    assert isinstance(own, Tensor)
    own = own[torch.searchsorted(rows.unique(), rows)]
    bank = Bank(Compose([]), torch.zeros(1, 0, device=parts.device))  # a photograph is a view already
    scores = evaluate(views, own, gallery, encoder=parts.encoder, bank=bank)
    if not bool(scores.cosine.isfinite().all()):
        raise FloatingPointError("the encoder's embedding of a photograph is not finite")
    nearest = scores.nearest.cpu()
    hit = parts.gallery.same(nearest, parts.truth[rows, None])[:, 0]
    success = ~hit if parts.goal is None else parts.gallery.same(nearest, parts.goal[rows, None])[:, 0]
    names = tuple(parts.gallery.names[int(row)] for row in nearest[:, 0])
    return PhotoScores(scores.cosine[:, 0].cpu(), hit, success, names)


def summary(values: Tensor, rows: Sequence[int]) -> Interval:
    """The mean of (P,) values with its 95 % interval (see `attacks.evaluation.intervals.interval`): of several
    pictures whole pictures are resampled, each the mean of its photographs; of a single one its photographs."""
    if len(set(rows)) == 1:
        return interval(values[None].double())
    return interval(by_cluster(values, list(map(str, rows))))


def share(hits: Tensor, rows: Sequence[int]) -> Interval:
    """The share of (P,) hits, a bool each, with its 95 % interval (see `attacks.evaluation.intervals.rate`): pictures
    are the clusters; of a single one its photographs are the trials."""
    pictures = list(map(str, rows))
    return rate(by_cluster(hits, pictures), totals(torch.ones(len(hits)), pictures))


def difference(seen: Interval, predicted: Interval) -> Interval:
    """The difference of two independent means, with the interval of Zou & Donner (2008): the distances of both means
    from their bounds are added in squares."""
    mean = seen.mean - predicted.mean
    return Interval(
        mean,
        mean - math.hypot(seen.mean - seen.low, predicted.high - predicted.mean),
        mean + math.hypot(seen.high - seen.mean, predicted.mean - predicted.low),
        "interval" if seen.kind == predicted.kind == "interval" else "range",
    )


def _interval(content: Any) -> Interval:
    """From metrics.json, which is not trusted."""
    result = Interval(**content)
    ends = (result.mean, result.low, result.high)
    if result.kind not in ("interval", "range") or not all(
        type(value) in (int, float) and -1.001 <= value <= 1.001 for value in ends
    ):
        raise ValueError(f"a mean and its interval must be numbers of -1..1; got {content!r:.80}")
    return result


def compared(judged: PhotoScores, rows: Sequence[int], metrics: dict[str, Any], arm: str) -> dict[str, Any]:
    """All photographs beside the run's own figures, and their difference to those of their arm. Raises ValueError if
    metrics.json is not that of a run with this arm."""
    try:
        digital = {
            name: {key: _interval(metrics["arms"][name][key]) for key in MEASURES}
            for name in dict.fromkeys((arm, *BESIDE))
            if name in metrics["arms"]
        }
        own = digital[arm]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"metrics.json has no scores of the arm {arm} ({type(error).__name__}: {error})") from None
    photographed = {name: (share if name in SHARES else summary)(getattr(judged, name), rows) for name in MEASURES}
    return {
        "photographs": {name: photographed[name]._asdict() for name in MEASURES},
        "digital": {name: {key: value._asdict() for key, value in each.items()} for name, each in digital.items()},
        "difference": {name: difference(photographed[name], own[name])._asdict() for name in MEASURES},
        "intervals": "95 %, over pictures; their range where they are too few for an interval"
        if len(set(rows)) > 1
        else "95 %, over photographs of one picture",
    }
