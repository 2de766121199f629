"""What the sections of an evaluation ask of a judge, and how they keep and say its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from attacks.evaluation.intervals import interval, rate
from attacks.evaluation.scores import Bank, Scores
from attacks.runtime.values import kept
from transforms import Shown


class Scoring(Protocol):
    """A judge: what pictures are taken for, and whether that is what the attacker wants."""

    def __call__(self, shown: Shown, rows: Tensor, bank: Bank) -> Scores:
        """The scores of the pictures with numbers `rows` (N,) from each of V views."""

    def success(self, scores: Scores, rows: Tensor) -> Tensor:
        """(N,V), true where the attacker has what he wants."""


@kept
class Found(NamedTuple):
    """Of N pictures from V views: `cosine` (N,V) to the clean embedding, and `success` (N,V) of the attacker."""

    cosine: Tensor
    success: Tensor

    def cell(self, views: slice) -> Found:
        """Some of the views."""
        return Found(self.cosine[:, views], self.success[:, views])

    def to_dict(self) -> dict[str, Any]:
        """Both with their intervals."""
        return {"success": rate(self.success)._asdict(), "cosine": interval(self.cosine)._asdict()}

    def rows(self, names: Sequence[str], **key: object) -> list[dict[str, object]]:
        """A row for each picture and view, `key` first. (Of views too: with a single picture the interval is one
        over its views.)"""
        table = zip(names, self.cosine.tolist(), self.success.tolist(), strict=True)
        return [
            key | {"picture": name, "view": view, "cosine": cosine, "success": bool(hit)}
            for name, cosines, hits in table
            for view, (cosine, hit) in enumerate(zip(cosines, hits, strict=True))
        ]


def judged(judge: Scoring, shown: Shown, rows: Tensor, bank: Bank) -> tuple[Found, bool]:
    """What a judge finds on a bank, on the CPU; and whether the attacker has a target."""
    scores = judge(shown, rows, bank)
    return Found(scores.cosine.cpu(), judge.success(scores, rows).cpu()), scores.goal_rank is not None
