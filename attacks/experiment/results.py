"""From scores to results: metrics.json, and the table in the terminal."""

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from attacks.data.split import FIT, JUDGE
from attacks.data.table import TABLE
from attacks.encoders.black_box.asked import black_box
from attacks.encoders.description import description_rows
from attacks.eot.bank import Bank
from attacks.evaluation.classes import Classes
from attacks.evaluation.drift import line as drift_line
from attacks.evaluation.judge import resisting
from attacks.evaluation.per_image import arms_table, clips_table, judged_rows, per_image_rows, primary, secondary
from attacks.evaluation.retrieval import thresholds
from attacks.evaluation.sanity.check import Sanity
from attacks.evaluation.sanity.check import table as sanity_table
from attacks.experiment.bench import MAIN, WIDE, Bench, Cost
from attacks.experiment.chance import chance_levels
from attacks.experiment.directory import SCHEMA
from attacks.experiment.required import verdict_of
from attacks.experiment.view_scores import ViewScores
from attacks.gate.verdict import verdict_text
from attacks.inference.pairs import Measure
from attacks.report.answer import answer
from attacks.report.environment import join_percent
from attacks.report.facts import encoder_name, gallery, legend, step_text
from attacks.report.warnings import warnings
from attacks.report.words import definitions, fit_arms, interval_text, p_value
from attacks.schema.encoder import ENCODERS
from attacks.study.pipeline import input_side
from attacks.study.study import Study

#: Characters in a line of the first words in the terminal.
WIDTH = 80
#: Heads of the terminal's columns, and their widths.
HEADS = {"success": "success", "cosine": "cosine to clean", "distance": "distance", "score": "score"}
HEADS |= {"fooled_accepted": "fooled, accepted", "flagged": "flagged", "no_answer": "no answer"}
WIDTHS = {**dict.fromkeys(HEADS, 20), "success": 22, **dict.fromkeys(("cosine", "distance", "score"), 24)}
#: How intervals are made (docs/intervals.md).
INTERVALS = "95 %, over clusters of pictures"


class RunFigures(NamedTuple):
    """What no file of a run but metrics.json holds: the cost of arms and sections, the gallery pictures from a cache,
    the pictures and sections that failed, the arms that continued in float32, the pictures that were not needed to
    decide the policy, and the content of `sanity`."""

    costs: Mapping[str, Cost]
    cached: int
    failed: list[dict[str, Any]]
    failed_parts: Mapping[str, str]
    fell_back: list[str]
    left: int
    sanity: dict[str, Any] | None


def metrics(
    bench: Bench,
    scores: ViewScores,
    budget: Mapping[str, Tensor],
    facts: RunFigures,
    sections: Mapping[str, Any],
    preset: str,
    limits: Mapping[float, float] | None = None,
) -> tuple[dict[str, Any], list[dict[str, object]]]:
    """The content of metrics.json, and the rows of per_image.csv that its tables are computed from. Equal seeds give
    equal content except for seconds. `budget`: by arm the norm of the change of each picture (N,); `sections`: the
    content of the optional parts; `limits`: thresholds of verification by false accept rate, where they are known."""
    study = bench.study
    count, pairs, queries = len(study.queries), bench.judge.impostors(), study.queries.judged
    limits = limits if limits is not None else {} if pairs is None else thresholds(pairs)
    chance = chance_levels(study.take(queries), study.evaluate.neighbours, len(bench.banks[MAIN].u), pairs, [*limits])
    score_rows = rows_of(bench, scores, limits)
    rows = judged_rows(score_rows)
    views = {name: (arms, scores.success[name]) for name, arms in scores.scores.items()} if count == 1 else None
    tables = arms_table(rows, views=views)
    # The steps at which the pictures' perturbations were chosen; None for an arm without steps.
    steps = {
        arm: {"median": int(x.median()), "least": int(x.min()), "most": int(x.max())}
        for arm, x in scores.steps.items()
    }
    used = {arm: float(norm.max() / study.perturbation.eps) for arm, norm in budget.items()}
    arms = {arm: row | {"budget_used": used[arm], "step": steps.get(arm)} for arm, row in tables[MAIN].items()}
    # Cosine thresholds of a match, set on clean pairs of different identities.
    bars = {f"{far:g}": value for far, value in limits.items()}
    verification = None if pairs is None else {"thresholds": bars, "impostors": len(pairs)}
    # Without sanity checks, layer drift, and passes before the run (the engine's measurement, guesses of classes).
    total = sum(facts.costs.values(), Cost())
    side = input_side(study.encoder, *study.queries.shapes)
    measure: Measure = "cosine" if study.evaluate.primary == "cosine" else "success"
    store = None if study.fit is None else study.fit.queries.store  # of minibatches, which are drawn from it
    fit_pixels = {} if store is None else {"fit_pixels": dict(zip(store.names, store.digests, strict=True))}
    content = {
        "schema": SCHEMA,
        "preset": preset,
        "seed": study.seed,
        "encoder": study.identity,
        "threat": study.threat,
        "queries": list(study.queries.names),
        "clusters": list(study.queries.clusters),
        **({"weights": list(study.queries.weights)} if study.queries.weights else {}),
        "pixels": list(study.queries.digests),
        **fit_pixels,
        **_gallery(study),
        "bank": _bank(bench.banks[MAIN], bench.refine_steps, side),
        "intervals": INTERVALS if count > 1 else "95 %, over the views of one picture",
        "arms": arms,
        "wide": None,
        "verification": verification,
        "neighbours": study.evaluate.neighbours,
        "chance": {name: level._asdict() for name, level in chance.items()},
        "primary": primary(rows, measure),
        "comparisons": secondary(rows, measure),
        "cost": asdict(total) | {"cached": facts.cached},
        "costs": {name: asdict(cost) for name, cost in facts.costs.items()},
        "failed": facts.failed,
        "failed_parts": dict(facts.failed_parts),
        "fell_back": facts.fell_back,
        "sanity": facts.sanity,
        **sections,
    }
    if study.places is not None:
        content["clips"] = clips_table(rows)
    if (box := black_box(study.encoder)) is not None:
        content["asked"] = len(box.ledger)
    content["left"] = facts.left
    if WIDE in tables:
        bank = _bank(bench.banks[WIDE], 0, side)
        content["wide"] = {"factor": study.evaluate.wide, "bank": bank, "arms": tables[WIDE]}
    if (split := study.sides) is not None:
        fit = [row for row in score_rows if row["split"] == FIT]
        content["split"] = split | {"arms": arms_table(fit) if split[JUDGE] else None}
    content["gate"] = verdict_of(study, bench.exhibits.out, content, score_rows)
    return content, score_rows


def _gallery(study: Study) -> dict[str, Any]:
    """What views can be taken for: rows, their source, near duplicates, pictures `alone` in an identity, classes."""
    rows, classes = study.gallery, study.gallery if isinstance(study.gallery, Classes) else None
    is_single = rows.alone(study.truth)
    audit = {
        "source": rows.source,
        "near_duplicates": len(study.duplicates),
        "alone": None if is_single is None else int(is_single.sum()),
    }
    return {
        "gallery": len(rows),
        "gallery_audit": audit,
        "classes": None if classes is None else list(classes.names),
        "guessed": 0 if classes is None else classes.guessed,
        "files_right": None if classes is None else classes.right,
        # None if every picture is its own identity.
        "identities": None if rows.label_numbers is None else len(rows.label_numbers.unique()),
    }


def rows_of(bench: Bench, scores: ViewScores, limits: Mapping[float, float] | None = None) -> list[dict[str, object]]:
    """The rows of per_image.csv. `limits` as of `metrics`."""
    study = bench.study
    if limits is None:
        pairs = bench.judge.impostors()
        limits = {} if pairs is None else thresholds(pairs)
    labels = study.gallery.names if isinstance(study.gallery, Classes) else study.gallery.labels
    identities = [labels[row] or "" for row in study.truth.tolist()]
    pictures: dict[str, Sequence[Any]]
    pictures = {"picture": study.queries.names, "cluster": study.queries.clusters, "identity": identities}
    optional: dict[str, Sequence[Any]] = {"split": study.queries.split, "weight": study.queries.weights}
    if study.places is not None:
        clips = study.queries.clips
        optional["clip"] = [study.queries.entries[clip.start].cluster or "" for clip in clips for _ in clip]
        optional["frame"] = [frame for clip in clips for frame in range(len(clip))]
    if (shares := getattr(study.perturbation, "shares", None)) is not None:
        optional["eps"] = (study.perturbation.eps * shares).tolist()
    if study.goal is not None and study.objective.target == TABLE:
        optional["target"] = [study.gallery.names[row] for row in study.goal.tolist()]
    pictures |= {name: column for name, column in optional.items() if column}
    worst = {bank: {arm: resisting(column) for arm, column in arms.items()} for bank, arms in scores.scores.items()}
    return per_image_rows(
        scores.scores,
        scores.success,
        worst | {MAIN: scores.worst},
        pictures=pictures,
        steps=scores.steps,
        thresholds=limits,
        alone=study.gallery.alone(study.truth),
    )


def _bank(bank: Bank, refined_steps: int, side: int) -> dict[str, Any]:
    """A bank, for an input with this `side`; `refine` gradient steps lead from its worst views to `worst_cosine`."""
    corners = bank.u.new_tensor([[0.0], [1 - 1e-6]]).expand(2, bank.transforms.dims)
    low, high = bank.transforms.values(corners).tolist()
    return {
        "views": len(bank.u),
        "refine": refined_steps,
        "side": side,
        "draws": "scrambled Sobol, a stream of its own",
        "coordinates": list(bank.transforms.names),
        "ranges": [sorted(ends) for ends in zip(low, high, strict=True)],
    }


def headline(content: dict[str, Any], place: str = "") -> str:
    """The first words of a report, for a terminal: verdict, reason, limits, the `place` of more, and what is next."""
    words = answer(content)
    lines = [*map(wrap_lines, (words.verdict, words.reason, words.comparison, words.limits)), place]
    return "\n".join([*filter(None, lines), wrap_lines(f"Next: {words.step}")])


def next_command(content: dict[str, Any], out: Path) -> str:
    """The command of the next step; words in capitals are the user's to give."""
    if (gate := content["gate"]) is None and content["encoder"]["name"] in ENCODERS and "asked" not in content:
        return f"viewproof check {encoder_name(content)} PICTURES --for USE"
    return f"viewproof compare {out} OTHER_RUN" if gate and gate["verdict"] == "FAIL" else f"viewproof verify {out}"


def wrap_lines(text: str, most: int = WIDTH) -> str:
    """A text in lines of at most so many characters, or those of a narrower terminal, if it goes to one."""
    width = min(most, shutil.get_terminal_size().columns) if sys.stdout.isatty() else most
    wrap = partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrap(join_percent(line)) for line in text.splitlines()).replace("\u00a0", " ")


def table_columns(content: dict[str, Any]) -> list[str]:
    """The measures of a short table of the arms: a score or a distance where the task has one."""
    clean = content["arms"]["clean"]
    value = next((name for name in ("score", "distance") if clean.get(name) is not None), "cosine")
    shares = [name for name in ("fooled_accepted", "flagged", "no_answer") if clean.get(name) is not None]
    return ["success", value, *shares]


def table_text(content: dict[str, Any]) -> str:
    """The table of the arms and of the most resistant views, with what its measures are, for the terminal."""
    width, columns = 2 + max(map(len, content["arms"])), table_columns(content)
    lines = [f"{'arm':<{width}}" + "".join(f"{HEADS[name]:<{WIDTHS[name]}}" for name in columns) + "chosen step"]
    for arm, row in content["arms"].items():
        line = "".join(f"{interval_text(row[name]):<{WIDTHS[name]}}" for name in columns)
        lines.append(f"{arm:<{width}}{line}{step_text(row)}".rstrip())
    if fit := fit_arms(content).get(MAIN):
        success = ", ".join(f"{arm} {interval_text(row['success'])}" for arm, row in fit.items())
        lines.append(f"on the pictures that they were made from: success {success}")
    if "cosine" in columns:
        worst = {arm: row["worst_cosine"] for arm, row in content["arms"].items() if arm in ("eot", "no_eot")}
        bank_note = ", refined" if content["bank"]["refine"] else " of the bank"
        cosines = ", ".join(f"{arm} {interval_text(worst[arm])}" for arm in sorted(worst))
        lines.append(f"most resistant view{bank_note}: cosine {cosines}")
        columns.append("worst_cosine")
    return "\n".join([*lines, wrap_lines(definitions(*columns))])


def encoder_line(content: dict[str, Any]) -> str:
    """The encoder in one line, for the terminal; its preprocessing is in the report."""
    (_, name), *rows = description_rows(content["encoder"])
    words = (f"{key} {value}" for key, value in rows if key not in ("resize", "crop", "normalise"))
    return "; ".join([f"encoder: {name}", *words])


def comparison_lines(content: dict[str, Any]) -> list[str]:
    """The secondary comparisons of success on the attack's own distribution, for the terminal."""
    rows = [row for row in content["comparisons"] if (row["bank"], row["measure"]) == (MAIN, "success")]
    return [
        f"success of {row['arm']} minus {row['other']}: {interval_text(row['difference'], sign='+')}, "
        + (f"p {p_value(row['p'])}" if row["needed"] is None else p_value(None, row["needed"]))
        for row in rows
        if row["other"] != "clean"
    ]


def summary_text(content: dict[str, Any], out: Path, sanity: Sanity | None) -> str:
    """The tables of a run for the terminal, and last its answer, where the report is, and what is next."""
    lines = [encoder_line(content), f"gallery: {gallery(content)}", table_text(content), legend(content)]
    lines += comparison_lines(content)
    lines += [] if content["drift"] is None else [drift_line(content["drift"])]
    lines += [] if sanity is None else [sanity_table(sanity)]
    lines += [] if content["gate"] is None else [verdict_text(content["gate"])]
    lines += [f"record: sha256 {content['files']} (viewproof verify {out} checks it)"]
    lines += [f"warning: {warning}" for warning in warnings(content)]
    answer_text = headline(content, f"report: {out / 'report.html'}")
    return "\n".join(
        [*(wrap_lines(line, 500) for line in lines), "", answer_text, f"    {next_command(content, out)}"]
    )
