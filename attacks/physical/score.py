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
from attacks.evaluation.judge import Judge
from attacks.evaluation.scores import embed
from attacks.experiment.embeddings import BLOCK, embedded
from attacks.experiment.parts import Parts
from attacks.physical.photo_measure import PhotoMeasurement
from transforms import Compose, Shown

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
def judge_of(parts: Parts) -> Judge:
    """The judge of a run, on the encoder in its own precision."""
    gallery = embedded(parts.gallery, parts.encoder, parts.device, BLOCK).rows
    own = embed(parts.queries.images, parts.encoder, parts.device)
    assert isinstance(own, Tensor)
    return Judge(parts.encoder, own, gallery, parts.gallery, parts.truth, parts.goal, neighbours=0)


def scored(judge: Judge, shown: Shown, rows: Tensor, bank: Bank) -> PhotoScores:
    """The scores of n pictures with numbers `rows` (n,) from V views, picture by picture (n*V,). Raises
    FloatingPointError if an embedding is not finite."""
    scores = judge(shown, rows, bank)
    if not bool(scores.cosine.isfinite().all()):
        raise FloatingPointError("the encoder's embedding of a photograph is not finite")
    hit = judge.known.same(scores.nearest, judge.truth[rows, None])
    names = tuple(judge.known.names[row] for row in scores.nearest.flatten().tolist())
    return PhotoScores(scores.cosine.flatten(), hit.flatten(), judge.success(scores, rows).flatten(), names)


def judge_photos(judge: Judge, measured: Sequence[PhotoMeasurement]) -> PhotoScores:
    """The scores of photographs, whose views were taken already."""
    views = torch.stack([each.view.pixels for each in measured]).to(judge.own.device)
    bank = Bank(Compose([]), torch.zeros(1, 0, device=views.device))
    return scored(judge, views, torch.tensor([each.photo.row for each in measured]), bank)


def joined(parts: Sequence[PhotoScores]) -> PhotoScores:
    """The scores of several pictures as one."""
    cosine, hit, success = (torch.cat([getattr(each, name) for each in parts]) for name in MEASURES)
    return PhotoScores(cosine, hit, success, tuple(name for each in parts for name in each.nearest))


def figures(scores: PhotoScores, clusters: Sequence[int]) -> dict[str, Interval]:
    """The mean of each measure with its interval (see `summary` and `share`)."""
    return {name: (share if name in SHARES else summary)(getattr(scores, name), clusters) for name in MEASURES}


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
    photographed = figures(judged, rows)
    return {
        "photographs": {name: photographed[name]._asdict() for name in MEASURES},
        "digital": {name: {key: value._asdict() for key, value in each.items()} for name, each in digital.items()},
        "difference": {name: difference(photographed[name], own[name])._asdict() for name in MEASURES},
        "intervals": "95 %, over pictures; their range where they are too few for an interval"
        if len(set(rows)) > 1
        else "95 %, over photographs of one picture",
    }
