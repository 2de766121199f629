"""From scores to results: metrics.json, and the table in the terminal."""

import hashlib
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from attacks.data.split import FIT, JUDGE
from attacks.encoders.black_box.asked import black_box
from attacks.encoders.description import description_rows, identity
from attacks.eot.bank import Bank
from attacks.evaluation.classes import Classes
from attacks.evaluation.comparisons import primary, secondary
from attacks.evaluation.judge import resisting
from attacks.evaluation.per_image import arms_table, judged_rows, per_image_rows
from attacks.evaluation.retrieval_metrics import thresholds
from attacks.evaluation.significance import Measure
from attacks.experiment.artefact_list import duplicates_of
from attacks.experiment.batch import SAME, WIDE, part_of
from attacks.experiment.chance import levels
from attacks.experiment.manifest import SCHEMA
from attacks.experiment.outcome import Outcome
from attacks.experiment.required import verdict_of
from attacks.experiment.sections import Sections
from attacks.report.facts import step_text, verdict
from attacks.report.words import fit_arms, interval_text, p_value
from attacks.schema.patch import PatchConfig
from attacks.schema.validate import Run
from attacks.study.patch_record import facts
from attacks.study.pipeline import input_side
from attacks.study.study import Parts

#: The keys of an attack that say how many gradients it has.
SPENT = ("gradients", "steps", "views")
#: Characters in a line of the verdict in the terminal.
WIDTH = 110
#: How intervals are made (docs/intervals.md).
INTERVALS = "95 %, over clusters of pictures; the range of the clusters where they are too few for an interval"


def metrics(
    run: Run,
    parts: Parts,
    outcome: Outcome,
    extras: Sections,
    preset: str,
    limits: Mapping[float, float] | None = None,
) -> tuple[dict[str, Any], list[dict[str, object]]]:
    """The content of metrics.json, and the rows of per_image.csv that its tables are computed from. Equal seeds give
    equal content except for seconds. `limits`: the thresholds of verification by false accept rate, where they are
    known."""
    count, pairs, judged = len(parts.queries), outcome.bench.judge.impostors(), parts.queries.judged
    limits = limits if limits is not None else {} if pairs is None else thresholds(pairs)
    seen = len(outcome.bench.banks[SAME].u)
    chance = levels(part_of(parts, judged), run.evaluate.neighbours, seen, pairs, [*limits])
    success, table = _success(outcome), rows_of(outcome, limits)
    rows, clusters = judged_rows(table), [parts.queries.clusters[row] for row in judged]
    views = {name: (arms, success[name]) for name, arms in outcome.scores.items()} if count == 1 else None
    tables = arms_table(rows, views=views)
    arms = {
        arm: row
        | {
            "budget_used": float(outcome.budget[arm].max() / parts.perturbation.eps),
            "step": _steps(outcome.chosen.get(arm)),
        }
        for arm, row in tables[SAME].items()
    }
    cost, side = asdict(outcome.cost + extras.cost), input_side(parts.encoder, parts.queries.images.shape[2:])
    measure: Measure = "cosine" if run.evaluate.primary == "cosine" else "success"
    content = {
        "schema": SCHEMA,
        "preset": preset,
        "seed": run.seed,
        "encoder": identity(run.encoder, parts.encoder, parts.transforms),
        "threat": {
            "objective": run.objective.name,
            "targeted": parts.goal is not None,
            "attack": run.attack.name,
            "optimiser": run.optimiser.name,
            "norm": run.perturbation.name,
            "eps": parts.perturbation.eps,
            "gradients": parts.views.gradients,
            "views_per_step": run.attack.views,
            "risk": run.risk.name,
            "transforms": run.transforms.name,
            "shared": parts.perturbation.shared,
            "penalty": run.penalty.name,
            **{key: value for key, value in vars(run.attack).items() if key not in ("name", *SPENT)},
            "patch": _patch(run, parts),  # None for any other perturbation
        },
        "queries": list(parts.queries.names),
        "clusters": list(parts.queries.clusters),
        "pixels": [_sha256(image) for image in parts.queries.images],
        "gallery": len(parts.gallery),
        "gallery_audit": _audit(parts),
        "classes": list(parts.gallery.names) if isinstance(parts.gallery, Classes) else None,
        "guessed": parts.gallery.guessed if isinstance(parts.gallery, Classes) else 0,
        "files_right": parts.gallery.right if isinstance(parts.gallery, Classes) else None,
        # None if every picture is its own identity.
        "identities": None if parts.gallery.label_numbers is None else len(parts.gallery.label_numbers.unique()),
        "bank": _bank(outcome.bench.banks[SAME], outcome.refined, side),
        "intervals": INTERVALS if len(set(clusters)) > 1 else "95 %, over the views of one picture",
        "arms": arms,
        "wide": None,
        # Cosine thresholds of a match, set on clean pairs of different identities.
        "verification": None
        if pairs is None
        else {"thresholds": {f"{far:g}": value for far, value in limits.items()}, "impostors": len(pairs)},
        "neighbours": run.evaluate.neighbours,
        "chance": {name: level._asdict() for name, level in chance.items()},
        "primary": primary(rows, measure),
        "comparisons": secondary(rows, measure),
        "cost": cost | {"cached": outcome.cached},
        "costs": {name: asdict(spent) for name, spent in (outcome.costs | extras.costs).items()},
        "failed": [failure._asdict() for failure in outcome.failed],
        "failed_parts": extras.failed,
        "fell_back": list(outcome.fell_back),
        "sanity": None if outcome.sanity is None else outcome.sanity.to_dict(),
        "drift": None if outcome.drift is None else outcome.drift.of(judged).to_dict(clusters),
        **extras.to_dict(),
    }
    if (asked := black_box(parts.encoder)) is not None:
        content["asked"] = len(asked.ledger)
    content["left"] = outcome.left
    if WIDE in tables:
        bank = _bank(outcome.bench.banks[WIDE], 0, side)
        content["wide"] = {"factor": run.evaluate.wide, "bank": bank, "arms": tables[WIDE]}
    if (split := parts.queries.sides) is not None:
        fit = [row for row in table if row["split"] == FIT]
        content["split"] = split | {"arms": arms_table(fit) if split[JUDGE] else None}
    content["gate"] = verdict_of(run, outcome.bench.exhibits.out, content, table)
    return content, table


def _audit(parts: Parts) -> dict[str, Any]:
    """Where the gallery is from, its pairs of near duplicates, and the pictures `alone` in their identity (None: no
    identity is given to two)."""
    gallery, alone = parts.gallery, parts.gallery.alone(parts.truth)
    source = "data.classes" if isinstance(gallery, Classes) else gallery.source
    pairs = len(duplicates_of(parts))
    return {"source": source, "near_duplicates": pairs, "alone": None if alone is None else int(alone.sum())}


def rows_of(outcome: Outcome, limits: Mapping[float, float] | None = None) -> list[dict[str, object]]:
    """The rows of per_image.csv. `limits` as of `metrics`."""
    parts, success = outcome.bench.parts, _success(outcome)
    if limits is None:
        pairs = outcome.bench.judge.impostors()
        limits = {} if pairs is None else thresholds(pairs)
    pictures = {"picture": parts.queries.names, "cluster": parts.queries.clusters, "identity": _identities(parts)}
    pictures |= {"split": parts.queries.split} if parts.queries.split else {}
    worst = {SAME: outcome.worst} | {name: _worst(outcome, name) for name in outcome.scores if name != SAME}
    return per_image_rows(
        outcome.scores,
        success,
        worst,
        pictures=pictures,
        steps=outcome.chosen,
        thresholds=limits,
        alone=parts.gallery.alone(parts.truth),
    )


def _success(outcome: Outcome) -> dict[str, dict[str, Tensor]]:
    judge, everyone = outcome.bench.judge, torch.arange(len(outcome.bench.parts.queries))
    return {
        name: {arm: judge.success(scores, everyone) for arm, scores in arms.items()}
        for name, arms in outcome.scores.items()
    }


def _bank(bank: Bank, refined: int, side: int) -> dict[str, Any]:
    """The description of a bank for an encoder whose input has a `side`; `refine` gradient steps lead from its worst
    views to `worst_cosine`."""
    corners = bank.u.new_tensor([[0.0], [1 - 1e-6]]).expand(2, bank.transforms.dims)
    low, high = bank.transforms.values(corners).tolist()
    return {
        "views": len(bank.u),
        "refine": refined,
        "side": side,
        "draws": "scrambled Sobol, a stream of its own",
        "coordinates": list(bank.transforms.names),
        "ranges": [sorted(ends) for ends in zip(low, high, strict=True)],
    }


def _steps(chosen: Tensor | None) -> dict[str, int] | None:
    """The steps at which the pictures' perturbations were chosen; None for an arm without steps."""
    if chosen is None:
        return None
    return {"median": int(chosen.median()), "least": int(chosen.min()), "most": int(chosen.max())}


def _worst(outcome: Outcome, name: str) -> dict[str, Tensor]:
    """For each picture the cosine in the view of a bank that resists the attack most, without refinement."""
    return {arm: resisting(scores) for arm, scores in outcome.scores[name].items()}


def _sha256(image: Tensor) -> str:
    """The digest of a picture's 8-bit values: pictures of one name may differ between runs."""
    return hashlib.sha256((image * 255).round().byte().cpu().contiguous().numpy().tobytes()).hexdigest()


def _identities(parts: Parts) -> list[str]:
    """The label of each query; empty if unknown."""
    if isinstance(parts.gallery, Classes):
        return [parts.gallery.names[row] for row in parts.truth.tolist()]
    labels = [parts.gallery.labels[row] for row in parts.truth.tolist()]
    return ["" if label is None else label for label in labels]


def _patch(run: Run, parts: Parts) -> dict[str, Any] | None:
    if not isinstance(run.perturbation, PatchConfig):
        return None
    goals = [] if parts.goal is None else sorted(set(parts.goal.tolist()))
    target = ", ".join(parts.gallery.names[row] for row in goals) or None
    size = (parts.queries.images.shape[2], parts.queries.images.shape[3])
    return facts(run.perturbation, run.printer, parts.perturbation, size, target)


def headline(content: dict[str, Any]) -> str:
    """The verdict of the report in lines of a terminal."""
    return textwrap.fill(verdict(content), WIDTH, break_long_words=False, break_on_hyphens=False)


def table(content: dict[str, Any]) -> str:
    """The table of the arms and of the worst views, for the terminal."""
    width = 2 + max(map(len, content["arms"]))
    lines = [f"{'arm':<{width}}{'success':<22}{'cosine to clean':<24}chosen step"]
    for arm, row in content["arms"].items():
        line = f"{arm:<{width}}{interval_text(row['success']):<22}{interval_text(row['cosine']):<24}{step_text(row)}"
        lines.append(line.rstrip())
    eot, plain = (interval_text(content["arms"][arm]["worst_cosine"]) for arm in ("eot", "no_eot"))
    which = ", refined" if content["bank"]["refine"] else " of the bank"
    if fit := fit_arms(content).get(SAME):
        success = ", ".join(f"{arm} {interval_text(row['success'])}" for arm, row in fit.items())
        lines.append(f"on the pictures that they were made from: success {success}")
    return "\n".join([*lines, f"worst view{which}: cosine eot {eot}, no_eot {plain}"])


def encoder_line(content: dict[str, Any]) -> str:
    """The encoder in one line, for the terminal; its preprocessing is in the report."""
    (_, name), *rows = description_rows(content["encoder"])
    shown = (f"{what} {value}" for what, value in rows if what not in ("resize", "crop", "normalise"))
    return "; ".join([f"encoder: {name}", *shown])


def comparison_lines(content: dict[str, Any]) -> list[str]:
    """The secondary comparisons of success on the attack's own distribution, for the terminal."""
    rows = [row for row in content["comparisons"] if (row["bank"], row["measure"]) == (SAME, "success")]
    return [
        f"success of {row['arm']} minus {row['other']}: {interval_text(row['difference'], sign='+')}, "
        + (f"p {p_value(row['p_holm'])} (Holm)" if row["needed"] is None else p_value(None, row["needed"]))
        for row in rows
        if row["other"] != "clean"
    ]
