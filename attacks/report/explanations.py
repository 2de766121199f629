"""One sheet for one picture: what the encoder looks at before the attack, and after each of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import attacks.report  # noqa: F401  # keeps matplotlib's font cache out of the log
from attacks.data.images import to_bytes
from attacks.evaluation.explain.explanation import Explanations
from attacks.evaluation.explain.gradients import Reach
from attacks.evaluation.explain.maps import CAM, GRADIENT, Maps
from attacks.runtime.files import atomic

COLUMNS = 5
#: The rows of the sheet, as far as they are there.
DRAWN = ("clean", "no_eot", "eot")
_NAMES = {"clean": "clean", "no_eot": "attack without EOT", "eot": "attack with EOT", "noise": "random noise"}
_COLOURS = {"no_eot": "#c05621", "eot": "#1a56a8"}
_GREY, _DEAD = "#718096", (220, 30, 30)
#: The brightest share of a gradient's pixels is drawn white: it has a few that outshine all others.
_BRIGHT = 0.99


class Drawn(NamedTuple):
    """What is on the sheet: of each arm its maps, the gradient over views, of each attack the power (F,) at each
    frequency (F,); and which picture."""

    arms: Mapping[str, Maps]
    reach: Reach | None
    frequency: Tensor
    power: Mapping[str, Tensor]
    picture: int


def draw_explanations(path: str | Path, explanations: Explanations, picture: int = 0) -> None:
    """Save the sheet of one picture as PNG: the clean picture and the attacks, where there are any."""
    some = [arm for arm in explanations.arms if arm in DRAWN or not set(DRAWN) & set(explanations.power)]
    maps = {arm: explanations.arms[arm] for arm in some}
    power = {arm: power[picture] for arm, power in explanations.power.items() if arm in some}
    draw(path, Drawn(maps, explanations.reach, explanations.frequency, power, picture))


def draw(path: str | Path, content: Drawn) -> None:
    """Save the sheet of one picture, a row for each arm, as PNG. In the clean row, where there is no perturbation,
    the gradient over the bank's views stands in its place, dead zones red, and beside it all spectra."""
    figure = Figure(figsize=(2.1 * COLUMNS + 0.5, 2.35 * len(content.arms)), dpi=110, layout="constrained")
    axes = figure.subplots(len(content.arms), COLUMNS, squeeze=False)
    for row, (arm, maps) in zip(axes, content.arms.items(), strict=True):
        likeness = float(maps.likeness[content.picture])
        _show(row[0], to_bytes(maps.pictures[content.picture]), f"likeness {likeness:.2f}")
        row[0].set_ylabel(_NAMES.get(arm, arm), fontsize=9)
        _map(row[1], maps, content.picture, CAM)
        _map(row[2], maps, content.picture, GRADIENT)
        if arm == "clean":
            _reach(row[3], content)
        else:
            _perturbation(row[3], (maps.pictures - content.arms["clean"].pictures)[content.picture])
        _spectra(row[4], content, arm)
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _map(axis: Axes, maps: Maps, picture: int, order: str) -> None:
    """A map, Grad-CAM over the grey picture, with its deletion and insertion areas."""
    values = maps.cam if order == CAM else maps.gradient
    title = "Grad-CAM" if order == CAM else "input gradient"
    if values is None:
        _none(axis, f"{title}:\nnot to be had")
        return
    deletion, insertion = maps.areas(order)[picture].tolist()
    title_with_areas = f"{title}: del. {deletion:.2f}, ins. {insertion:.2f}"
    weights = values[picture].numpy()
    if order == GRADIENT:
        _show(axis, _bright(weights), title_with_areas)
        return
    grey = to_bytes(maps.pictures[picture]).mean(2, keepdims=True) / 255
    colours = colormaps["viridis"](weights / max(float(weights.max()), 1e-30))[..., :3]
    _show(axis, 0.45 * grey + 0.55 * colours, title_with_areas if weights.any() else f"{title}: nothing positive")


def _reach(axis: Axes, content: Drawn) -> None:
    if content.reach is None:
        _none(axis, "gradient over views:\nnot to be had")
        return
    weights = content.reach.sensitivity[content.picture].numpy()
    image = (255 * _bright(weights)).astype(np.uint8)
    image[weights == 0] = _DEAD
    _show(axis, image, f"gradient over views: {float(content.reach.coverage[content.picture]):.0%} reached")


def _perturbation(axis: Axes, delta: Tensor) -> None:
    """A perturbation about mid-grey, so many times larger that it can be seen."""
    most = float(delta.abs().max())
    times = max(1, int(0.5 / most)) if most else 1
    _show(axis, to_bytes(0.5 + times * delta), f"perturbation x{times}")


def _spectra(axis: Axes, content: Drawn, arm: str) -> None:
    """The share of the perturbation's power over frequency, of one arm, or in the clean row of all."""
    floor = 1.0
    for other, power in content.power.items():
        shown = power / power.sum().clamp(min=1e-300)
        floor = min([floor, *shown[shown > 0].tolist()])
        if arm in ("clean", other):
            colour = _COLOURS.get(other, _GREY)
            axis.plot(
                content.frequency, shown.clamp(min=1e-12), color=colour, linewidth=1.2, label=_NAMES.get(other, other)
            )
    axis.set(xlim=(0, 0.5), yscale="log", ylim=(floor / 1.5, 1))  # all rows alike
    axis.set_title("perturbation's power", fontsize=8)
    axis.set_xlabel("cycles per pixel", fontsize=7)
    axis.tick_params(labelsize=6)
    axis.set_box_aspect(1)
    axis.spines[["top", "right"]].set_visible(False)
    if arm == "clean" and content.power:
        axis.legend(frameon=False, fontsize=6)


def _bright(weights: np.ndarray) -> np.ndarray:
    """(H,W) -> (H,W,3) in [0,1], in grey; the square root shows what is weak as well."""
    top = max(float(np.quantile(weights, _BRIGHT)), 1e-30)
    return np.repeat(np.sqrt(np.clip(weights / top, 0, 1))[..., None], 3, axis=2)


def _show(axis: Axes, image: np.ndarray | Tensor, title: str) -> None:
    axis.imshow(image)
    axis.set_title(title, fontsize=8)
    axis.set(xticks=[], yticks=[])


def _none(axis: Axes, text: str) -> None:
    axis.text(0.5, 0.5, text, ha="center", va="center", fontsize=8, color=_GREY)
    axis.set_axis_off()
