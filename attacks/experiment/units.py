"""Work through the units of a run, in one process or in several that share a ledger."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path

from attacks.eot.batching import memory_told
from attacks.eot.faults import NotFinite, write
from attacks.experiment.batch import BatchResult, Bench, Unit, attacked
from attacks.experiment.parts import Parts
from attacks.runtime.distributed import World
from attacks.runtime.ledger import Claim, Failure, Ledger
from attacks.solvers.checks import DeadGradient

#: Seconds between two reads of the ledger while other processes work.
PAUSE = 0.5
#: Pictures that a message names.
SHOWN = 3
#: The file of a run's ledger.
LEDGER = "ledger.sqlite"
#: Errors that one picture may cause: it is tried again alone, and then reported.
FAULTS = (FloatingPointError, DeadGradient, MemoryError)
#: After so many failed pictures and no success the run ends with the error.
HOPELESS = 3


class Elsewhere(Exception):  # not an error
    """All units are done, and another process writes the tables."""


@contextmanager
def ledger_of(parts: Parts, batch: int | None, out: Path, world: World) -> Iterator[Ledger | None]:
    """The ledger of a run; None in all but the first process of a `world`."""
    if not world.first:
        yield None
        return
    with Ledger(out / LEDGER, parts.queries.names, unit_size(parts, batch)) as ledger:
        yield ledger


def unit_size(parts: Parts, batch: int | None) -> int:
    """The number of pictures attacked together: all without `evaluate.batch`, or if they share a perturbation."""
    count = len(parts.queries)
    return count if batch is None or parts.perturbation.shared else min(batch, count)


def work(bench: Bench, ledger: Ledger | None) -> tuple[list[BatchResult], list[Failure]]:
    """Work until no unit is left; returns the results of all units in order, and the pictures that failed twice. In a
    world of processes only the first has the `ledger`, and the others follow it.

    Raises:
        Elsewhere: another process has claimed the tables.
        ValueError: every picture has failed.
    """
    world, size = bench.world, unit_size(bench.parts, bench.run.evaluate.batch)
    if world.agree(ledger is not None and not _reconciled(ledger, bench, size)):
        raise Elsewhere
    for unit in _claims(ledger, bench, size):
        _do(ledger, bench, unit, size)
    if not world.agree(ledger is not None and ledger.finish() and not _over(bench)):
        raise Elsewhere
    done, failed = world.agree(None if ledger is None else [[astuple(c) for c in ledger.units()], ledger.failures()])
    if not done:
        _, name, _, reason = failed[0]
        raise ValueError(f"none of the {len(failed)} pictures could be attacked; {name}: {reason}")
    units = (_unit(start, stop, bench, size) for start, stop in done)
    return [bench.checkpoint.once(unit.name, _missing) for unit in units], [Failure(*each) for each in failed]


def _over(bench: Bench) -> bool:
    """Whether another process has finished the run; it then deletes the checkpoint."""
    return (bench.exhibits.out / "metrics.json").exists()


def _reconciled(ledger: Ledger, bench: Bench, size: int) -> bool:
    """Bring the ledger in line with the files, which decide what is done. False if the run has finished meanwhile."""
    alone, count = bench.checkpoint.alone, len(bench.parts.queries)
    units = ledger.units()
    lost = [claim for claim in units if not alone.has(_unit(claim.start, claim.stop, bench, size).name)]
    if _over(bench):
        return False
    for claim in lost:
        ledger.reopen(claim)
    whole = [(start, min(start + size, count)) for start in range(0, count, size)]
    single = [(at, at + 1) for at in range(count) if size > 1]
    for start, stop in [*whole, *single]:
        if alone.has(_unit(start, stop, bench, size).name):
            ledger.mark_done(start, stop)
    return True


def _claims(ledger: Ledger | None, bench: Bench, size: int) -> Iterator[Unit]:
    """Claim units until all are done or given up."""
    noted = False
    while True:
        claim, others = None, 0
        if ledger is not None and (claim := ledger.claim()) is None:
            counts = ledger.counts()
            others = counts.free + counts.claimed
            if others and not noted:
                noted = True
                print(f"note: {others} picture(s) are in the hands of other processes; waiting", file=sys.stderr)
        bounds, others = bench.world.agree([None if claim is None else astuple(claim), others])
        if bounds is not None:
            yield _unit(bounds[0], bounds[1], bench, size)
        elif others:
            time.sleep(PAUSE)
        else:
            return


def _do(ledger: Ledger | None, bench: Bench, unit: Unit, size: int) -> None:
    """Work on one unit. An error of a picture costs only that picture, unless every picture fails."""
    claim = Claim(unit.start, unit.stop)
    try:
        with memory_told():
            bench.checkpoint.once(unit.name, lambda: attacked(bench, unit))
    except FAULTS as error:
        # A perturbation for all has no picture to leave out, and several processes may have met several faults.
        if ledger is None or bench.world.size > 1 or bench.parts.perturbation.shared:
            raise
        keep_fault(bench, error, f"{unit.start:06d}")
        bench.checkpoint.under(unit.name).drop("")
        ledger.failed(claim, str(error))
        counts = ledger.counts()
        if not counts.done and counts.failed >= max(size, HOPELESS):
            raise
        print(f"note: picture(s) {_names(bench, unit)} failed: {error}", file=sys.stderr)
    else:
        if ledger is not None:
            ledger.done(claim)


def keep_fault(bench: Bench, error: Exception, name: str) -> None:
    """Store a view that is not finite, for a replay."""
    if isinstance(error, NotFinite):
        write(bench.exhibits.out, error, f"fault.{name}.safetensors")


def _unit(start: int, stop: int, bench: Bench, size: int) -> Unit:
    whole = start % size == 0 and stop == min(start + size, len(bench.parts.queries))
    return Unit(start, stop, start // size, alone=not whole)


def _names(bench: Bench, unit: Unit) -> str:
    names = bench.parts.queries.names[unit.start : unit.stop]
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def _missing() -> BatchResult:
    raise FileNotFoundError("`resume`: a file of the checkpoint is gone while the run goes on; start it again")
