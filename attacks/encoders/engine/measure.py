"""The engine of a run, chosen by measuring steps of that run.

Which layout, precision and chunk are fast depends on encoder and machine, and how much rounding an attack bears
depends on how noisy its gradient is anyway. Both are measured, and a measurement must repay itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from attacks.encoders.engine.bench import Bench, Contestant, Run
from attacks.encoders.engine.decision import SETTINGS, Choice, Decision, Measurement
from attacks.encoders.engine.fold import foldable
from attacks.encoders.engine.memory import most_rows
from attacks.encoders.engine.prepare import Encoder, prepare
from attacks.encoders.engine.tuner import BUDGET, Search, first_line

#: Views in the first pass.
START = {"cpu": 8, "cuda": 64}
#: Seconds: shorter runs are not tuned.
SHORT = 20.0
#: Seconds that must be left for a compilation to be tried.
COMPILE = 600.0


def choose(
    encoder: Encoder,
    trial: Run,
    wanted: Mapping[str, Any],
    *,
    rows: int,
    total_views: int,
    device: torch.device,
    limit: float = 0.15,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Search greedily: layout, fold, precision, chunk, compile; each against the best before it.

    A candidate is taken if it is at least 3 % faster (medians of interleaved rounds) and the same: embeddings within
    1e-3 of float32, and the gradient within float32's own uncertainty. A lower precision must keep the power of its
    rounding error, ||g - g_float32||^2, below `limit` of that of the sampling noise, E||g - E g||^2. Measuring ends
    when going on would take over 5 % of the run, a run below 20 s is not tuned, and a candidate that raises is one
    refused.

    Args:
        encoder: in evaluation mode; never changed.
        trial: one step of the estimator with a given encoder and chunk, the same views each time. Fewer images than
            the run has, with all views of each, make it cheaper and as telling.
        wanted: for each of layout, precision, fold, compile and chunk a value, or "auto"; left out is "auto".
        rows: most views a pass of the trial can have.
        total_views: encoder evaluations of the whole run.
        device: where the encoder is.
        limit: most rounding error of a precision, as a share of the sampling noise's power.
        clock: seconds.

    Raises:
        ValueError: an unknown setting, a value it cannot have, or one that this encoder cannot have.
    """
    for name in wanted:
        if name not in SETTINGS:
            raise ValueError(f"`engine.{name}` is no setting of an engine; known are {', '.join(SETTINGS)}")
    asked = {name: value for name, value in wanted.items() if value != "auto"}
    start = Decision(**{"chunk": min(rows, START.get(device.type, START["cpu"])), **asked})
    prepare(encoder, start)  # what a person asked for and cannot have, they must hear
    if len(asked) == len(SETTINGS):
        return Choice(start, ())
    if rows > BUDGET * total_views:
        why = f"not measured: a trial of {rows} views is over {BUDGET:.0%} of the run's {total_views}"
        return Choice(start, (Measurement("start", start.to_dict(), why=why),))
    bench = Bench(encoder, trial, device, clock)
    began = bench.now()
    try:
        reference = _reference(bench, start.chunk, "chunk" in asked)
        start = replace(start, chunk=reference.decision.chunk)
        best = reference if start == reference.decision else bench.enter(start)
        short = _estimate(best, total_views) < SHORT
        bench.round([best])
    except Exception as error:  # the run itself will say what is wrong with it
        return Choice(start, (Measurement("start", start.to_dict(), why=f"not measured: {first_line(error)}"),))
    search = Search(bench, reference, best, total_views, began, limit, "precision" in asked)
    if short or search.run_seconds < SHORT:
        search.note("start", f"a run of {search.run_seconds:.1f} s is too short to be tuned", best, taken=True)
    else:
        search.note("start", "where the search begins", best, taken=True)
        _search(search, [name for name in SETTINGS if name not in asked], rows)
    return Choice(search.best.decision, tuple(search.record))


def _reference(bench: Bench, chunk: int, asked: bool) -> Contestant:
    """Plain float32, in the largest chunk up to `chunk` that memory holds, unless that was asked for."""
    while True:
        try:
            one = bench.enter(Decision(chunk=chunk))
        except (RuntimeError, MemoryError) as error:
            full = isinstance(error, MemoryError) or "memory" in str(error)
            if asked or chunk == 1 or not full:
                raise
            chunk //= 2
            continue
        most = most_rows(bench.device, one.held)
        if asked or most is None or chunk <= most:
            return one
        chunk = most


def _estimate(one: Contestant, total_views: int) -> float:
    """Seconds of the run, at the speed of the warm-up."""
    return one.warmup / one.views * total_views


def _search(search: Search, free: list[str], rows: int) -> None:
    if "layout" in free:
        search.attempt("channels_last", layout="channels_last")
    if "fold" in free:
        if foldable(search.bench.encoder):
            search.attempt("fold", fold=True)
        else:
            search.note("fold", "refused: no batch norm that can be folded", fold=True)
    if "precision" in free:
        _precisions(search)
    if "chunk" in free:
        _chunks(search, rows)
    if "compile" in free:
        _compile(search)


def _precisions(search: Search) -> None:
    known = search.rounding(search.reference).noise is not None
    for precision in ("mixed", "bfloat16", "float16"):
        if known:
            search.attempt(precision, precision=precision)
        else:
            search.note(precision, "refused: with one view the sampling noise is unknown", precision=precision)


def _chunks(search: Search, rows: int) -> None:
    start = search.best.decision.chunk

    def double() -> bool:
        now = search.best.decision.chunk
        chunk = min(2 * now, rows)
        if chunk <= now:
            return False
        most = most_rows(search.bench.device, search.best.held)
        if most is None or chunk > most:
            why = "free memory is unknown" if most is None else f"memory holds {most} views"
            search.note(f"chunk {chunk}", f"refused: {why}", chunk=chunk)
            return False
        return search.attempt(f"chunk {chunk}", chunk=chunk)

    while double():
        pass
    if search.best.decision.chunk > start:
        return
    while (now := search.best.decision.chunk) > 1 and search.attempt(f"chunk {now // 2}", chunk=now // 2):
        pass


def _compile(search: Search) -> None:
    if search.run_seconds < COMPILE and not search.stopped:
        why = f"not measured: it takes a minute or more, and the run {search.run_seconds:.0f} s"
        search.note("compile", why, compile=True)
        return

    def worth(one: Contestant) -> str | None:
        compiling = one.warmup - one.seconds
        saved = (search.best.per_view - one.per_view) * search.total_views
        return (
            None if saved > compiling else f"refused: it saves {saved:.0f} s and takes {compiling:.0f} s to compile"
        )

    search.attempt("compile", worth, compile=True)
