"""The section of a page that ranks encoders, with its curves."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure

from attacks.report.colours import LIGHT
from attacks.report.environment import environment
from attacks.report.index import place
from attacks.report.ranking import Board, Chart
from attacks.report.svg import axis_label, legend, plain, to_svg
from attacks.report.words import capitalised, measure_name

#: The colours and markers of the lines; those after the last are dashed.
LINES = tuple(zip(("eot", "no_eot", "one_view", "clean", "noise"), "o^Dsv", strict=True))
#: Names of so many characters have a line each in the legend.
LONG = 27
#: The most lines of a drawing, and the most drawings of a page.
MOST_LINES, MOST_CHARTS = 10, 12


class NotebookFigure(Figure):
    """A figure that a notebook shows without pyplot, whose import alone makes it show others."""

    def _repr_png_(self) -> bytes:
        file = BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


def section(tables: Sequence[Board], charts: Sequence[Chart], others: Sequence[str], folder: Path) -> Markup:
    """Tables, curves and lines on what cannot be compared, for a page in `folder`, which links reports below it."""
    links = {each.name: place(folder, each.row.directory)[1] for table in tables for each in table.standings}
    drawn = [(each, drawing(each, f"encoders-{i}")) for i, each in enumerate(charts[:MOST_CHARTS])]
    page = environment().get_template("sections/ranking.html")
    # Safe as it is: the template escapes every string.
    return Markup(page.render(tables=tables, links=links, drawn=drawn, left=len(charts) - len(drawn), others=others))


def drawing(chart: Chart, name: str) -> Markup:
    """The chart as inline SVG; `name` is the prefix of its ids."""
    description = f"A line for each encoder, with 95% intervals, {chart.title}. The tables have the numbers."
    return to_svg(figure(chart), name, f"{capitalised(measure_name(chart.measure))} {chart.title}", description)


def figure(chart: Chart) -> Figure:
    """A line for each encoder with its intervals, side by side where they would cover each other."""
    unit = 255 if chart.over == "linf" else 1
    lines = chart.series[:MOST_LINES]
    places = sorted({unit * x for line in lines for x, _ in line.points})
    step = 0.012 * (places[-1] - places[0])
    result = Figure(figsize=(4.4, 3), layout="constrained")
    axis = result.subplots()
    for i, line in enumerate(lines):
        colour, marker = LINES[line.style % len(LINES)]
        x = [unit * place + step * (i - (len(lines) - 1) / 2) for place, _ in line.points]
        means = [value.mean for _, value in line.points]
        # A rate's interval always holds its mean, up to rounding.
        errors = [
            [max(0.0, v.mean - v.low) for _, v in line.points],
            [max(0.0, v.high - v.mean) for _, v in line.points],
        ]
        dashes = "-" if line.style < len(LINES) else "--"
        text = axis_label(line.name)
        style: dict[str, Any] = {
            "color": LIGHT[colour],
            "markersize": 4.5,
            "linewidth": 1.3,
            "elinewidth": 1,
            "capsize": 2.5,
        }
        axis.errorbar(x, means, errors, fmt=f"{marker}{dashes}", label=text, **style)
    axis.set_xticks(places, [f"{place:.3g}" for place in places])
    axis.set_xlabel(_x_label(chart.over))
    axis.set_ylabel(measure_name(chart.measure))
    if chart.measure == "success":
        axis.set_ylim(-0.04, 1.04)
    plain(axis)
    legend(result, axis, 2 if max(len(line.name) for line in lines) < LONG else 1)
    return result


def dots(values: Mapping[str, Mapping[str, float]], label: str) -> NotebookFigure:
    """A value with its 95 % interval for each name, the first at the top. `label` names the values."""
    names = list(values)
    result = NotebookFigure(figsize=(7.6, 1.2 + 0.35 * len(names)), layout="constrained")
    axis = result.subplots()
    for i, each in enumerate(values.values()):
        error = [[max(0.0, each["mean"] - each["low"])], [max(0.0, each["high"] - each["mean"])]]
        axis.errorbar(each["mean"], i, xerr=error, fmt="o", color=LIGHT["eot"], capsize=2.5)
    axis.set_yticks(range(len(names)), [axis_label(name) for name in names])
    axis.invert_yaxis()
    axis.set_xlabel(label)
    if label == measure_name("success"):
        axis.set_xlim(-0.04, 1.04)
    plain(axis)
    return result


def _x_label(over: str) -> str:
    if over == "width":
        return "width of the views' ranges (1: those of the attack)"
    return "eps in units of 1/255" if over == "linf" else "eps"
