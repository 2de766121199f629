"""The line at each plot of a page: what to see in it, in at most 20 words, from the plot's own numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from attacks.evaluation.sanity.check import plateau
from attacks.report.words import short
from attacks.solvers.loop import Trace

#: A success, and a change of it, from which a line speaks of them.
HALF, MATERIAL = 0.5, 0.05


def views_caption(arms: Mapping[str, Any]) -> str:
    attack, clean = (arms[arm]["success"]["mean"] for arm in ("eot", "clean"))
    return f"The attacker succeeds in {attack:.2f} of attacked views, {clean:.2f} of untouched ones; red: not known."


def loss_caption(trace: Sequence[Trace], sanity: Mapping[str, Any] | None) -> str:
    """Whether the loss has settled: as the check of the run says, else by its rule on the curve that is drawn."""
    checks = {check["name"]: check for check in (sanity or {}).get("checks", ())}
    check = checks.get("plateau", {"verdict": "skipped"})
    if check["verdict"] == "skipped":
        check = vars(plateau([row.held_out for row in trace if row.arm == "eot"]))
    if check["verdict"] == "skipped":
        return (
            "The loss was compared too rarely to show whether it has settled: take more gradients (attack.gradients)."
        )
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
    if len(high) in (0, len(success)):
        return (
            f"Success stays at one half or more: at least {low}."
            if high
            else f"Success stays below one half: at most {top}."
        )
    if high[-1] - high[0] >= len(high):
        return f"Success is one half or more in {len(high)} of {len(success)} places; least {low}."
    start, end = (short(places[i]) for i in (high[0], high[-1]))
    side = f"beyond {end}" if high[0] == 0 else f"outside {start} to {end}"
    side = f"below {start}" if high[-1] == len(success) - 1 else side
    return f"Success falls below one half {side}: to {low}."


def map_caption(content: Mapping[str, Any], measure: str) -> str:
    rows, (x, y) = content["arms"]["eot"][measure], (content[side]["values"] for side in ("x", "y"))
    cells = {
        (short(a), short(b)): cell["mean"]
        for b, row in zip(y, rows, strict=True)
        for a, cell in zip(x, row, strict=True)
    }
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
        return f"The attacker need not know any one stage: success stays at {success:.2f} or more."
    return f"The attacker must know {stage} most: without it success falls from {total[0]:.2f} to {success:.2f}."


def deployment_caption(cells: Sequence[Mapping[str, Any]]) -> str:
    success = {(cell["codec"], cell["resampler"]): cell["arms"]["eot"]["success"]["mean"] for cell in cells}
    pair, high = min(success, key=lambda key: success[key]), sum(value >= HALF for value in success.values())
    text = f"Success is one half or more in {high} of {len(success)} cells; least"
    return f"{text}, {success[pair]:.2f}: {', '.join(pair)}."


def detection_caption(detection: Mapping[str, Any]) -> str:
    rows = [detection["arms"][arm] for arm in ("eot", "clean")]
    if not detection["thresholds"]:
        return "No threshold: the lowest cosine is {:.4f} with the attack and {:.4f} without.".format(
            *(r["lowest"] for r in rows)
        )
    return "Flagged are {:.2f} of the attacked pictures, and {:.2f} of the untouched ones by mistake.".format(
        *(row["flagged"]["mean"] for row in rows)
    )


def explanations_caption(likeness: Mapping[str, Any]) -> str:
    means = [likeness[arm]["mean"] for arm in ("clean", "eot")]
    change = "" if None in means else " takes the similarity from {:.2f} to {:.2f}:".format(*means)
    return f"The attack{change or ':'} see which regions stop, and start, to count."


def drift_caption(drift: Mapping[str, Any]) -> str:
    if drift["flips"] is None:
        return "No layer drifts clearly more than under noise, or the output hardly drifts."
    return f"The embedding flips at {drift['flips']}: the first layer with more than half of the output's drift."


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
