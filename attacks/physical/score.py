"""Photographs through the run's encoder, judged as the run's own views are; and what the run had predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.eot.bank import Bank
from attacks.evaluation.intervals import Interval, interval, wilson
from attacks.evaluation.scores import embed, evaluate
from attacks.experiment.embeddings import BLOCK, embedded
from attacks.experiment.parts import Parts
from attacks.physical.photo_measure import PhotoMeasurement
from transforms import Compose

#: As in metrics.json.
MEASURES = ("cosine", "recall_at_1", "success")
#: Those of them that are yes or no.
SHARES = ("recall_at_1", "success")
#: The arms of the run that photographs are compared with.
ARMS = ("eot", "noise", "clean")


@dataclass(frozen=True, eq=False)
class Judged:
    """Of each photograph: the cosine to the picture's clean embedding, whether it is recognised, whether the attacker
    has what was wanted (P,), and the name of what it is taken for."""

    cosine: Tensor
    recall_at_1: Tensor
    success: Tensor
    nearest: tuple[str, ...]


@torch.no_grad()
def judge(measured: Sequence[PhotoMeasurement], parts: Parts) -> Judged:
    """Score the views on the encoder in its own precision. Raises FloatingPointError where it answers with NaN."""
    rows = torch.tensor([each.photo.row for each in measured])
    views = torch.stack([each.view.pixels for each in measured]).to(parts.device)
    gallery = embedded(parts.gallery, parts.encoder, parts.device, BLOCK).rows
    own = embed(parts.queries.images[rows.unique()], parts.encoder, parts.device)
    assert isinstance(own, Tensor)
    own = own[torch.searchsorted(rows.unique(), rows)]
    bank = Bank(Compose([]), torch.zeros(1, 0, device=parts.device))  # a photograph is a view already
    scores = evaluate(views, own, gallery, encoder=parts.encoder, bank=bank)
    if not bool(scores.cosine.isfinite().all()):
        raise FloatingPointError("the encoder answers a photograph with a number that is not finite")
    nearest = scores.nearest.cpu()
    hit = parts.gallery.same(nearest, parts.truth[rows, None])[:, 0]
    success = ~hit if parts.goal is None else parts.gallery.same(nearest, parts.goal[rows, None])[:, 0]
    names = tuple(parts.gallery.names[int(row)] for row in nearest[:, 0])
    return Judged(scores.cosine[:, 0].cpu(), hit, success, names)


def summary(values: Tensor, rows: Sequence[int]) -> Interval:
    """The mean of (P,) values with its 95 % interval, as `attacks.evaluation.intervals.interval` has it: of several
    pictures whole pictures are resampled, each the mean of its photographs; of a single one its photographs."""
    shown = torch.tensor(rows)
    if len(shown.unique()) == 1:
        return interval(values[None].double())
    return interval(torch.stack([values[shown == row].double().mean() for row in shown.unique()])[:, None])


def share(hits: Tensor, rows: Sequence[int]) -> Interval:
    """The share of (P,) hits, a bool each, with its 95 % interval. A bootstrap of equal values has no width, and few
    photographs often are all equal; so of one picture it is Wilson's over the photographs. Of several pictures it is
    `summary`'s, but no narrower on either side than Wilson's would be if photographs of one picture were independent.
    That is the least there can be: how far pictures differ cannot be seen where all photographs agree."""
    count = len(hits)
    bootstrap = summary(hits.double(), rows)
    least = wilson(bootstrap.mean * count, count)
    if len(set(rows)) == 1:
        return least
    return Interval(bootstrap.mean, min(bootstrap.low, least.low), max(bootstrap.high, least.high))


def difference(seen: Interval, predicted: Interval) -> Interval:
    """Of two independent means, with an interval from theirs (Zou & Donner 2008): each bound is off by the root of
    the squares of how far off the means may be."""
    mean = seen.mean - predicted.mean
    return Interval(
        mean,
        mean - math.hypot(seen.mean - seen.low, predicted.high - predicted.mean),
        mean + math.hypot(seen.high - seen.mean, predicted.mean - predicted.low),
    )


def _interval(content: Any) -> Interval:
    """From what metrics.json holds, which may be a stranger's."""
    result = Interval(**content)
    if not all(type(value) in (int, float) and -1.001 <= value <= 1.001 for value in result):
        raise ValueError(f"a mean and its interval must be numbers of -1..1; got {content!r:.80}")
    return result


def compared(judged: Judged, rows: Sequence[int], metrics: dict[str, Any]) -> dict[str, Any]:
    """All photographs beside what the run predicted. Raises ValueError where metrics.json is not that of a run."""
    try:
        digital = {
            arm: {name: _interval(metrics["arms"][arm][name]) for name in MEASURES}
            for arm in ARMS
            if arm in metrics["arms"]
        }
        eot = digital["eot"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"metrics.json has no scores of the arm eot ({type(error).__name__}: {error})") from None
    photographed = {name: (share if name in SHARES else summary)(getattr(judged, name), rows) for name in MEASURES}
    return {
        "photographs": {name: photographed[name]._asdict() for name in MEASURES},
        "digital": {arm: {name: value._asdict() for name, value in each.items()} for arm, each in digital.items()},
        "difference": {name: difference(photographed[name], eot[name])._asdict() for name in MEASURES},
        "intervals": "95 %, bootstrap over pictures; shares no narrower than Wilson's over photographs"
        if len(set(rows)) > 1
        else "95 %, over photographs of one picture; shares: Wilson's, cosine: bootstrap",
    }
