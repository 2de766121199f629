"""The results of a benchmark: printed, and written as JSON and as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure

#: The figures of a row, None where there is none; or the words that stand in their place.
Row = tuple[float | None, ...] | str


@dataclass(frozen=True)
class Table:
    """Named rows of figures.

    Args:
        title: what was measured, and on what.
        columns: the heading of each column, and the format of its figures: {"ms": ".1f"}.
        rows: name of a row -> a figure for each column, or words ("not installed").
        chart: "bars" draws the first column, a bar a row; "lines" draws a line a row, over headings that are
            numbers; "shares" draws such lines between 0 and 1, with the rows "NAME, low" and "NAME, high" as the band
            of NAME; None draws nothing.
        notes: lines printed below.
        across: what the columns are.
    """

    title: str
    columns: Mapping[str, str]
    rows: Mapping[str, Row]
    chart: Literal["bars", "lines", "shares"] | None = None
    notes: tuple[str, ...] = ()
    across: str = ""

    def __str__(self) -> str:
        left = max(14, *(len(name) for name in self.rows))
        widths = [max(8, len(name)) for name in self.columns]
        heads = " ".join(f"{name:>{width}}" for name, width in zip(self.columns, widths, strict=True))
        lines = [self.title, f"{'':{left}} {heads}  {self.across}".rstrip()]
        for name, row in self.rows.items():
            cells = row if isinstance(row, str) else " ".join(self._cells(row, widths))
            lines.append(f"{name:{left}} {cells}")
        return "\n".join([*lines, *self.notes])

    def _cells(self, row: tuple[float | None, ...], widths: Sequence[int]) -> list[str]:
        texts = ["-" if x is None else format(x, form) for x, form in zip(row, self.columns.values(), strict=True)]
        return [f"{text:>{width}}" for text, width in zip(texts, widths, strict=True)]

    def plain(self) -> dict[str, object]:
        """The table as JSON holds it: the figures by row and column, unrounded."""
        rows = {
            name: row if isinstance(row, str) else dict(zip(self.columns, row, strict=True))
            for name, row in self.rows.items()
        }
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}


def save(tables: Sequence[Table], name: str, folder: Path, machine: Mapping[str, object]) -> None:
    """Write `folder`/`name`.json (figures and machine) and `folder`/`name`.png (the tables that have a chart)."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": name, "machine": dict(machine), "tables": [table.plain() for table in tables]}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    drawn = [table for table in tables if table.chart]
    figure = Figure(figsize=(8, 0.5 + 3.2 * len(drawn)), dpi=110)
    for table, axis in zip(drawn, figure.subplots(len(drawn), squeeze=False).flat, strict=True):
        {"bars": _bars, "lines": _lines, "shares": _shares}[table.chart or "bars"](axis, table)
        axis.set_title("\n".join([table.title, *table.notes[-1:]]), fontsize=8)
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(folder / f"{name}.png", metadata={"Software": None})


def _bars(axis: Axes, table: Table) -> None:
    (column, form), *_ = table.columns.items()
    values = {name: row[0] for name, row in table.rows.items() if not isinstance(row, str) and row[0] is not None}
    bars = axis.barh(list(values), list(values.values()), color="#1a56a8")
    axis.bar_label(bars, [format(value, form) for value in values.values()], padding=3, fontsize=8)
    axis.margins(x=0.12)
    axis.invert_yaxis()
    axis.set_xlabel(column, fontsize=8)


def _lines(axis: Axes, table: Table) -> None:
    at = [float(column) for column in table.columns]
    for name, row in table.rows.items():
        if not isinstance(row, str):
            axis.plot(at, [float("nan") if x is None else x for x in row], marker="o", label=name)
    axis.set_xscale("log", base=2)
    axis.set_xticks(at, list(table.columns))
    axis.minorticks_off()
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))  # beside the curves, not on them


def _shares(axis: Axes, table: Table) -> None:
    at = [float(column) for column in table.columns]
    curves = {
        name: [float("nan") if x is None else x for x in row]
        for name, row in table.rows.items()
        if not isinstance(row, str)
    }
    for name, line in curves.items():
        if not name.endswith((", low", ", high")):
            (drawn,) = axis.plot(at, line, marker="o", label=name)
            if f"{name}, low" in curves:
                low, high = curves[f"{name}, low"], curves[f"{name}, high"]
                axis.fill_between(at, low, high, color=drawn.get_color(), alpha=0.15)
    axis.set_xticks(at, list(table.columns))
    if at[0] > at[-1]:
        axis.invert_xaxis()  # columns run from left to right
    axis.set_ylim(-0.03, 1.03)
    axis.set_xlabel(table.across, fontsize=8)
    axis.set_ylabel("share of the views", fontsize=8)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
