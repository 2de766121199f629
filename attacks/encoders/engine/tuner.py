"""The choice of an engine by measuring steps of the run itself."""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attacks.encoders.engine.batch_norm import foldable
from attacks.encoders.engine.decision import SETTINGS, Choice, Decision, Measurement, Trial
from attacks.encoders.engine.memory import SavedBytes, most_rows, watch
from attacks.encoders.engine.native_precision import is_half
from attacks.encoders.engine.precision import allow_tf32, has_tf32
from attacks.encoders.engine.preparation import prepare
from attacks.encoders.request import first_line
from attacks.encoders.tree import Encoder, Tree, leaves
from transforms.doors import unchecked

#: Share of the run that measuring may take.
BUDGET = 0.05
#: Seconds of a run: shorter ones are not tuned.
SHORT = 20.0
#: Most power of a precision's rounding error, as a share of the sampling noise's power.
LIMIT = 0.15
#: Timed trials of the best and of a candidate, in turn. A candidate wins if its median is at most this share of the
#: best's.
ROUNDS, FASTER = 3, 0.97
#: Up to the first share, or beyond the second, one trial of each decides.
CLEAR, HOPELESS = 0.6, 1.3
#: Relative tolerances of a change that is exact in real numbers. Embeddings are continuous; a gradient is not: a ReLU
#: that flips in the last bit of float32 moves it by a percent.
SAME_EMBEDDING, SAME_GRADIENT = 1e-3, 0.05
#: Views of the first pass, and those whose embeddings are compared.
START, PROBE = {"cpu": 16, "cuda": 64}, 4
_EXACT: tuple[dict[str, Any], ...] = ({"layout": "channels_last"}, {"fold": True})
#: What is tried, in this order, each against the best so far; then chunks. On a GPU precision comes first: it saves
#: most, and measuring may end before all is tried (docs/benchmarks.md, "On a GPU").
CANDIDATES: dict[str, tuple[dict[str, Any], ...]] = {
    "cpu": (*_EXACT, {"precision": "bfloat16"}),
    "cuda": ({"precision": "bfloat16"}, {"precision": "tf32"}, *_EXACT),
}


def choose(
    encoder: Encoder,
    trial: Callable[[Encoder, int], Trial],
    settings: Mapping[str, Any],
    *,
    rows: int,
    total_views: int,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Search greedily: layout, folding, precision (on a GPU first), chunk; each against the best.

    A candidate is taken if it is at least 3 % faster and computes the same: embeddings within 1e-3 of float32, and
    the gradient within float32's own uncertainty. A lower precision must keep the power of its rounding error,
    ||g - g_float32||^2, below 15 % of that of the sampling noise, E||g - E g||^2. Measuring ends before it takes
    over 5 % of the run; a run below 20 s is not tuned; a candidate that raises is refused.

    Torch's own TF32 is off in this process afterwards: it would be part of the float32 that all is compared with.

    Args:
        encoder: in evaluation mode; never changed.
        trial: one step of the estimator with a given encoder and chunk, always on the same views. A few of the run's
            images with all their views are enough.
        settings: for each of layout, precision, fold and chunk a value, or "auto" (the default).
        rows: most views that a pass of the trial can have.
        total_views: encoder evaluations of the whole run.
        device: of the encoder.
        clock: seconds.

    Raises ValueError: an unknown setting, or a value that it or this encoder does not support.
    """
    fixed = {name: value for name, value in settings.items() if value != "auto"}
    start = Decision.from_dict({"chunk": min(rows, START.get(device.type, START["cpu"])), **fixed})
    allow_tf32(False)
    prepare(encoder, start)  # raises for a given setting that this encoder does not support
    if len(fixed) == len(SETTINGS):
        return Choice(start, ())
    try:
        if rows > BUDGET * total_views:
            raise ValueError(f"a trial of {rows} views is over {BUDGET:.0%} of the run's {total_views}")
        tuner = Tuner(encoder, trial, total_views, device, clock, fixed)
        long = tuner.begin(start)
    except Exception as error:  # the run itself will report an error of the encoder
        return Choice(start, (Measurement("start", start.to_dict(), why=f"not measured: {first_line(error)}"),))
    if long:
        for changes in CANDIDATES.get(device.type, CANDIDATES["cpu"]):
            if not set(changes) & set(fixed):
                tuner.attempt(**changes)
        if "chunk" not in fixed:
            tuner.attempt_chunks(rows)
    return Choice(tuner.best.decision, tuple(tuner.measurements))


class Rounding(NamedTuple):
    """`size` of the reference gradient, `error` of the candidate's, `noise` of the reference (None: unknown): root
    mean squares over images of L2 norms."""

    size: float
    error: float
    noise: float | None

    @property
    def ratio(self) -> float | None:
        """error^2 / noise^2, what rounding adds to the noise's power. A ratio of 0.15 costs what 13 % fewer views
        would. None where the noise is unknown."""
        if self.noise is None:
            return None
        return (self.error / self.noise) ** 2 if self.noise else math.inf


def compare_candidates(grad: Tensor, reference: Trial) -> Rounding:
    """The rounding of `grad` (N,...) against a step in float32, whose noise is ||g|| / sqrt(1 + snr). A gradient that
    is not finite has the error infinity."""
    exact, other = (g.detach().flatten(1).double() for g in (reference.grad, grad))
    squares = exact.square().sum(1)
    powers = squares, (other - exact).square().sum(1), squares / (1 + reference.snr.to(squares).clamp(min=0))
    size, error, noise = (float(power.mean().sqrt()) for power in powers)
    return Rounding(size, error if math.isfinite(error) else math.inf, noise if math.isfinite(noise) else None)


class Candidate:
    """A decision and its prepared encoder. In its first trial, the warm-up, it takes the encoder's place: it counts
    the `views` and those of the `largest` pass, and keeps a few images, `probe`."""

    rounding: Rounding

    def __init__(self, encoder: Encoder, decision: Decision) -> None:
        self.encoder, self.decision = prepare(encoder, decision), decision
        self.views = self.largest = 0
        self.probe = torch.empty(0)
        self.memory = SavedBytes()  # the memory of a pass
        self.warmup = self.seconds = math.inf  # of the warm-up with preparation, and of a later trial

    def __call__(self, images: Tensor, **draws: Any) -> Tree:
        self.memory.begin()
        self.views += len(images)
        self.largest = max(self.largest, len(images))
        self.probe = self.probe if len(self.probe) else images.detach()[:PROBE].clone()
        return unchecked(self.encoder)(images, **draws)

    @property
    def per_view(self) -> float:
        return self.seconds / self.views

    def most_rows(self, device: torch.device) -> int | None:
        return most_rows(device, self.memory.largest / self.largest)

    def measurement(self, name: str, reason: str, is_taken: bool) -> Measurement:
        _, error, noise = self.rounding
        rounding, ratio = (error, self.rounding.ratio) if error < math.inf else (None, None)
        settings, ms = self.decision.to_dict(), 1e3 * self.per_view
        return Measurement(name, settings, ms, rounding, noise, ratio, is_taken, reason)


@dataclass
class Tuner:
    """The search: `best` is the best candidate so far, `measurements` the record. Arguments as of `choose`; `fixed`
    are the settings with a given value."""

    encoder: Encoder
    trial: Callable[[Encoder, int], Trial]
    total_views: int
    device: torch.device
    clock: Callable[[], float]
    fixed: Mapping[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    exact: Trial | None = None  # the step in float32
    is_stopped: bool = False

    def __post_init__(self) -> None:
        self.began = self._time()

    def begin(self, start: Decision) -> bool:
        """Measure plain float32, the reference of all gradients, and `start`. Whether the run is worth tuning."""
        self.reference = self._warm_up(Decision(chunk=start.chunk))
        limit = self.reference.most_rows(self.device)
        if "chunk" not in self.fixed and limit is not None and limit < start.chunk:
            start = replace(start, chunk=limit)
            self.reference = self._warm_up(Decision(chunk=limit))
        self.best = self.reference if start == self.reference.decision else self._warm_up(start)
        warm = self.best.warmup / self.best.views * self.total_views
        self.best.seconds = self._time_trial(self.best)
        long = min(warm, self._run) >= SHORT
        reason = "where the search begins" if long else f"a run of {self._run:.1f} s is too short to be tuned"
        self.measurements.append(self.best.measurement("start", reason, is_taken=True))
        return long

    def attempt(self, **changes: Any) -> bool:
        """Measure the best decision with `changes`, and take it if it is better. Whether it was taken."""
        if self.is_stopped:
            return False
        ((setting, value),) = changes.items()
        name = value if isinstance(value, str) else setting if isinstance(value, bool) else f"{setting} {value}"
        decision = replace(self.best.decision, **changes)
        reason = self._obstacle(changes)
        try:
            if reason is None:
                candidate = self._warm_up(decision)
                difference = self._differs(candidate)
                slowness = self._race(candidate, 1 if difference else ROUNDS)
                reason = difference or slowness
                verdict = reason or f"taken: {candidate.seconds / self.best.seconds:.3f} of the time"
                self.measurements.append(candidate.measurement(name, verdict, is_taken=reason is None))
                self.best = self.best if reason else candidate
                return reason is None
        except Exception as error:  # a missing operator, no memory: any reason will do
            reason = f"refused: {first_line(error)}"
        self.measurements.append(Measurement(name, decision.to_dict(), why=reason))
        return False

    def attempt_chunks(self, rows: int) -> None:
        """Double the chunk as long as that is better, up to `rows`; if it never is, halve it."""
        start = self.best.decision.chunk
        while (chunk := self.best.decision.chunk) < rows and self.attempt(chunk=min(2 * chunk, rows)):
            pass
        while 1 < (chunk := self.best.decision.chunk) <= start and self.attempt(chunk=chunk // 2):
            pass

    @property
    def _run(self) -> float:
        """Seconds of the whole run with the best."""
        return self.total_views * self.best.per_view

    def _time(self) -> float:
        """The time when all work of the device is done."""
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return self.clock()

    def _warm_up(self, decision: Decision) -> Candidate:
        """Prepare the encoder and run the first trial, its memory watched. Raises whatever the encoder raises."""
        began = self._time()
        candidate = Candidate(self.encoder, decision)
        with watch(self.device) as candidate.memory:
            trial = self.trial(candidate, decision.chunk)
        candidate.warmup = self._time() - began
        self.exact = self.exact or trial
        candidate.rounding = compare_candidates(trial.grad, self.exact)
        return candidate

    def _time_trial(self, candidate: Candidate) -> float:
        began = self._time()
        self.trial(candidate.encoder, candidate.decision.chunk)
        return self._time() - began

    def _race(self, candidate: Candidate, rounds: int) -> str | None:
        """Time the best and the candidate in turn. Why the candidate is not taken to be faster."""
        times: list[tuple[float, float]] = []
        is_decided = False
        while not is_decided and (not times or self._affordable(2)):
            times.append((self._time_trial(self.best), self._time_trial(candidate)))
            is_decided = len(times) == rounds or not CLEAR < times[-1][1] / times[-1][0] <= HOPELESS
        self.best.seconds, candidate.seconds = (statistics.median(column) for column in zip(*times, strict=True))
        if candidate.seconds > FASTER * self.best.seconds:
            return f"refused: {candidate.seconds / self.best.seconds:.3f} of the time"
        return None if is_decided else f"refused: no time to compare it {ROUNDS} times, as so small a gain needs"

    def _affordable(self, steps: int) -> bool:
        """Whether so many more steps of the best leave measuring within its share of the run."""
        return self._time() - self.began + steps * self.best.seconds <= BUDGET * self._run

    def _obstacle(self, changes: Mapping[str, Any]) -> str | None:
        """Why the best with `changes` is not measured."""
        if "fold" in changes and not foldable(self.encoder):
            return "refused: no batch norm that can be folded"
        if changes.get("precision") == "tf32" and not has_tf32(self.device):
            return "refused: the device has no TF32"
        half = is_half(self.encoder)
        if "precision" in changes and half is not None:
            return f"refused: the encoder is in {half} of its own"
        if "precision" in changes and self.reference.rounding.noise is None:
            return "refused: with one view the sampling noise is unknown"
        if changes.get("chunk", 0) > self.best.decision.chunk:
            limit = self.best.most_rows(self.device)
            if limit is None or changes["chunk"] > limit:
                return f"refused: {'free memory is unknown' if limit is None else f'memory holds {limit} views'}"
        if not self._affordable(3):  # a warm-up, and one trial of each
            self.is_stopped = True
            return f"not measured, nor what follows: it would take over {BUDGET:.0%} of the run"
        return None

    def _differs(self, candidate: Candidate) -> str | None:
        """Why it does not compute the same. A precision that was given is not judged by the sampling noise."""
        rounding, decision = candidate.rounding, candidate.decision
        if rounding.error == math.inf:
            return "refused: its gradient is not finite"
        if decision.precision == "float32":
            with torch.no_grad():  # all features of each picture side by side
                trees = (leaves(e(self.reference.probe)) for e in (self.reference.encoder, candidate.encoder))
                exact, other = (torch.cat([leaf.flatten(1).double() for leaf in tree], dim=1) for tree in trees)
            distance = float((other - exact).norm() / exact.norm())
            if not distance <= SAME_EMBEDDING:
                return f"refused: its embeddings differ from float32 by {distance:.1e}"
        tolerance = 1.5 * self.best.rounding.error + SAME_GRADIENT * rounding.size
        if decision.precision == self.best.decision.precision and rounding.error > tolerance:
            return f"refused: its gradient differs from float32 by {rounding.error / rounding.size:.1e}"
        is_judged = decision.precision != "float32" and "precision" not in self.fixed
        if is_judged and rounding.ratio is not None and rounding.ratio >= LIMIT:
            share = f"{rounding.ratio:.0%} of the sampling noise's power"
            return f"refused: its rounding has {share}, the limit is {LIMIT:.0%}"
        return None
