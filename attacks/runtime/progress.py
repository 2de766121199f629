"""Progress of a run: one bar in a terminal, a few plain lines elsewhere."""

import shutil
import sys
import time
from contextlib import AbstractContextManager

from tqdm import tqdm

#: Lines of a run without a terminal.
LINES = 10


class Progress(AbstractContextManager["Progress"]):
    """How much of a whole is done, and the name of the part at work; a context manager. It prints nothing unless it
    is `visible`. `old_work`, done before, says nothing of the time that is left."""

    def __init__(self, name: str, total: float, *, visible: bool = True) -> None:
        self.name, self.total, self.visible, self.size, self.start = name, total, visible, 1.0, time.perf_counter()
        self.count = self.old_work = self.closed_work = self.end = 0.0
        columns, lines = shutil.get_terminal_size()  # 80x24 where a terminal has no size; tqdm would be silent
        shape = {"ncols": columns, "nrows": lines, "bar_format": "{desc}{percentage:3.0f} %|{bar}| {unit}"}
        self.bar = tqdm(total=total, file=sys.stderr, disable=not (visible and sys.stderr.isatty()), **shape)

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._move(self.total)
        self.bar.close()

    def part(self, name: str, share: float = 0.0, steps: int = 1) -> None:
        """Begin a part of so many `steps`, which has a `share` of the total; the one before has ended."""
        self.name, self.size = name, share / max(1, steps)
        self._move(self.end)
        self.end = self.count + share

    def skip(self, steps: int) -> None:
        """Count steps of an earlier process."""
        self.old_work += steps * self.size
        self._move(self.count + steps * self.size)

    def step(self, **figures: float | None) -> None:
        """One step, with figures; those that are None or NaN are left out."""
        texts = [f"  {name.replace('_', ' ')} {v:.3f}" for name, v in figures.items() if v is not None and v == v]
        self._move(self.count + self.size, "".join(texts))

    def close(self, share: float, *, is_old: bool = False) -> None:
        """A share of the total is done, of which the steps since the last call are a part; or it was done before."""
        self.closed_work, self.old_work = self.closed_work + share, self.old_work + share * is_old
        self.end = self.closed_work
        self._move(self.closed_work)

    def _move(self, count: float, figures: str = "") -> None:
        """Set what is done, and print it with the time that is left."""
        old_count, self.count = self.count, min(count, self.total)
        seconds, work = time.perf_counter() - self.start, self.count - self.old_work
        times = tqdm.format_interval(seconds)
        if work > 0:
            times += f", {tqdm.format_interval(seconds * (self.total - self.count) / work)} left"
        self.bar.set_description_str(f"{self.name:<16}", refresh=False)
        self.bar.unit = times + figures
        self.bar.update(self.count - self.bar.n)
        if self.visible and self.bar.disable and self.count * LINES // self.total > old_count * LINES // self.total:
            share = 100 * self.count / self.total
            print(f"{self.name}: {share:.0f} %  {times}{figures}", file=sys.stderr, flush=True)


SILENT = Progress("", 1, visible=False)
