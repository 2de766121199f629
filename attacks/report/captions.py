"""The line at each plot of a page: what to see in it, in at most 20 words, from the plot's own numbers."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, product
from statistics import fmean
from typing import Any

from attacks.evaluation.sanity.check import plateau
from attacks.report.words import short
from attacks.solvers.loop import Trace

#: A success, and a change of it, from which a line speaks of them.
HALF, MATERIAL = 0.5, 0.05


def loss_caption(trace: Sequence[Trace], sanity: Mapping[str, Any] | None) -> str:
    """Whether the loss has settled: as the check of the run says, else by its rule on the curve that is drawn."""
    check: Any = next((check for check in (sanity or {}).get("checks", ()) if check["name"] == "plateau"), {})
    if check.get("verdict", "skipped") == "skipped":
        check = vars(plateau([row.held_out for row in trace if row.arm == "eot"]))
    if check["verdict"] == "skipped":
        return "The loss was compared too rarely to show whether it has settled: take more steps (attack.gradients)."
    if check["figures"]["gained"] <= 0:
        return "The loss has not fallen: the steps lead nowhere."
    late = f"({check['figures']['share']:.0%} of its gain in the last quarter)"
    if check["verdict"] == "passed":
        return f"The loss has settled {late}."
    return f"The loss still falls at the end {late}: the attack is too short."


def radii_caption(radii: Mapping[str, Any], norm: str) -> str:
    resisting, median = f"{radii['beyond']} of {radii['pictures']} resist at the largest", radii["median"]["mean"]
    if median is None:
        return f"Most pictures resist even the largest eps: {resisting}."
    text = f"{255 * median:.3g}/255" if norm == "linf" else short(median)
    return f"Half of the pictures break at eps {text}; {resisting}."


def clips_caption(clips: Sequence[Mapping[str, Any]]) -> str:
    """The mean success of the clips, and the frame that resists most."""
    frames = [(value, at, clip["clip"]) for clip in clips for at, value in enumerate(clip["eot"])]
    (least, at, clip), mean = min(frames), fmean(fmean(clip["eot"]) for clip in clips)
    return f"Success over the frames is {mean:.2f}; least {least:.2f}, in frame {at} of {clip}."


def places_caption(cells: Mapping[str, float], in_order: bool = False) -> str:
    """Where the success of the attack with EOT is one half or more: of places in order, from which to which."""
    places, high = [*cells], [i for i, value in enumerate(cells.values()) if value >= HALF]
    where = f"in {len(high)} of {len(cells)} places" if high else "nowhere"
    if in_order and high and high[-1] - high[0] < len(high) < len(cells):
        where = f"from {places[high[0]]} to {places[high[-1]]}"
    word, find = ("least", min) if high else ("most", max)
    end = find(places, key=cells.__getitem__)
    return f"Success is one half or more {where}; {word} {cells[end]:.2f} at {end}."


def curve_cells(curve: Mapping[str, Any]) -> dict[str, float]:
    """By the value of the coordinate the success of the attack with EOT."""
    success = (cell["mean"] for cell in curve["arms"]["eot"]["success"])
    return dict(zip(map(short, curve["x"]["values"]), success, strict=True))


def map_cells(content: Mapping[str, Any]) -> dict[str, float]:
    x, y = (content[side]["values"] for side in ("x", "y"))
    success = chain.from_iterable(content["arms"]["eot"]["success"])
    places = (f"({short(across)}, {short(down)})" for down, across in product(y, x))
    return {place: cell["mean"] for place, cell in zip(places, success, strict=True)}


def deployment_cells(cells: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    return {f"{cell['codec']}, {cell['resampler']}": cell["arms"]["eot"]["success"]["mean"] for cell in cells}


def left_out_caption(ablation: Mapping[str, Any]) -> str:
    """What the attack loses by not seeing a stage, in views with all stages."""
    total, *losses = [(row["cells"][0]["success"]["mean"], row["without"]) for row in ablation["rows"]]
    success, stage = min(losses)
    if total[0] - success <= MATERIAL:
        return f"No stage matters to the attacker: success stays at {success:.2f} or more."
    return f"Not to know {stage} costs the attacker most: success falls from {total[0]:.2f} to {success:.2f}."


def simultaneous_words(minimum: int | None) -> str:
    """The end of the caption of a table of differences: what its brackets, or parentheses, hold for."""
    if minimum is None:
        return "; intervals for all cells at once"
    return f"; ranges, for a test of so many cells needs {minimum} clusters"


def ranking_caption(table: Sequence[Any]) -> str:
    """Which of the runs of a ranking is the most robust, if that can be told."""
    first, *rest = table
    if first.clusters_needed:
        return f"Too few clusters to tell the runs apart: {first.clusters_needed} needed."
    equals = sum(bool({*first.letters} & {*other.letters}) for other in rest)
    name = first.run.values["encoder"]
    if not first.letters:
        return f"{name} comes first; there are too many groups for letters."
    return f"{name} comes first, " + (f"and cannot be told from {equals} of the others." if equals else "and alone.")
