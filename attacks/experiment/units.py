"""Work through the units of a run. Files say which are done; a lock on each spares two processes the same unit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import NamedTuple

from attacks.eot.batching import memory_told
from attacks.eot.faults import NotFinite, write
from attacks.experiment.bench import Bench
from attacks.experiment.directory import finished
from attacks.experiment.unit import Failure, Unit, UnitResult, attack_unit, share_of
from attacks.runtime.command_line import print_notes
from attacks.runtime.files import Lock, sha256
from attacks.solvers.checks import DeadGradient
from attacks.study.study import Study

#: Errors that one picture may cause: it is tried again alone, and then reported.
FAULTS = (FloatingPointError, DeadGradient, MemoryError)
#: After so many failed pictures and no success the run ends with the error.
HOPELESS = 3


class OtherProcessFinishes(Exception):  # a way out of the loop, not an error
    """Another process makes the tables."""


class UnitOutcome(NamedTuple):
    """Of a unit: pictures with a result, reasons of those without; not `ended` if another process works on it."""

    ended: bool
    pictures: int = 0
    reasons: tuple[str, ...] = ()


#: An executor: does units, in any order and in any processes, and yields each with what became of it. Its second
#: argument: whether to wait for other processes that work on a unit.
Execute = Callable[[Sequence[Unit], bool], Iterator[tuple[Unit, UnitOutcome]]]
#: Whether the results of the first pictures, so many, are enough.
StopRule = Callable[[Sequence[UnitResult], int], bool]


def units_of(study: Study) -> list[Unit]:
    """All units of a run, in order."""
    return [Unit(rows.start, rows.stop, number) for number, rows in enumerate(study.ranges)]


def in_process(bench: Bench) -> Execute:
    """The executor of this process."""
    return lambda units, wait: ((unit, do(bench, unit, wait)) for unit in units)


def work(
    bench: Bench, execute: Execute, shard: tuple[int, int], stop_rule: StopRule | None = None
) -> tuple[list[UnitResult], list[Failure]]:
    """Do all units of a shard that are not done; returns the results of all units in order, and the pictures that
    failed. With `stop_rule`, one unit after the other until the results so far are.

    Raises OtherProcessFinishes where units of other shards are not done, and ValueError where every picture failed.
    """
    units, (at, shards) = units_of(bench.study), shard
    if stop_rule is None:
        _do_units(bench, units[at::shards], execute)
    else:  # the units that were needed depend on their order, not on when a process was stopped and resumed
        for count, unit in enumerate(units, 1):
            _do_units(bench, [unit], execute)
            results, _ = _results(bench, units[:count])
            if results and stop_rule(results, unit.stop):
                units = units[:count]
                break
    if missing := [unit for unit in units if not bench.checkpoint.has(unit.name)]:
        raise OtherProcessFinishes(
            f"shard {at}/{shards} is done; {len(missing)} of {len(units)} units of other shards are not, and the "
            "process that ends last makes the tables"
        )
    results, failed = _results(bench, units)
    if not results:
        raise ValueError(
            f"none of the {len(failed)} pictures could be attacked; {failed[0].name}: {failed[0].reason}"
        )
    return results, failed


def _results(bench: Bench, units: Sequence[Unit]) -> tuple[list[UnitResult], list[Failure]]:
    results = [result for unit in units for result in _result(bench, unit)]
    failed = [result for result in results if isinstance(result, Failure)]
    return [result for result in results if isinstance(result, UnitResult)], failed


@contextmanager
def tables(folder: Path, leave: Callable[[], None] | None = None) -> Iterator[None]:
    """Within the block this process begins its journal in a run whose checkpoint is in `folder`, or, where all units
    are done, makes the tables: no other process does either. One that makes the tables waits until all journals are
    closed, so one that waits for it must `leave` first. Raises OtherProcessFinishes if another has made them."""
    with Lock(folder / "tables.lock") as lock:
        if not lock.exclusive():
            if leave is not None:
                leave()
            lock.exclusive(wait=True)
        if finished(folder.parent):
            raise OtherProcessFinishes("all pictures are done, and another process has made the tables")
        yield


def _do_units(bench: Bench, units: Sequence[Unit], execute: Execute) -> None:
    pictures, reasons = 0, list[str]()
    work = {unit for unit in units if bench.checkpoint.has(unit.name)}
    for wait in (False, True):
        busy = []
        for unit, outcome in execute(units, wait):
            busy += [] if outcome.ended else [unit]
            pictures, reasons = pictures + outcome.pictures, [*reasons, *outcome.reasons]
            bench.progress.close(share_of(bench, unit) * outcome.ended, is_old=unit in work)
            if not pictures and len(reasons) >= max(HOPELESS, *map(len, bench.study.ranges)):
                raise FloatingPointError(reasons[0])
        if not busy:
            return
        units, count = busy, sum(unit.stop - unit.start for unit in busy)
        print_notes([f"other processes attack {count} picture(s); waiting"])


def do(bench: Bench, unit: Unit, wait: bool) -> UnitOutcome:
    """Do a unit if it is not done. Where another process works on it, `wait` for the end of that or leave it."""
    folder = bench.checkpoint.folder if bench.world.size == 1 else None  # of several all do the same units together
    with nullcontext() if folder is None else Lock(folder / f"{unit.name}.lock") as lock:
        if lock is not None and not lock.exclusive(wait):
            return UnitOutcome(False)
        results = _result(bench, unit)
    pictures = sum(len(result.rows) for result in results if isinstance(result, UnitResult))
    return UnitOutcome(True, pictures, tuple(result.reason for result in results if isinstance(result, Failure)))


def _result(bench: Bench, unit: Unit) -> tuple[UnitResult | Failure, ...]:
    """The results of a unit, from its file if it is done: one, or if that fails one for each of its pictures alone.

    A picture in the run directory that is not the one that was judged is noted, and the unit done again."""
    for _ in range(2):
        result: tuple[UnitResult | Failure, ...] = bench.checkpoint.once(unit.name, lambda: _make(bench, unit))
        files = [item for one in result if isinstance(one, UnitResult) for item in one.files.items()]
        files = files if bench.world.first else []
        out = bench.exhibits.out
        changes = [name for name, digest in files if not (out / name).is_file() or sha256(out / name) != digest]
        if not bench.world.agree(bool(changes)):
            break
        if bench.world.first:
            print_notes([f"{changes[0]} is not as it was written; this part of the run is done again"])
        bench.checkpoint.drop(unit.name)
    return result


def _make(bench: Bench, unit: Unit) -> tuple[UnitResult | Failure, ...]:
    result = _try(bench, unit)
    if isinstance(result, UnitResult) or unit.stop - unit.start == 1:
        return (result,)
    if bench.study.places is not None:  # a clip has no picture to leave out
        names = bench.study.queries.names
        return tuple(Failure(at, names[at], result.reason) for at in range(unit.start, unit.stop))
    bench = bench.under(unit.name)
    singles = [Unit(at, at + 1, unit.number, alone=True) for at in range(unit.start, unit.stop)]
    return tuple(bench.checkpoint.once(single.name, partial(_try, bench, single)) for single in singles)


def _try(bench: Bench, unit: Unit) -> UnitResult | Failure:
    """The result of a unit. An error of a picture costs only that picture."""
    try:
        with memory_told():
            return attack_unit(bench, unit)
    except FAULTS as error:
        # A perturbation for all has no picture to leave out, and several processes may have met several faults.
        if bench.world.size > 1 or bench.study.perturbation.shared:
            raise
        keep_fault(bench, error, f"{unit.start:06d}")
        name, *rest = bench.study.queries.names[unit.start : unit.stop]
        suffix = f" and {len(rest)} more" if rest else ""
        print_notes([f"picture {name}{suffix} failed: {error}"])
        return Failure(unit.start, name, str(error))


def keep_fault(bench: Bench, error: Exception, name: str) -> None:
    """Store a view that is not finite, for a replay."""
    if isinstance(error, NotFinite):
        write(bench.exhibits.out, error, f"fault.{name}.safetensors")
