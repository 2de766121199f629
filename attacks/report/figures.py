"""Pictures of a run."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from attacks.build import Parts
from attacks.eot import view
from attacks.experiment import ARMS, Outcome
from attacks.files import atomic
from attacks.images import to_bytes
from attacks.patch import Patch
from transforms import taken

NAMES = {"clean": "clean", "noise": "random noise", "no_eot": "attack without EOT", "eot": "attack with EOT"}
MEASURES = dict.fromkeys(("away", "toward", "layers"), "mean cosine to the anchor")
COLOURS = {"no_eot": "#c05621", "eot": "#1a56a8"}
GREY = "#718096"
#: Views of the contact sheet, the first of the held-out bank.
SHOWN = 6


def typical(outcome: Outcome) -> int:
    """The picture on which the attack's mean cosine is the median: neither the best case nor the worst."""
    return int(outcome.scores["eot"].cosine.mean(1).argsort()[(len(outcome.pictures["eot"]) - 1) // 2])


def contact_sheet(path: str | Path, parts: Parts, outcome: Outcome) -> None:
    """Save the typical picture's views, a row per arm: the file itself, then held-out views with their cosine to the
    clean embedding, the frame red where the encoder takes the view for another picture."""
    picture = typical(outcome)
    u = outcome.bank.u[:SHOWN]
    figure = Figure(figsize=(1.45 * (len(u) + 1), 1.72 * len(ARMS)), dpi=110)
    axes = figure.subplots(len(ARMS), len(u) + 1)
    direct = "head-on" if isinstance(parts.perturbation, Patch) else "the file"
    for row, arm in zip(axes, ARMS, strict=True):
        _show(row[0], outcome.pictures[arm][picture], direct, "#888888")
        row[0].set_ylabel(NAMES[arm], fontsize=9)
        views = view(outcome.bank.transforms, taken(outcome.shown[arm], picture), u).cpu()
        scores = outcome.scores[arm]
        for axis, seen, cosine, nearest in zip(
            row[1:], views, scores.cosine[picture], scores.nearest[picture], strict=False
        ):
            known = bool(parts.gallery.same(nearest, parts.truth[picture]))
            aimed = parts.goal is not None and bool(parts.gallery.same(nearest, parts.goal[picture]))
            said = "" if known else "  the target" if aimed else "  not known"
            _show(axis, seen, f"{cosine:.2f}{said}", "#2f855a" if known else "#c53030")
    figure.tight_layout(pad=0.4)
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def loss_curve(outcome: Outcome, goal: str) -> str:
    """What the objective `goal` measures over encoder passes as SVG: each step's estimate, and the fixed
    bank's as a line."""
    figure = Figure(figsize=(7, 3))
    axis = figure.subplots()
    for arm, colour in COLOURS.items():
        lines = [line for line in outcome.trace if line.arm == arm]
        lines = [line for line in lines if line.attack == lines[0].attack]  # of a suite, the first attack
        axis.plot([x.evals for x in lines], [x.objective for x in lines], color=colour, alpha=0.25, linewidth=1)
        looked = [x for before, x in zip([None, *lines], lines, strict=False) if _new(before, x)]
        own = "on camera views" if arm == "eot" else "on the picture itself"
        axis.plot(
            [x.evals for x in looked],
            [x.held_out or 0.0 for x in looked],
            "o-",
            color=colour,
            markersize=3,
            label=f"{NAMES[arm]}, {own}",
        )
    axis.set_xlabel("encoder passes")
    axis.set_ylabel(MEASURES.get(goal, "mean loss (low is strong)"))
    axis.legend(frameon=False, fontsize=8)
    return _svg(figure, axis)


def drift_curve(drift: Mapping[str, Any]) -> str:
    """The cosine to the untouched picture over the layers as SVG, a line for each arm with its interval, from what
    metrics.json holds."""
    rows, places = drift["layers"], range(len(drift["layers"]))
    figure = Figure(figsize=(7, 3))
    axis = figure.subplots()
    for arm, colour in {"noise": GREY, **COLOURS}.items():
        low, mean, high = ([row[arm][key] for row in rows] for key in ("low", "mean", "high"))
        axis.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
        axis.plot(places, mean, "o-", color=colour, markersize=3, linewidth=1, label=NAMES[arm])
    for place in places:
        if rows[place]["layer"] == drift["flips"]:
            axis.axvline(place, color="#1d2530", linestyle=":", linewidth=1, label="flips here")
    names = [row["layer"] for row in rows]
    axis.set_xticks(places, names, rotation=50, ha="right", rotation_mode="anchor", fontsize=7)
    axis.set_ylabel("mean cosine, same view")
    axis.legend(frameon=False, fontsize=8)
    return _svg(figure, axis)


def _svg(figure: Figure, axis: Axes) -> str:
    axis.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "viewproof", "svg.fonttype": "none"}):
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True, bbox_inches="tight")
    return text.getvalue()[text.getvalue().index("<svg") :]


def _new(before: object, line: object) -> bool:
    last, now = getattr(before, "held_out", None), getattr(line, "held_out", None)
    return now is not None and now != last


def _show(axis: Axes, image: Tensor, title: str, colour: str) -> None:
    axis.imshow(to_bytes(image))
    axis.set_title(title, fontsize=8, color=colour)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=2)
