"""The line at each plot of a page: what to see in it, in at most 20 words, from the plot's own numbers."""

from collections.abc import Mapping, Sequence
from itertools import chain, product
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


def curve_caption(curve: Mapping[str, Any]) -> str:
    """Where the success of the attack with EOT falls below one half."""
    places, success = curve["x"]["values"], [cell["mean"] for cell in curve["arms"]["eot"]["success"]]
    high = [i for i, value in enumerate(success) if value >= HALF]
    low, top = (f"{value:.2f} at {short(places[success.index(value)])}" for value in (min(success), max(success)))
    if not high:
        return f"Success stays below one half: at most {top}."
    if len(high) == len(success):
        return f"Success stays at one half or more: at least {low}."
    if high[-1] - high[0] >= len(high):
        return f"Success is one half or more in {len(high)} of {len(success)} places; least {low}."
    start, end = (short(places[i]) for i in (high[0], high[-1]))
    side = f"beyond {end}" if high[0] == 0 else f"outside {start} to {end}"
    side = f"below {start}" if high[-1] == len(success) - 1 else side
    return f"Success falls below one half {side}: to {low}."


def map_caption(content: Mapping[str, Any], measure: str) -> str:
    rows, (x, y) = content["arms"]["eot"][measure], (content[side]["values"] for side in ("x", "y"))
    rows = zip(product(map(short, y), map(short, x)), chain.from_iterable(rows), strict=True)
    cells = {place[::-1]: cell["mean"] for place, cell in rows}
    low, high = (end(cells, key=lambda place: cells[place]) for end in (min, max))
    if cells[low] == cells[high]:
        return f"With EOT the {measure} is the same in all cells: {cells[low]:.2f}."
    texts = (f"{cells[place]:.2f} at ({', '.join(place)})" for place in (high, low))
    return "With EOT the {} is highest, {}, and lowest, {}.".format(measure, *texts)


def left_out_caption(ablation: Mapping[str, Any]) -> str:
    """What the attack loses by not seeing a stage, in views with all stages."""
    total, *losses = [(row["cells"][0]["success"]["mean"], row["without"]) for row in ablation["rows"]]
    success, stage = min(losses)
    if total[0] - success <= MATERIAL:
        return f"No stage matters to the attacker: success stays at {success:.2f} or more."
    return f"Not to know {stage} costs the attacker most: success falls from {total[0]:.2f} to {success:.2f}."


def deployment_caption(cells: Sequence[Mapping[str, Any]]) -> str:
    rows = [(cell["arms"]["eot"]["success"]["mean"], f"{cell['codec']}, {cell['resampler']}") for cell in cells]
    high = sum(success >= HALF for success, _ in rows)
    success, place = min(rows) if high else max(rows)
    end = f"{'least' if high else 'most'}, {success:.2f}: {place}"
    return f"Success is one half or more in {high} of {len(rows)} cells; {end}."


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
