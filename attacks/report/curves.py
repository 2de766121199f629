"""Curves of a run, from what metrics.json and steps.csv hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from attacks.report.colours import LIGHT
from attacks.report.svg import drawn, legend, literal, plain
from attacks.report.words import ARMS, OBJECTIVES
from attacks.solvers.trace import Trace

#: So that arms differ without their colours, too.
MARKS = {"clean": "s", "noise": "v", "no_eot": "^", "one_view": "D", "eot": "o"}


def loss_curve(trace: Sequence[Trace], objective: str) -> Markup:
    """What the objective measures over encoder passes: each step's estimate, and the fixed bank's as a line."""
    figure, axis = _axis((7.6, 3.0))
    for arm in (arm for arm in ARMS if any(row.arm == arm for row in trace)):
        rows = [row for row in trace if row.arm == arm]
        rows = [row for row in rows if row.attack == rows[0].attack]  # of a suite, the first attack
        axis.plot([x.evals for x in rows], [x.objective for x in rows], color=LIGHT[arm], alpha=0.3, linewidth=1)
        compared = [x for previous, x in zip([None, *rows], rows, strict=False) if _new(previous, x)]
        own = "on the picture itself" if arm == "no_eot" else "on camera views"
        points = [x.evals for x in compared], [x.held_out or 0.0 for x in compared]
        axis.plot(*points, f"{MARKS[arm]}-", color=LIGHT[arm], markersize=3.5, label=f"{ARMS[arm]}, {own}")
    axis.set_xlabel("encoder passes")
    axis.set_ylabel(OBJECTIVES.get(objective, "mean loss (low is strong)"))
    plain(axis)
    legend(figure, axis, 2)
    description = (
        "Over encoder passes, what each attack measures in every step and on the fixed bank. Numbers: steps.csv."
    )
    return drawn(figure, "loss", "How the attacks went", description)


def drift_curve(drift: Mapping[str, Any], names: Mapping[str, str] = ARMS) -> Markup:
    """The cosine to the untouched picture over the layers, a line for each arm with its interval."""
    rows, places = drift["layers"], range(len(drift["layers"]))
    called = [literal(row["layer"]) for row in rows]
    figure, axis = _axis((7.6, 3.2 + 0.06 * max(0, max(map(len, called)) - 24)))  # long names need room below
    for arm in (arm for arm in ARMS if arm in rows[0]):
        _band(axis, places, [row[arm] for row in rows], arm, names[arm])
    for place in places:
        if rows[place]["layer"] == drift["flips"]:
            axis.axvline(place, color=LIGHT["ink"], linestyle=":", linewidth=1, label="flips here")
    axis.set_xticks(places, called, rotation=50, ha="right", rotation_mode="anchor")
    axis.set_ylabel("mean cosine, same view")
    plain(axis)
    legend(figure, axis)
    description = "A line for each arm over the layers, with its 95% interval. The table below has the numbers."
    return drawn(figure, "drift-curve", "Drift of the features, layer by layer", description)


def response_curve(curve: Mapping[str, Any], name: str, names: Mapping[str, str] = ARMS) -> Markup:
    """Success and cosine over one coordinate of the view, with bands and the trained range."""
    figure = Figure(figsize=(9.6, 2.9), layout="constrained")
    x, arms = curve["x"], [arm for arm in ARMS if arm in curve["arms"]]
    for axis, measure in zip(figure.subplots(1, 2), ("success", "cosine"), strict=True):
        if x.get("trained"):
            axis.axvspan(*x["trained"], color=LIGHT["line"], alpha=0.4, linewidth=0, label="range of the attack")
        for arm in arms:
            _band(axis, x["values"], curve["arms"][arm][measure], arm, names[arm])
        axis.set_xlabel(literal(x["name"]))
        axis.set_ylabel({"success": "attacker's success", "cosine": "cosine to the clean embedding"}[measure])
        plain(axis)
    figure.axes[0].set_ylim(-0.04, 1.04)
    legend(figure, figure.axes[0], 6)
    description = (
        f"Left the attacker's success, right the cosine, over {x['name']}: for each arm a line with its 95% interval."
    )
    return drawn(figure, name, f"Response to {x['name']}", description)


def spectrum_curve(spectrum: Mapping[str, Any], names: Mapping[str, str] = ARMS) -> Markup:
    """Where in frequency the perturbations lie."""
    figure, axis = _axis((7.6, 2.8))
    for arm in (arm for arm in ARMS if spectrum["arms"].get(arm)):
        values = spectrum["arms"][arm]
        axis.plot(spectrum["frequency"], values, f"{MARKS[arm]}-", color=LIGHT[arm], markersize=3, label=names[arm])
    axis.set_xlabel("frequency (cycles per pixel)")
    axis.set_yscale("log", nonpositive="mask")
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # powers of ten would be formulas
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_ylabel("share of the power")
    plain(axis)
    legend(figure, axis, 5)
    return drawn(
        figure, "spectrum", "Spectrum of the perturbation", "Its power over radial frequency, a line per arm."
    )


def _axis(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def _band(axis: Axes, x: Any, intervals: Sequence[Mapping[str, float]], arm: str, name: str) -> None:
    low, mean, high = ([each[key] for each in intervals] for key in ("low", "mean", "high"))
    axis.fill_between(x, low, high, color=LIGHT[arm], alpha=0.12, linewidth=0)
    axis.plot(x, mean, f"{MARKS[arm]}-", color=LIGHT[arm], markersize=3.5, linewidth=1.2, label=name)


def _new(previous_line: object, line: object) -> bool:
    previous, current = getattr(previous_line, "held_out", None), getattr(line, "held_out", None)
    return current is not None and current != previous
