"""An attacked picture as people see it, beside what each resizer makes of it."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import attacks.report  # noqa: F401  # keeps matplotlib's font cache out of the log
from attacks.evaluation.deployment import Example
from attacks.report.colours import LIGHT
from attacks.resizers.platforms import OPEN
from attacks.runtime.files import atomic

#: The frame of a picture with which the attack succeeds.
SUCCESS = "#c0392b"


def draw_deployment(path: str | Path, example: Example) -> None:
    """Save as PNG: the picture at the left; above the resizers that read few of its pixels, below the others. A red
    frame: the attack succeeds."""
    names = [name for name in example.resized if name != "none"]
    rows = [[name for name in names if name in OPEN], [name for name in names if name not in OPEN]]
    columns = max(map(len, rows))
    figure = Figure(figsize=(4.4 + 1.62 * columns, 4.3), dpi=110, layout="constrained")
    grid: Any = figure.add_gridspec(2, columns + 1, width_ratios=(2.4, *[1.0] * columns))
    _show(figure.add_subplot(grid[:, 0]), example.viewed, "the file, as people see it", False)
    for row, row_names in enumerate(rows):
        for column, name in enumerate(row_names):
            axis = figure.add_subplot(grid[row, column + 1])
            _show(axis, example.resized[name], name.replace("antialiased ", "antialiased\n"), example.success[name])
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _show(axis: Axes, picture: Tensor, title: str, success: bool) -> None:
    axis.imshow(picture.numpy())
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=9, color=SUCCESS if success else LIGHT["ink"])
    for spine in axis.spines.values():
        spine.set(visible=success, color=SUCCESS, linewidth=3)
