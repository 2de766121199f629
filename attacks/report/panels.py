"""Pictures in rows with titles, saved as PNG: explanations of an encoder, and what resizers make of a picture."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

import attacks.report  # noqa: F401  # keeps matplotlib's font cache out of the log
from attacks.data.images import to_bytes
from attacks.evaluation import deployment
from attacks.evaluation.certificate import certified_figures
from attacks.evaluation.clusters import Row as TableRow
from attacks.evaluation.explanation import Explanations, Maps, Reach
from attacks.report.colours import LIGHT
from attacks.report.figures import plain_text
from attacks.resizers.openness import Row, VisibleExample
from attacks.resizers.pipeline import OPEN
from attacks.runtime.files import atomic

#: The rows of the sheet of explanations, where the arms exist.
NAMES = {"clean": "clean", "no_eot": "attack without EOT", "eot": "attack with EOT"}
#: Backgrounds of the verdicts.
COLOURS = {"open": "#f2b8a0", "hard": "#fff1cc", "closed": "#cfe8d8"}
#: Kernels whose pictures are shown, in the largest ratio.
PICTURED_KERNELS = ("cv2_nearest", "cv2_linear", "cv2_cubic", "cv2_area", "pil_bicubic")
#: The frame of a picture with which the attack succeeds.
SUCCESS = "#c0392b"


def draw_explanations(path: str | Path, explanations: Explanations) -> None:
    """Save the sheet of the first picture as PNG, with a row for the clean picture and for each attack. The clean row
    has, in the place of a perturbation, the gradient over the bank's views, with dead zones in red."""
    arms = [arm for arm in explanations.arms if arm in NAMES]
    figure = Figure(figsize=(8.9, 2.35 * len(arms)), dpi=110, layout="constrained")
    for row, arm in zip(figure.subplots(len(arms), 4, squeeze=False), arms, strict=True):
        maps = explanations.arms[arm]
        _show(row[0], to_bytes(maps.pictures[0]), f"likeness {float(maps.likeness[0]):.2f}")
        row[0].set_ylabel(NAMES[arm], fontsize=9)
        _map(row[1], maps, "Grad-CAM")
        _map(row[2], maps, "input gradient")
        if arm == "clean":
            _reach(row[3], explanations.reach)
        else:
            delta = (maps.pictures - explanations.arms["clean"].pictures)[0]
            peak = float(delta.abs().max())
            times = max(1, int(0.5 / peak)) if peak else 1  # as far as 8 bits allow
            _show(row[3], to_bytes(0.5 + times * delta), f"perturbation x{times}")
    _save(figure, path)


def _save(figure: Figure, path: str | Path) -> None:
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _map(axis: Axes, maps: Maps, title: str) -> None:
    values = maps.cam if title == "Grad-CAM" else maps.gradient
    if values is None:
        _show(axis, None, title)
        return
    weights = values[0].numpy()
    if values is maps.gradient:
        _show(axis, _bright(weights), title)
        return
    grey = to_bytes(maps.pictures[0]).mean(2, keepdims=True) / 255
    colours = colormaps["viridis"](weights / max(float(weights.max()), 1e-30))[..., :3]
    _show(axis, 0.45 * grey + 0.55 * colours, title if weights.any() else f"{title}: nothing positive")


def _reach(axis: Axes, reach: Reach | None) -> None:
    if reach is None:
        _show(axis, None, "gradient over views")
        return
    weights = reach.sensitivity[0].numpy()
    image = (255 * _bright(weights)).astype(np.uint8)
    image[weights == 0] = (220, 30, 30)  # a dead zone
    _show(axis, image, f"gradient over views: {float(reach.coverage[0]):.0%} reached")


def _bright(weights: np.ndarray) -> np.ndarray:
    """(H,W) -> (H,W,3) in [0,1], in grey; a few pixels, far larger than all others, are white."""
    top = max(float(np.quantile(weights, 0.99)), 1e-30)
    return np.repeat(np.sqrt(np.clip(weights / top, 0, 1))[..., None], 3, axis=2)


def _show(axis: Axes, image: np.ndarray | None, title: str) -> None:
    if image is None:
        axis.text(0.5, 0.5, f"{title}:\nnot available", ha="center", va="center", fontsize=8, color="#718096")
        axis.set_axis_off()
        return
    axis.imshow(image)
    axis.set_title(title, fontsize=8)
    axis.set(xticks=[], yticks=[])


def draw_table(rows: Sequence[Row]) -> Figure:
    """Shares seen as a map, kernels by ratios, coloured by verdict; below it pictures at the largest ratio."""
    figure = Figure(figsize=(9.6, 12.6), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(6.0, 6.6))
    above, below = parts
    kernels, ratios = (list(dict.fromkeys(getattr(row, key) for row in rows)) for key in ("kernel", "ratio"))
    axis = above.subplots()
    axis.set(xlim=(0, len(ratios)), ylim=(len(kernels), 0))
    for row in rows:
        x, y = ratios.index(row.ratio), kernels.index(row.kernel)
        verdict = row.figures.verdict
        axis.fill_between([x, x + 1], y, y + 1, color=COLOURS[verdict], edgecolor="white")
        words = f"{100 * row.figures.seen:.2g} %  {verdict}"
        axis.text(x + 0.5, y + 0.5, words, ha="center", va="center", fontsize=9, color=LIGHT["ink"])
    axis.set_xticks(np.arange(len(ratios)) + 0.5, [f"{ratio:g}" for ratio in ratios])
    axis.set_yticks(np.arange(len(kernels)) + 0.5, kernels)
    axis.tick_params(length=0, labelsize=9)
    axis.spines[:].set_visible(False)
    axis.xaxis.tick_top()
    axis.set_title("How much of the target a viewer sees, by source pixels per pixel", fontsize=11)
    largest = max(ratios)
    examples = {row.kernel: row.example for row in rows if row.ratio == largest and row.kernel in PICTURED_KERNELS}
    _strips(below, examples, f"{largest:g} source pixels per pixel")
    return figure


def draw_example(example: VisibleExample, title: str) -> Figure:
    """An attacked picture, an antialiased view of it, and what the encoder gets."""
    figure = Figure(figsize=(11.0, 4.0), layout="constrained")
    _strips(figure, {"": example}, title)
    return figure


def _strips(figure: Figure | SubFigure, examples: Mapping[str, VisibleExample], title: str) -> None:
    """A column of three pictures for each example; a row, if there is one."""
    figure.suptitle(f"The attacked file, and what is seen of it ({title})", fontsize=11, color=LIGHT["ink"])
    kinds = {"attacked": "the file", "viewed": "a viewer sees", "resized": "the encoder sees"}
    axes = figure.subplots(1, 3, squeeze=False).T if len(examples) == 1 else figure.subplots(3, len(examples))
    for column, (name, example) in enumerate(examples.items()):
        axes[0, column].set_title(name, fontsize=10)
        for axis, (kind, words) in zip(axes[:, column], kinds.items(), strict=True):
            axis.imshow(getattr(example, kind).squeeze(), cmap="gray", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            if len(examples) == 1:
                axis.set_title(words, fontsize=10)
            elif column == 0:
                axis.set_ylabel(words, fontsize=10)


def draw_deployment(path: str | Path, example: deployment.Example) -> None:
    """Save as PNG: the file at the left, as people see it; above, the file after resizers that read few of its
    pixels, and below, after the others. A red frame: the attack succeeds."""
    names = [name for name in example.resized if name != "none"]
    rows = [[name for name in names if name in OPEN], [name for name in names if name not in OPEN]]
    columns = max(map(len, rows))
    figure = Figure(figsize=(4.4 + 1.62 * columns, 4.3), dpi=110, layout="constrained")
    grid: Any = figure.add_gridspec(2, columns + 1, width_ratios=(2.4, *[1.0] * columns))
    _frame(figure.add_subplot(grid[:, 0]), example.viewed, "the file, as people see it", False)
    for row, row_names in enumerate(rows):
        for column, name in enumerate(row_names):
            axis = figure.add_subplot(grid[row, column + 1])
            _frame(axis, example.resized[name], name.replace("antialiased ", "antialiased\n"), example.success[name])
    _save(figure, path)


def _frame(axis: Axes, picture: Tensor, title: str, success: bool) -> None:
    axis.imshow(picture.numpy())
    axis.set(xticks=[], yticks=[])
    axis.set_title(title, fontsize=9, color=SUCCESS if success else LIGHT["ink"])
    for spine in axis.spines.values():
        spine.set(visible=success, color=SUCCESS, linewidth=3)


def draw_certificate(path: str | Path, rows: Sequence[TableRow], title: str) -> None:
    """Save as PNG, by radius, what is certified and what was found: similarity, and share of pictures still right."""
    figure = Figure(figsize=(9.6, 4.2), dpi=150, layout="constrained")
    figures, axes = certified_figures(rows), figure.subplots(1, 2, sharey=True)
    labels = ("similarity, median picture", "share of pictures whose nearest row is right")
    ends = (("clean", "-o", "certified: at least"), ("eot", "--s", "found by the attack"))
    for k, (axis, label) in enumerate(zip(axes, labels, strict=True)):
        axis.set(ylabel=label, ylim=(0, 1.02), xlabel="L2 length of the change, pixels in [0,1]")
        plain_text(axis)
        for i, (arm, style, words) in enumerate(ends, 2 * k):
            mean, low, high = np.array([values[i][:3] for values in figures.values()]).T
            spread = [mean - low, high - mean]
            axis.errorbar([*figures], mean, spread, fmt=style, color=LIGHT[arm], label=words, capsize=3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(title, fontsize=10, wrap=True, color=LIGHT["ink"])
    _save(figure, path)
