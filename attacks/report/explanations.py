"""The sheet of explanations: the maps of one picture before and after each attack."""

from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import attacks.report  # noqa: F401  # keeps matplotlib's font cache out of the log
from attacks.data.images import to_bytes
from attacks.evaluation.explain.explanation import Explanations, Maps
from attacks.evaluation.explain.gradients import Reach
from attacks.runtime.files import atomic

COLUMNS = 4
#: The rows of the sheet, where the arms exist.
NAMES = {"clean": "clean", "no_eot": "attack without EOT", "eot": "attack with EOT"}
_GREY, _DEAD = "#718096", (220, 30, 30)
#: The quantile of a gradient that is drawn white: a few pixels are far larger than all others.
_BRIGHT = 0.99


def draw_explanations(path: str | Path, explanations: Explanations, picture: int = 0) -> None:
    """Save the sheet of one picture as PNG, with a row for the clean picture and for each attack.

    The clean row has no perturbation. It shows the gradient over the bank's views, dead zones in red.
    """
    arms = [arm for arm in explanations.arms if arm in NAMES]
    figure = Figure(figsize=(2.1 * COLUMNS + 0.5, 2.35 * len(arms)), dpi=110, layout="constrained")
    for row, arm in zip(figure.subplots(len(arms), COLUMNS, squeeze=False), arms, strict=True):
        maps = explanations.arms[arm]
        _show(row[0], to_bytes(maps.pictures[picture]), f"likeness {float(maps.likeness[picture]):.2f}")
        row[0].set_ylabel(NAMES[arm], fontsize=9)
        _map(row[1], maps, picture, "Grad-CAM")
        _map(row[2], maps, picture, "input gradient")
        if arm == "clean":
            _reach(row[3], explanations.reach, picture)
        else:
            _perturbation(row[3], (maps.pictures - explanations.arms["clean"].pictures)[picture])
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _map(axis: Axes, maps: Maps, picture: int, title: str) -> None:
    """A map; Grad-CAM is laid over the grey picture."""
    values = maps.cam if title == "Grad-CAM" else maps.gradient
    if values is None:
        _draw_text(axis, f"{title}:\nnot available")
        return
    weights = values[picture].numpy()
    if values is maps.gradient:
        _show(axis, _bright(weights), title)
        return
    grey = to_bytes(maps.pictures[picture]).mean(2, keepdims=True) / 255
    colours = colormaps["viridis"](weights / max(float(weights.max()), 1e-30))[..., :3]
    _show(axis, 0.45 * grey + 0.55 * colours, title if weights.any() else f"{title}: nothing positive")


def _reach(axis: Axes, reach: Reach | None, picture: int) -> None:
    if reach is None:
        _draw_text(axis, "gradient over views:\nnot available")
        return
    weights = reach.sensitivity[picture].numpy()
    image = (255 * _bright(weights)).astype(np.uint8)
    image[weights == 0] = _DEAD
    _show(axis, image, f"gradient over views: {float(reach.coverage[picture]):.0%} reached")


def _perturbation(axis: Axes, delta: Tensor) -> None:
    """A perturbation on mid-grey, amplified as far as 8 bits allow."""
    peak = float(delta.abs().max())
    times = max(1, int(0.5 / peak)) if peak else 1
    _show(axis, to_bytes(0.5 + times * delta), f"perturbation x{times}")


def _bright(weights: np.ndarray) -> np.ndarray:
    """(H,W) -> (H,W,3) in [0,1], in grey; the square root makes small values visible."""
    top = max(float(np.quantile(weights, _BRIGHT)), 1e-30)
    return np.repeat(np.sqrt(np.clip(weights / top, 0, 1))[..., None], 3, axis=2)


def _show(axis: Axes, image: np.ndarray | Tensor, title: str) -> None:
    axis.imshow(image)
    axis.set_title(title, fontsize=8)
    axis.set(xticks=[], yticks=[])


def _draw_text(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, ha="center", va="center", fontsize=8, color=_GREY)
    axis.set_axis_off()
