"""Curves of a page as inline SVG: text stays text, colours follow the page, and ids are unique."""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import cycle, groupby, zip_longest
from statistics import fmean
from typing import Any

import matplotlib as mpl
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

from attacks.report.colours import LIGHT, page_colours
from attacks.report.settings import Curve
from attacks.report.words import ARMS, OBJECTIVES, measure_name
from attacks.solvers.loop import Trace

#: Markers that tell the arms apart without colour.
MARKS = {"clean": "s", "noise": "v", "no_eot": "^", "one_view": "D", "bare": "P", "eot": "o"}
#: The most characters of a label, and the most values of a key that stand below an axis.
LONGEST, MOST_TICKS = 60, 12


def to_svg(figure: Figure, name: str, title: str, desc: str) -> Markup:
    """The figure as an `<svg role="img">` with a title and a description; `name`: the unique prefix of its ids."""
    text, metadata = io.StringIO(), dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": "viewproof", "svg.fonttype": "none", "axes.unicode_minus": False}):
        figure.savefig(text, format="svg", metadata=metadata, transparent=True, bbox_inches="tight", pad_inches=0.04)
    svg = text.getvalue()
    svg = re.sub(r"(?s)<defs>\s*<style.*?</style>\s*</defs>", "", svg[svg.index("<svg") :])  # it is of the whole page
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "system-ui, sans-serif", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", re.sub(r'(xlink:)?href="#', f'href="#{name}-', svg))
    head, _, body = svg.partition(">")
    head = re.sub(r'\s(width|height|version|xmlns:xlink)="[^"]*"', "", head)
    texts = f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(desc)}</desc>'
    # Safe as it is: every string of a run was escaped above, or by matplotlib.
    return Markup(
        f'{head} role="img" aria-labelledby="{name}-title" aria-describedby="{name}-desc">{texts}{page_colours(body)}'
    )


def plain_text(axis: Axes) -> None:
    """Draw axes in the colours of the page, without a box."""
    axis.spines[["top", "right"]].set_visible(False)
    axis.spines[["left", "bottom"]].set_color(LIGHT["dim"])
    axis.tick_params(colors=LIGHT["dim"], labelsize=8)
    axis.xaxis.label.set(x=0, ha="left")  # where a narrow screen shows it
    for label in (axis.xaxis.label, axis.yaxis.label):
        label.set(color=LIGHT["ink"], fontsize=9)


def svg_legend(figure: Figure, axis: Axes, columns: int = 2) -> None:
    """Draw `axis` in the colours of the page, and its legend above the figure, where it covers nothing."""
    plain_text(axis)
    handles, labels = axis.get_legend_handles_labels()
    text = {"fontsize": 8.5, "labelcolor": LIGHT["ink"]}
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, borderaxespad=0, **text)


def axis_label(text: str) -> str:
    """A string of a run as a label: no longer than `LONGEST`, with dollars escaped, which begin a formula."""
    return (text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").replace("$", r"\$")


def loss_curve(trace: Sequence[Trace], objective: str, arms: Mapping[str, Any]) -> Markup:
    """The mean loss on the few views of the looks (see `attacks.solvers.selection`) over the encoder passes of the
    steps, with a ring at the chosen step; and, faint, each step's own estimate, of the arms with views."""
    figure, axis = _axis((7.6, 3.6))
    curves = {row.arm for row in trace} - {"bare"}  # whose loss is that of another encoder
    for arm in (arm for arm in reversed(ARMS) if arm in curves):
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
    anchor = OBJECTIVES.get(objective)
    label = f"mean cosine to the {anchor}" if anchor else "mean loss (low is strong)"
    axis.set(xlabel="encoder passes of the steps", ylabel=label)
    svg_legend(figure, axis, 3)
    description = "The loss on a few common views, and each step's estimate. Numbers: steps.csv."
    return to_svg(figure, "loss", "Progress of the attacks", description)


def drift_curve(drift: Mapping[str, Any], names: Mapping[str, str] = ARMS) -> Markup:
    """The cosine to the untouched picture over the layers, a line with its interval for each arm."""
    rows, layers = drift["layers"], [row["layer"] for row in drift["layers"]]
    places, labels = range(len(rows)), [*map(axis_label, layers)]
    figure, axis = _axis((7.6, 3.2 + 0.06 * max(0, max(map(len, labels)) - 24)))  # long names need room below
    for arm in (arm for arm in reversed(ARMS) if arm in rows[0]):
        _band(axis, places, [row[arm] for row in rows], arm, names[arm])
    if drift["flips"] is not None:
        place = layers.index(drift["flips"])
        axis.axvline(place, color=LIGHT["ink"], linestyle=":", linewidth=1, label="flips here")
    axis.set_xticks(places, labels, rotation=50, ha="right", rotation_mode="anchor")
    axis.set_ylabel("mean cosine, same view")
    svg_legend(figure, axis)
    description = "A line for each arm over the layers, with its 95% interval. The table below has the numbers."
    return to_svg(figure, "drift-curve", "Drift of the features, layer by layer", description)


def radii_curve(content: Mapping[str, Any], norm: str) -> Markup:
    """The share of pictures that are broken, over the radius, with its interval."""
    unit, name = (255, "eps in units of 1/255") if norm == "linf" else (1, "eps")
    figure, axis = _axis((7.6, 3.0))
    places = [unit * point["eps"] for point in content["curve"]]
    _band(axis, places, [point["success"] for point in content["curve"]], "eot", ARMS["eot"])
    axis.axhline(0.5, color=LIGHT["ink"], linestyle=":", linewidth=1)
    axis.set(xlabel=name, ylabel="share of pictures broken", ylim=(-0.04, 1.04))
    plain_text(axis)
    description = "The share of pictures whose smallest radius is at most eps, with its 95% interval."
    return to_svg(figure, "radii", "Success over the radius", description)


def clips_curve(clips: Sequence[Mapping[str, Any]]) -> Markup:
    """Success over the frames: the mean of the clips that have the frame, with their range."""
    figure, axis = _axis((7.6, 3.0))
    for arm in ("clean", "eot"):
        columns = zip_longest(*(clip[arm] for clip in clips))
        frames = [[value for value in column if value is not None] for column in columns]
        ends = [{"low": min(values), "mean": fmean(values), "high": max(values)} for values in frames]
        _band(axis, range(len(ends)), ends, arm, ARMS[arm])
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="frame", ylabel="attacker's success", ylim=(-0.04, 1.04))
    svg_legend(figure, axis)
    description = "The mean success over the clips at each frame, with the range of the clips."
    return to_svg(figure, "clips-curve", "Success over the frames", description)


def setting_curve(curve: Curve) -> Markup:
    """Success over one key of several runs, with intervals, and of the untouched pictures: of one encoder the arms,
    and success on the pictures that a shared perturbation was made from; of several a line for each."""
    figure, axis = _axis((7.6, 3.0))
    for (encoder, line), mark in zip(curve.lines.items(), cycle(MARKS)):
        places, runs = [place for place, _ in line], [run for _, run in line]
        one = len(curve.lines) == 1
        for arm in ("clean", "no_eot", "eot") if one else ("eot",):
            if all(run[f"{arm}_success"] for run in runs):
                intervals = [run[f"{arm}_success"]._asdict() for run in runs]
                _band(axis, places, intervals, arm if one else mark, ARMS[arm] if one else axis_label(encoder))
        other, name = ("fit_success", "the pictures that it was made from") if one else ("clean_success", None)
        values = [(place, run[other].mean) for place, run in zip(places, runs, strict=True) if run[other]]
        if values:
            axis.plot(*zip(*values, strict=True), color=LIGHT["ink" if one else mark], linestyle=":", label=name)
    if len(curve.ticks) <= MOST_TICKS:
        axis.set_xticks([*curve.ticks], [axis_label(tick) for tick in curve.ticks.values()])
    axis.set(xlabel=axis_label(curve.key), ylabel="success", ylim=(-0.04, 1.04))
    svg_legend(figure, axis, 3)
    description = "Success with its 95% interval over the key; of several encoders the dotted line is"
    return to_svg(figure, "setting", f"Success over {curve.key}", f"{description} without an attack.")


def response_curve(curve: Mapping[str, Any], name: str, names: Mapping[str, str] = ARMS) -> Markup:
    """Success and cosine over one coordinate of the view, with intervals and the range of the attack."""
    figure = Figure(figsize=(9.6, 3.2), layout="constrained")
    x = curve["x"]
    labels = {"success": "attacker's success", "cosine": "cosine to the clean embedding"}
    for axis, (measure, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        axis.axvspan(*x["trained"], color=LIGHT["line"], alpha=0.4, linewidth=0, label="range of the attack")
        for arm in (arm for arm in reversed(ARMS) if arm in curve["arms"]):
            _band(axis, x["values"], curve["arms"][arm][measure], arm, names[arm])
        axis.set(xlabel=axis_label(x["name"]), ylabel=label)
        plain_text(axis)
    figure.axes[0].set_ylim(-0.04, 1.04)
    svg_legend(figure, figure.axes[0])
    description = f"Attacker's success (left) and cosine (right) over {x['name']}: a line with its 95% interval for"
    return to_svg(figure, name, f"Response to {x['name']}", f"{description} each arm.")


class NotebookFigure(Figure):
    """A figure that a notebook shows without pyplot, whose import alone makes it show others."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def dots(values: Mapping[str, Mapping[str, float]], label: str) -> NotebookFigure:
    """A value with its 95 % interval for each name, the first at the top; `label` names the values."""
    figure = NotebookFigure(figsize=(7.6, 1.2 + 0.35 * len(values)), layout="constrained")
    axis = figure.subplots()
    for i, value in enumerate(values.values()):
        # A rate's interval holds its mean up to rounding.
        ends = [[max(0.0, value["mean"] - value["low"])], [max(0.0, value["high"] - value["mean"])]]
        axis.errorbar(value["mean"], i, xerr=ends, fmt="o", color=LIGHT["eot"], capsize=2.5)
    axis.set_yticks(range(len(values)), [axis_label(name) for name in values])
    axis.invert_yaxis()
    axis.set_xlabel(label)
    top = max(values, key=lambda name: values[name]["mean"])
    axis.set_title(axis_label(f"Highest: {top}, {values[top]['mean']:.2f}"), fontsize=10, loc="left")
    if label == measure_name("success"):
        axis.set_xlim(-0.04, 1.04)
    plain_text(axis)
    return figure


def _axis(size: tuple[float, float]) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def _band(axis: Axes, x: Any, intervals: Sequence[Mapping[str, float]], arm: str, name: str) -> None:
    low, mean, high = ([interval[key] for interval in intervals] for key in ("low", "mean", "high"))
    axis.fill_between(x, low, high, color=LIGHT[arm], alpha=0.12, linewidth=0)
    axis.plot(x, mean, f"{MARKS[arm]}-", color=LIGHT[arm], markersize=3.5, linewidth=1.2, label=name)
