"""One candidate at a time against the best so far: is it the same gradient, and is it faster?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.engine.bench import Bench, Contestant
from attacks.encoders.engine.decision import Measurement, Trial
from attacks.encoders.tree import Tree, leaves


class Rounding(NamedTuple):
    """`size` of the reference gradient, `error` of the candidate's, `noise` of the reference (None: unknown): root
    mean squares over images of L2 norms. `cosine` of the two, the mean over images."""

    size: float
    error: float
    noise: float | None
    cosine: float

    @property
    def ratio(self) -> float | None:
        """error^2 / noise^2: how much the rounding adds to E||g - E g||^2, the noise as every signal-to-noise ratio
        here counts it. A ratio of 0.15 costs what 13 % fewer views would. None where the noise is unknown."""
        if self.noise is None:
            return None
        return (self.error / self.noise) ** 2 if self.noise else math.inf


def compare(grad: Tensor, reference: Trial) -> Rounding:
    """The rounding of `grad` (N,...) against a step in float32.

    An estimate g has E||g||^2 = ||E g||^2 + E||g - E g||^2, so its noise is ||g|| / sqrt(1 + snr). A gradient that
    is not finite has the error infinity.
    """
    exact, other = (g.detach().flatten(1).double() for g in (reference.grad, grad))
    squares = exact.square().sum(1)
    difference = (other - exact).square().sum(1).mean()
    noise = (squares / (1 + reference.snr.to(squares).clamp(min=0))).mean()
    return Rounding(
        size=float(squares.mean().sqrt()),
        error=float(difference.sqrt()) if bool(difference.isfinite()) else math.inf,
        noise=float(noise.sqrt()) if bool(noise.isfinite()) else None,
        cosine=float(F.cosine_similarity(exact, other).mean()),
    )


#: Share of the run that measuring may take.
BUDGET = 0.05
#: Rounds of a contest, each a trial of the best and one of the candidate.
ROUNDS = 3
#: A candidate wins if its median is at most this share of the best's, and is given up after a round above the other.
FASTER, HOPELESS = 0.97, 1.3
#: Relative tolerances of a change that is exact in real numbers. Embeddings are continuous (on CUDA a convolution may
#: round to 11 bits, TF32); a gradient is not: a ReLU that flips in the last bit of float32 moves it by a percent.
SAME_EMBEDDING, SAME_EMBEDDING_CUDA, SAME_GRADIENT = 1e-3, 1e-2, 0.05


@dataclass
class Search:
    """The best so far, and the record.

    Args:
        bench: where trials run.
        reference: the contestant in plain float32, to whose gradient every other is compared.
        best: the best so far.
        total_views: encoder evaluations of the whole run.
        began: the time when measuring began.
        limit: most rounding error of a precision that nobody asked for, as a share of the sampling noise's power.
        asked: whether a person asked for the precision.
    """

    bench: Bench
    reference: Contestant
    best: Contestant
    total_views: int
    began: float
    limit: float
    asked: bool
    record: list[Measurement] = field(default_factory=list)
    stopped: bool = False

    @property
    def run_seconds(self) -> float:
        """The whole run as the best would do it."""
        return self.total_views * self.best.per_view

    def rounding(self, one: Contestant) -> Rounding:
        """Of a contestant's warm-up against float32."""
        return compare(one.trial.grad, self.reference.trial)

    def note(self, name: str, why: str, one: Contestant | None = None, taken: bool = False, **changes: Any) -> None:
        """Put a verdict on record, with the figures of `one` as far as there are any."""
        settings = replace((one or self.best).decision, **changes).to_dict()
        if one is None:
            self.record.append(Measurement(name, settings, taken=taken, why=why))
            return
        r = self.rounding(one)
        finite = r.error < float("inf")
        figures = {"rounding": r.error, "noise": r.noise, "ratio": r.ratio, "cosine": r.cosine} if finite else {}
        ms = 1e3 * one.per_view if one.times else None
        self.record.append(Measurement(name, settings, ms, **figures, taken=taken, why=why))

    def attempt(self, name: str, worth: Callable[[Contestant], str | None] = lambda _: None, **changes: Any) -> bool:
        """Measure the best with `changes`; take it if it gives the same gradient faster and is `worth` it (None, or
        the reason against). True if taken."""
        if self.stopped:
            return False
        if self._spent() + (1 + 2 * ROUNDS) * self.best.seconds > BUDGET * self.run_seconds:
            self.stopped = True
            self.note(name, f"not measured, nor what follows: it would take over {BUDGET:.0%} of the run", **changes)
            return False
        try:
            one = self.bench.enter(replace(self.best.decision, **changes))
            against = self._differs(one) or self._idle(one, changes)
            if against is None:
                against = self._noisy(one)
                self._race(one, 1 if against else ROUNDS)
                against = against or self._slower(one) or worth(one)
        except (
            Exception
        ) as error:  # an operator that is missing, no compiler, no memory: whatever it is, not this one
            self.note(name, f"refused: {first_line(error)}", **changes)
            return False
        if against is None:
            share = one.seconds / self.best.seconds
            self.best = one
            self.note(name, f"taken: {share:.3f} of the time", one, taken=True)
            return True
        self.note(name, against, one)
        return False

    def _spent(self) -> float:
        return self.bench.now() - self.began

    def _race(self, one: Contestant, rounds: int) -> None:
        before = list(self.best.times)
        self.best.times.clear()
        try:
            for _ in range(rounds):
                self.bench.round([self.best, one])
                if one.seconds > HOPELESS * self.best.seconds:
                    return
        except Exception:
            self.best.times[:] = before
            raise

    def _differs(self, one: Contestant) -> str | None:
        """Why it does not compute the same, but for the rounding of a lower precision."""
        r = self.rounding(one)
        if r.error == float("inf"):
            return "refused: its gradient is not finite"
        # A compiled graph would be compiled anew for this pass, which has another shape and no gradient.
        if one.decision.precision in ("float32", "mixed") and not one.decision.compile:
            with torch.no_grad():
                exact, other = (_row(e(self.reference.probe)) for e in (self.reference.encoder, one.encoder))
            away = float((other - exact).norm() / exact.norm())
            if not away <= (SAME_EMBEDDING if one.probe.device.type == "cpu" else SAME_EMBEDDING_CUDA):
                return f"refused: its embeddings differ from float32 by {away:.1e}"
        if one.decision.precision == self.best.decision.precision:
            least = SAME_GRADIENT * r.size
            if r.error > 1.5 * self.rounding(self.best).error + least:
                return f"refused: its gradient differs from float32 by {r.error / r.size:.1e}"
        return None

    def _idle(self, one: Contestant, changes: dict[str, Any]) -> str | None:
        if set(changes) == {"chunk"} and one.largest == self.best.largest:
            return f"refused: no pass has more than {one.largest} views"
        return None

    def _noisy(self, one: Contestant) -> str | None:
        """Why its precision is too low for this step's noise."""
        if one.decision.precision == "float32" or self.asked:
            return None
        ratio = self.rounding(one).ratio
        if ratio is None:
            return "refused: with one view the sampling noise is unknown"
        if ratio >= self.limit:
            return (
                f"refused: its rounding has {ratio:.0%} of the sampling noise's power, the limit is {self.limit:.0%}"
            )
        return None

    def _slower(self, one: Contestant) -> str | None:
        share = one.seconds / self.best.seconds
        return None if share <= FASTER else f"refused: {share:.3f} of the time"


def first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _row(features: Tree) -> Tensor:
    """All features of each picture side by side, (N,D) in float64."""
    return torch.cat([leaf.flatten(1).double() for leaf in leaves(features)], dim=1)
