"""Curves of a run, drawn from metrics.json and steps.csv, and of several runs."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from itertools import groupby
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from attacks.report.colours import LIGHT
from attacks.report.columns import Chart
from attacks.report.svg import axis_label, plain_text, svg_legend, to_svg
from attacks.report.words import ARMS, OBJECTIVES, capital, measure_name
from attacks.solvers.trace import Trace

#: Markers that tell the arms apart without colour.
MARKS = {"clean": "s", "noise": "v", "no_eot": "^", "one_view": "D", "eot": "o"}
#: The arms whose colours and markers encoders have; the lines of those after the last are dashed.
ENCODER_STYLES = ("eot", "no_eot", "one_view", "clean", "noise")
#: Names of so many characters have a line each in the legend.
LONG = 27
#: The most encoders of a drawing.
MAX_LINES = 10


def loss_curve(trace: Sequence[Trace], objective: str, arms: Mapping[str, Any]) -> Markup:
    """The mean loss on the views of the looks (the first ones of one bank, a few: see `attacks.solvers.selection`),
    over the encoder passes of the steps; a ring at the chosen step, and each step's estimate of the arms with
    views."""
    figure, axis = _axis((7.6, 3.6))
    for arm in reversed([arm for arm in ARMS if any(row.arm == arm for row in trace)]):
        rows = [row for row in trace if row.arm == arm]
        rows = [row for row in rows if row.attack == rows[0].attack]  # of a suite, the first attack
        if arm != "no_eot":  # its estimate is of the picture itself
            passes, estimates = [row.evals for row in rows], [row.objective for row in rows]
            axis.plot(passes, estimates, color=LIGHT[arm], alpha=0.3, linewidth=1)
        runs = groupby(rows, key=lambda row: row.held_out)  # a value of the bank is repeated until the next one
        points = [(next(run), value) for value, run in runs if value is not None]
        passes, losses = [row.evals for row, _ in points], [value for _, value in points]
        axis.plot(passes, losses, f"{MARKS[arm]}-", color=LIGHT[arm], markersize=3.5, label=ARMS[arm])
        if points and (step := arms[arm].get("step")):
            row, loss = min(points, key=lambda point: abs(point[0].step + 1 - step["median"]))
            axis.plot(row.evals, loss, "o", markersize=11, markerfacecolor="none", markeredgecolor=LIGHT[arm])
    axis.set_xscale("log")  # one attack may have chosen its iterate before another has compared any
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("encoder passes of the steps")
    anchor = OBJECTIVES.get(objective)
    axis.set_ylabel(f"mean cosine to the {anchor}" if anchor else "mean loss (low is strong)")
    plain_text(axis)
    svg_legend(figure, axis, 3)
    description = "The loss on a few common views, and each step's estimate. Numbers: steps.csv."
    return to_svg(figure, "loss", "Progress of the attacks", description)


def drift_curve(drift: Mapping[str, Any], names: Mapping[str, str] = ARMS) -> Markup:
    """The cosine to the untouched picture over the layers, a line with its interval for each arm."""
    rows = drift["layers"]
    places, layers = range(len(rows)), [row["layer"] for row in rows]
    labels = [axis_label(layer) for layer in layers]
    figure, axis = _axis((7.6, 3.2 + 0.06 * max(0, max(map(len, labels)) - 24)))  # long names need room below
    for arm in (arm for arm in reversed(ARMS) if arm in rows[0]):
        _band(axis, places, [row[arm] for row in rows], arm, names[arm])
    if drift["flips"] is not None:
        flip = layers.index(drift["flips"])
        axis.axvline(flip, color=LIGHT["ink"], linestyle=":", linewidth=1, label="flips here")
    axis.set_xticks(places, labels, rotation=50, ha="right", rotation_mode="anchor")
    axis.set_ylabel("mean cosine, same view")
    plain_text(axis)
    svg_legend(figure, axis)
    description = "A line for each arm over the layers, with its 95% interval. The table below has the numbers."
    return to_svg(figure, "drift-curve", "Drift of the features, layer by layer", description)


def radii_curve(content: Mapping[str, Any], norm: str) -> Markup:
    """The share of pictures that are broken, over the radius, with its interval."""
    unit, name = _radius_axis(norm)
    figure, axis = _axis((7.6, 3.0))
    places = [unit * point["eps"] for point in content["curve"]]
    _band(axis, places, [point["success"] for point in content["curve"]], "eot", ARMS["eot"])
    axis.axhline(0.5, color=LIGHT["ink"], linestyle=":", linewidth=1)
    axis.set_xlabel(name)
    axis.set_ylabel("share of pictures broken")
    axis.set_ylim(-0.04, 1.04)
    plain_text(axis)
    description = "The share of pictures whose smallest radius is at most eps, with its 95% interval."
    return to_svg(figure, "radii", "Success over the radius", description)


def response_curve(curve: Mapping[str, Any], name: str, names: Mapping[str, str] = ARMS) -> Markup:
    """Success and cosine over one coordinate of the view, with intervals and the range of the attack."""
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    x = curve["x"]
    labels = {"success": "attacker's success", "cosine": "cosine to the clean embedding"}
    for axis, (measure, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        axis.axvspan(*x["trained"], color=LIGHT["line"], alpha=0.4, linewidth=0, label="range of the attack")
        for arm in (arm for arm in reversed(ARMS) if arm in curve["arms"]):
            _band(axis, x["values"], curve["arms"][arm][measure], arm, names[arm])
        axis.set_xlabel(axis_label(x["name"]))
        axis.set_ylabel(label)
        plain_text(axis)
    figure.axes[0].set_ylim(-0.04, 1.04)
    svg_legend(figure, figure.axes[0])
    description = (
        f"Attacker's success (left) and cosine (right) over {x['name']}: a line with its 95% interval for each arm."
    )
    return to_svg(figure, name, f"Response to {x['name']}", description)


def encoder_curve(chart: Chart, name: str) -> Markup:
    """A line for each encoder with its intervals, side by side where they would cover each other."""
    width = "width of the views' ranges (1: those of the attack)"
    unit, x_label = (1, width) if chart.axis == "width" else _radius_axis(chart.axis)
    lines = chart.series[:MAX_LINES]
    places = sorted({unit * x for line in lines for x, _ in line.points})
    step = 0.012 * (places[-1] - places[0])
    figure, axis = _axis((4.4, 3))
    style: dict[str, Any] = {"markersize": 4.5, "linewidth": 1.3, "elinewidth": 1, "capsize": 2.5}
    for i, line in enumerate(lines):
        repeat, arm = divmod(line.style, len(ENCODER_STYLES))
        colour, marker = LIGHT[ENCODER_STYLES[arm]], MARKS[ENCODER_STYLES[arm]] + ("--" if repeat else "-")
        x = [unit * place + step * (i - (len(lines) - 1) / 2) for place, _ in line.points]
        values = [value._asdict() for _, value in line.points]
        means = [value["mean"] for value in values]
        axis.errorbar(x, means, _errors(values), fmt=marker, label=axis_label(line.name), color=colour, **style)
    axis.set_xticks(places, [f"{place:.3g}" for place in places])
    axis.set_xlabel(x_label)
    axis.set_ylabel(measure_name(chart.measure))
    if chart.measure == "success":
        axis.set_ylim(-0.04, 1.04)
    plain_text(axis)
    svg_legend(figure, axis, 2 if max(len(line.name) for line in lines) < LONG else 1)
    description = f"A line for each encoder, with 95% intervals, {chart.title}. The tables have the numbers."
    return to_svg(figure, name, f"{capital(measure_name(chart.measure))} {chart.title}", description)


class NotebookFigure(Figure):
    """A figure that a notebook shows without pyplot, whose import alone makes it show others."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def dots(values: Mapping[str, Mapping[str, float]], label: str) -> NotebookFigure:
    """A value with its 95 % interval for each name, the first at the top. `label` names the values."""
    figure = NotebookFigure(figsize=(7.6, 1.2 + 0.35 * len(values)), layout="constrained")
    axis = figure.subplots()
    for i, value in enumerate(values.values()):
        axis.errorbar(value["mean"], i, xerr=_errors([value]), fmt="o", color=LIGHT["eot"], capsize=2.5)
    axis.set_yticks(range(len(values)), [axis_label(name) for name in values])
    axis.invert_yaxis()
    axis.set_xlabel(label)
    if label == measure_name("success"):
        axis.set_xlim(-0.04, 1.04)
    plain_text(axis)
    return figure


def _errors(values: Sequence[Mapping[str, float]]) -> list[list[float]]:
    """The lengths of intervals below and above their means. A rate's interval holds its mean up to rounding."""
    below = [max(0.0, value["mean"] - value["low"]) for value in values]
    return [below, [max(0.0, value["high"] - value["mean"]) for value in values]]


def _radius_axis(norm: str) -> tuple[int, str]:
    """The unit of eps on an axis, and the label."""
    return (255, "eps in units of 1/255") if norm == "linf" else (1, "eps")


def _axis(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def _band(axis: Axes, x: Any, intervals: Sequence[Mapping[str, float]], arm: str, name: str) -> None:
    """A line of means with the band of their intervals."""
    low, mean, high = ([interval[key] for interval in intervals] for key in ("low", "mean", "high"))
    axis.fill_between(x, low, high, color=LIGHT[arm], alpha=0.12, linewidth=0)
    axis.plot(x, mean, f"{MARKS[arm]}-", color=LIGHT[arm], markersize=3.5, linewidth=1.2, label=name)
