"""Heat maps: a cell for each pair of coordinates, a panel for each arm."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attacks.evaluation.significance import LEVEL
from attacks.report.colours import LIGHT, shade
from attacks.report.svg import axis_label, to_svg
from attacks.report.words import ARMS, capital, interval_text, measure_name, p_value, short

#: Panels in a row.
PANELS = 2


def heat_map(content: Mapping[str, Any], measure: str, name: str, names: Mapping[str, str] = ARMS) -> Markup:
    """The map of one measure: the mean in each cell, its interval in the cell's title, a frame around the range of
    the attack, and a star where the success with EOT differs from that without."""
    x, y = content["x"], content["y"]
    arms = [arm for arm in ARMS if arm in content["arms"]]
    down = -(-len(arms) // PANELS)
    figure = Figure(figsize=(9.6, down * (0.75 + 0.34 * len(y["values"]))), layout="constrained")
    axes = figure.subplots(down, PANELS, squeeze=False).flatten()
    tips: dict[str, str] = {}
    for arm, axis in zip(arms, axes, strict=False):
        axis.set_title(names[arm], fontsize=9.5, color=LIGHT["ink"], loc="left")
        stars = content["p_holm"] if arm == "eot" and measure == "success" else None
        tips |= _cells(axis, content["arms"][arm][measure], (x, y), measure, arm, stars)
        _frame(axis, x, y, arm)
        axis.set_xticks(range(len(x["values"])), [short(value) for value in x["values"]])
        axis.set_yticks(range(len(y["values"])), [short(value) for value in y["values"]])
        axis.set_xlabel(axis_label(x["name"]), fontsize=8.5, color=LIGHT["ink"])
        axis.set_ylabel(axis_label(y["name"]), fontsize=8.5, color=LIGHT["ink"])
    for axis in axes[len(arms) :]:
        axis.set_axis_off()
    title = f"{measure_name(measure)} over {x['name']} and {y['name']}"
    description = f"A panel for each of {', '.join(names[arm] for arm in arms)}. The tables below have every number."
    return to_svg(figure, name, capital(title), description, tips)


def _cells(
    axis: Axes,
    rows: Sequence[Sequence[Mapping[str, float]]],
    axes: tuple[Mapping[str, Any], Mapping[str, Any]],
    measure: str,
    arm: str,
    stars: Sequence[Sequence[float | None]] | None,
) -> dict[str, str]:
    x, y = axes
    axis.set(xlim=(-0.5, len(x["values"]) - 0.5), ylim=(-0.5, len(y["values"]) - 0.5))
    axis.spines[:].set_visible(False)
    axis.tick_params(colors=LIGHT["dim"], labelsize=8, length=0)
    size, tips = 8 if len(x["values"]) <= 8 else 6.5, {}
    for j, row in enumerate(rows):
        for i, cell in enumerate(row):
            background, ink = shade(measure, cell["mean"])
            gid = f"{arm}-{j}-{i}"
            axis.add_patch(Rectangle((i - 0.485, j - 0.485), 0.97, 0.97, facecolor=background, linewidth=0, gid=gid))
            p = stars[j][i] if stars else None
            text = f"{cell['mean']:.2f}" + ("*" if p is not None and p < LEVEL else "")
            axis.text(i, j, text, ha="center", va="center", fontsize=size, color=ink, in_layout=False)
            at = f"{x['name']} {short(x['values'][i])}, {y['name']} {short(y['values'][j])}"
            tips[gid] = f"{at}: {interval_text(cell)}"
            tips[gid] += "" if p is None else f", against the attack without EOT p = {p_value(p)} after Holm"
    return tips


def _frame(axis: Axes, x: Mapping[str, Any], y: Mapping[str, Any], arm: str) -> None:
    """Draw a frame around the cells within the range of the attack, if there are any."""
    x_cells, y_cells = _inside(x), _inside(y)
    if x_cells and y_cells:
        frame = Rectangle(
            (x_cells[0] - 0.5, y_cells[0] - 0.5), len(x_cells), len(y_cells), fill=False, gid=f"trained-{arm}"
        )
        frame.set(gid=f"trained-{arm}", edgecolor=LIGHT["no_eot"], linewidth=1.8, clip_on=False)
        axis.add_patch(frame)


def _inside(axis: Mapping[str, Any]) -> list[int]:
    """The indices of the values within the trained range, which are consecutive because values are in order."""
    low, high = sorted(axis["trained"])
    slack = 1e-6 * (high - low)
    return [i for i, value in enumerate(axis["values"]) if low - slack <= value <= high + slack]
