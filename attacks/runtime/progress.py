"""Progress for people: a bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from types import TracebackType

from tqdm import tqdm

#: Without a terminal: a line at every tenth of the way.
LINES = 10


class Progress:
    """A named count of steps; a context manager. One that is not `shown` is silent."""

    def __init__(self, name: str, total: int, *, shown: bool = True) -> None:
        self.shown = shown
        self.name, self.total, self.done, self.began = name, total, 0, time.perf_counter()
        columns, lines = shutil.get_terminal_size()  # 80x24 for a terminal without a size: tqdm would print nothing
        shape = {"ncols": columns, "nrows": lines}
        self.bar = (
            tqdm(total=total, desc=f"{name:<14}", file=sys.stderr, **shape) if shown and sys.stderr.isatty() else None
        )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    def skip(self, steps: int) -> None:
        """So many steps were done before."""
        self.done += steps
        if self.bar is not None:
            self.bar.update(steps)

    def step(self, **figures: float | None) -> None:
        """One step more, with its figures; a figure that is None or NaN is left out."""
        self.done += 1
        words = {name.replace("_", " "): f"{v:.3f}" for name, v in figures.items() if v is not None and v == v}
        if self.bar is not None:
            self.bar.set_postfix(words, refresh=False)
            self.bar.update()
        elif self.shown and self.done * LINES // self.total > (self.done - 1) * LINES // self.total:
            seconds = time.perf_counter() - self.began
            said = "".join(f"  {name} {value}" for name, value in words.items())
            print(f"{self.name}: {self.done}/{self.total}  {seconds:.1f} s{said}", file=sys.stderr, flush=True)
