"""Which pictures and which views go through the encoder together.

Views are counted in *groups*, whose gradients tell how noisy the whole is, and which follow from their number alone,
so neither the size of a pass nor the number of processes shows in an estimate.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from attacks.encoders.engine.memory import out_of_memory

#: At least so many groups, where there are as many views; fewer than twice as many.
GROUPS = 4

Group = tuple[int, ...]  # indices of views
Part = TypeVar("Part")
Result = TypeVar("Result")


class Pass(NamedTuple):
    """One forward and backward pass: pictures `images`, each seen from the views of `groups`, all of one length."""

    images: range
    groups: tuple[Group, ...]

    @property
    def rows(self) -> int:
        return len(self.images) * len(self.groups) * len(self.groups[0])

    def halves(self) -> "tuple[Pass, Pass]":
        """Two smaller passes: fewer groups, or fewer views of each, or fewer pictures."""
        if len(self.groups) > 1:
            k = len(self.groups) // 2
            return self._replace(groups=self.groups[:k]), self._replace(groups=self.groups[k:])
        if len(self.groups[0]) > 1:
            k = len(self.groups[0]) // 2
            return self._replace(groups=(self.groups[0][:k],)), self._replace(groups=(self.groups[0][k:],))
        k = len(self.images) // 2
        return self._replace(images=self.images[:k]), self._replace(images=self.images[k:])


@lru_cache
def group_size(n: int) -> int:
    """How many of n views each group holds; the last group holds what is left."""
    return max(1, n // GROUPS)


def passes(images: range, views: Sequence[int], n: int, room: int) -> Iterator[Pass]:
    """The passes, at most `room` rows each, in which all `images` are seen from `views`, some of the n of a step."""
    size, room = group_size(n), max(1, room // len(images))
    groups: dict[int, list[int]] = {}
    for view in views:
        groups.setdefault(view // size, []).append(view)
    by_length: dict[int, list[Group]] = {}
    for group in groups.values():
        by_length.setdefault(len(group), []).append(tuple(group))
    for length, equal in by_length.items():
        if length <= room:
            for part_groups in split_evenly(equal, room // length):
                yield Pass(images, tuple(part_groups))
        else:
            yield from (Pass(images, (part,)) for group in equal for part in split_evenly(group, room))


def within_memory(run: Callable[[Pass], Result], wholes: Iterable[Pass]) -> Iterator[tuple[Pass, Result, int | None]]:
    """Run passes; where one does not fit into memory, its halves, and so on. Each with its result and the number of
    rows that may fit, where it is less than the whole pass. Raises MemoryError where a single view does not fit."""
    for full in wholes:
        rows = full.rows
        todo, room = [full], rows
        while todo:
            part = todo.pop()
            outcome = _attempt(run, part, part.rows == 1)
            if outcome is None:
                halves = part.halves()
                todo, room = [*todo, *reversed(halves)], min(room, max(half.rows for half in halves))
            else:
                yield part, outcome[0], room if room < rows else None


def in_passes(
    run: Callable[[Pass], Result], count: int, views: Sequence[int], chunk: int
) -> Iterator[tuple[Pass, Result]]:
    """`run` of `count` pictures, all seen from `views`, in passes of one group and at most `chunk` rows; where one
    does not fit into memory, it and the later ones are halved. Raises MemoryError where one view does not fit."""
    pictures = split_evenly(range(count), max(1, chunk // len(views))) if views and count else []
    todo = [Pass(block, (tuple(part),)) for block in pictures for part in split_evenly(views, chunk)][::-1]
    while todo:
        part = todo.pop()
        outcome = _attempt(run, part, part.rows == 1) if part.rows <= chunk else None
        if outcome is not None:
            yield part, outcome[0]
            continue
        halves = part.halves()
        if part.rows <= chunk:
            chunk = max(half.rows for half in halves)
        todo += reversed(halves)


def in_parts(run: Callable[[Tensor], Result], rows: Tensor, chunk: int) -> Iterator[tuple[Tensor, Result]]:
    """`run` of `rows`, at most `chunk` at a time, each part with its result; where one does not fit into memory, it
    and those after it are halved. Raises MemoryError where a single row does not fit."""
    start, chunk = 0, max(1, min(chunk, len(rows)))
    while start < len(rows):
        part = rows[start : start + chunk]
        outcome = _attempt(run, part, len(part) == 1)
        if outcome is None:
            chunk = len(part) // 2
        else:
            yield part, outcome[0]
            start += len(part)


@contextmanager
def memory_told() -> Iterator[None]:
    """Raise MemoryError, in one line, where memory runs out in what is done as a whole."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        reason = _shortage(error)
        if isinstance(error, MemoryError) and reason.startswith(RAN_OUT):
            raise
        raise MemoryError(f"{RAN_OUT}; {REMEDY} ({reason})") from error


#: The message where memory ran out, and what can be done.
RAN_OUT = "memory ran out"
REMEDY = (
    "make the pictures smaller (`data.size`) or fewer at a time (`evaluate.batch`), take a smaller encoder or "
    "engine.precision=bfloat16, or a device with more memory"
)
ONE_VIEW = f"{RAN_OUT} with one view of one picture in a pass, so `engine.chunk` cannot go lower: {REMEDY}"


def _attempt(run: Callable[[Part], Result], part: Part, smallest: bool) -> tuple[Result] | None:
    """`run(part)` in a tuple; None where memory runs out. Raises MemoryError where no smaller part is possible."""
    try:
        return (run(part),)
    except (RuntimeError, MemoryError) as error:
        reason = _shortage(error)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # here, because the error would keep the memory
    if smallest:
        raise MemoryError(f"{ONE_VIEW} ({reason})")
    return None


def _shortage(error: Exception) -> str:
    """The first line of an error of memory; any other error is raised again."""
    if not out_of_memory(error):  # torch.OutOfMemoryError is a RuntimeError, numpy's a MemoryError
        raise error
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


Several = TypeVar("Several", bound=Sequence[object])


def split_evenly(items: Several, limit: int) -> list[Several]:
    """Consecutive parts of at most `limit`, as few as there can be and as equal as there can be."""
    if len(items) <= limit:
        return [items]
    count = -(-len(items) // limit)
    edges = [round(i * len(items) / count) for i in range(count + 1)]
    return [items[a:b] for a, b in itertools.pairwise(edges)]  # type: ignore[misc]
