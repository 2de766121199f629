"""The picture of a transfer table: runs by the encoder they were made on, against the encoders they are judged on."""

from collections.abc import Mapping, Sequence
from itertools import product
from textwrap import fill
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attacks.report.colours import LIGHT, shade
from attacks.report.words import ARMS, capital

#: The arms with a panel, and the most characters of a line of a label.
PANELS, WIDTH = ("clean", "no_eot", "eot"), 18


def transfer_figure(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel for each arm, with the success and its interval in each cell, empty where a run lacks the arm; a frame
    where a run is judged on the encoder that it was made on. `rows` are those of `transfer_rows`."""
    cells = {(row["arm"], row["run"], row["judged_on"]): row for row in rows}
    runs, encoders = (list(dict.fromkeys(row[key] for row in rows)) for key in ("run", "judged_on"))
    size = (len(PANELS) * (1.6 + 1.25 * len(encoders)), 1.3 + 0.75 * len(runs))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, len(PANELS), squeeze=False, sharey=True).flatten()
    for arm, axis in zip(PANELS, axes, strict=True):
        axis.set(title=capital(ARMS[arm]), xlim=(-0.5, len(encoders) - 0.5), ylim=(len(runs) - 0.5, -0.5))
        axis.spines[:].set_visible(False)
        axis.tick_params(length=0, labelsize=8)
        axis.set_xticks(range(len(encoders)), [fill(name, WIDTH) for name in encoders])
        for (j, run), (i, encoder) in product(enumerate(runs), enumerate(encoders)):
            if (row := cells.get((arm, run, encoder))) is None:
                continue
            background, ink = shade("success", row["success"])
            edge = LIGHT["no_eot"] if row["made_on"] == encoder else background
            axis.add_patch(Rectangle((i - 0.47, j - 0.47), 0.94, 0.94, facecolor=background, edgecolor=edge, lw=2))
            text = f"{row['success']:.2f}\n[{row['success_low']:.2f}, {row['success_high']:.2f}]"
            axis.text(i, j, text, ha="center", va="center", fontsize=8, color=ink)
    made_on = {row["run"]: row["made_on"] for row in rows}
    axes[0].set_yticks(range(len(runs)), [fill(made_on[run], WIDTH) for run in runs])
    axes[0].set_ylabel("made on")
    figure.supxlabel("judged on (share of views taken for something else; 95 % intervals)", fontsize=9)
    return figure
