"""Progress of a run: a bar in a terminal, plain lines elsewhere."""

import shutil
import sys
import time

from tqdm import tqdm

#: Lines per task without a terminal.
LINES = 10


class Progress:
    """A named count of steps; a context manager. It prints nothing unless it is `visible`."""

    #: Whether this process shows any.
    enabled = True

    def __init__(self, name: str, total: int, *, visible: bool = True) -> None:
        visible = self.visible = visible and self.enabled
        self.name, self.total, self.count, self.start = name, total, 0, time.perf_counter()
        columns, lines = shutil.get_terminal_size()  # 80x24 where a terminal has no size; tqdm would be silent
        shape = {"ncols": columns, "nrows": lines}
        terminal = visible and sys.stderr.isatty()
        self.bar = tqdm(total=total, desc=f"{name:<14}", file=sys.stderr, **shape) if terminal else None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def skip(self, steps: int) -> None:
        """Count steps of an earlier process."""
        self.count += steps
        if self.bar is not None:
            self.bar.update(steps)

    def step(self, **figures: float | None) -> None:
        """One step, with figures; those that are None or NaN are left out."""
        self.count += 1
        texts = {name.replace("_", " "): f"{v:.3f}" for name, v in figures.items() if v is not None and v == v}
        if self.bar is not None:
            self.bar.set_postfix(texts, refresh=False)
            self.bar.update()
        elif self.visible and self.count * LINES // self.total > (self.count - 1) * LINES // self.total:
            seconds = time.perf_counter() - self.start
            suffix = "".join(f"  {name} {value}" for name, value in texts.items())
            print(f"{self.name}: {self.count}/{self.total}  {seconds:.1f} s{suffix}", file=sys.stderr, flush=True)
