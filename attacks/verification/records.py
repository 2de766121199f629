"""What the records of a run say of one another: its overrides, configuration, sanity checks, steps and costs."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from attacks.encoders.description import MODULE
from attacks.eot.risk import Mean
from attacks.evaluation.sanity.battery import NAMES, masking
from attacks.evaluation.sanity.check import Check
from attacks.experiment.bench import Bench
from attacks.experiment.cost import Spent
from attacks.experiment.directory import misfit
from attacks.experiment.view_scores import NAME as SCORES
from attacks.experiment.view_scores import ViewScores, read_scores
from attacks.resizers.pipeline import GIVEN
from attacks.runtime.damage import reading
from attacks.runtime.tables import read_rows
from attacks.runtime.tracking import log_end, log_step
from attacks.runtime.tracking.events import JsonLines
from attacks.schema.composition import compose
from attacks.schema.presets import is_path, is_word
from attacks.schema.validate import Run
from attacks.solvers.selection import LEAVES
from attacks.solvers.trace import Trace
from attacks.study.study import Study
from attacks.verification import agreement


def table(out: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table of the run. Raises Damaged."""
    with reading(f"{name}.csv"):
        return read_rows(out / f"{name}.csv")


def deltas(bench: Bench, out: Path) -> dict[str, Tensor]:
    """The perturbations of a run by arm, on its device. Raises Damaged."""
    study, name = bench.study, "perturbation.safetensors"
    images = study.queries.images.to(study.device)
    shape = study.perturbation.noise(images, torch.Generator().manual_seed(0)).shape
    counts = {len(images), 1} if shape[0] == 1 else {len(images)}  # one for all may be rounded for each picture
    with reading(name):
        saved = load_file(out / name, device=str(study.device))
        if [*saved] != sorted(study.arms[1:]):
            raise ValueError(f"its arms are {agreement.short([*saved])}")
        for arm, delta in saved.items():
            fits = delta.shape[1:] == shape[1:] and len(delta) in counts
            if not fits or not delta.is_floating_point() or not delta.isfinite().all():
                raise ValueError(f"{arm} must be finite floats of the shape {tuple(shape)}")
    return saved


def scores_of(bench: Bench, out: Path) -> ViewScores:
    """The scores of a run. Raises Damaged where they are not of its pictures, banks, arms and gallery."""
    arms, count = [*bench.study.arms], len(bench.study.queries)
    with reading(SCORES):
        saved = read_scores(out)
        for bank, views in bench.banks.items():
            for arm in arms:
                scores, hits = saved.scores[bank][arm], saved.success[bank][arm]
                shapes = {x.shape for x in (*scores, hits) if x is not None}
                low, high = scores.nearest.aminmax()
                if shapes != {(count, len(views.u))} or low < 0 or high >= len(bench.study.gallery):
                    raise ValueError(f"{bank}/{arm}: its scores are not of these pictures, views and gallery")
                if not all(x.isfinite().all() for x in scores if x is not None):
                    raise ValueError(f"{bank}/{arm}: a score is not finite")
        columns = [saved.worst[arm] for arm in arms] + [saved.steps[arm] for arm in arms[2:]]
        if any(column.shape != (count,) for column in columns):
            raise ValueError("worst and step must have a value for each picture")
        worst, steps = {arm: saved.worst[arm] for arm in arms}, {arm: saved.steps[arm] for arm in arms[2:]}
        by_bank = {bank: {arm: saved.scores[bank][arm] for arm in arms} for bank in bench.banks}
        success = {bank: {arm: saved.success[bank][arm] for arm in arms} for bank in bench.banks}
    return ViewScores(by_bank, success, worst, steps)


def composed(run: Run, record: Mapping[str, Any]) -> tuple[list[str], str]:
    """The problems of a configuration that is not what preset and overrides compose to; and why it cannot be composed
    here, or nothing."""
    preset, words = str(record["preset"]), [str(word) for word in record["overrides"] if not _names_preset(word)]
    if any("${" in word for word in words) or is_path(preset) or not is_word(preset):
        return [], f"the preset {agreement.short(preset)} and its overrides are no plain words"
    try:
        made = agreement.plain(asdict(compose(preset, words)))
    except (ValueError, OSError) as error:
        return [], str(error)
    config = agreement.plain(asdict(run))
    if run.encoder.name == MODULE:
        made["encoder"] = config["encoder"]
    if (run.evaluate.pipeline or "").startswith(GIVEN):
        made["evaluate"]["pipeline"] = config["evaluate"]["pipeline"]
    for content in (made, config):  # as decided where the run began, or where it is checked
        del content["engine"]
        content["data"].pop("cache", None)
    return [*agreement.leaves("manifest.json config, of its preset and overrides,", config, made)], ""


def _names_preset(word: object) -> bool:
    return str(word).startswith("config=")


def checked(study: Study, content: Mapping[str, Any]) -> Iterator[str]:
    """The sanity checks: whether they are those of the configuration, and follow from one another."""
    place, sanity = "metrics.json sanity", content["sanity"]
    if (sanity is None) != (study.sanity.pictures == 0):
        yield f"{place}: recorded {'none' if sanity is None else 'some'}, sanity.pictures={study.sanity.pictures}"
    if sanity is None:
        return
    checks = [Check(one["name"], one["verdict"], one["words"]) for one in sanity["checks"]]
    names, failed = [one.name for one in checks], [one.name for one in checks if one.verdict == "failed"]
    if sanity["failed"] != failed:
        yield f"{place} failed: recorded {sanity['failed']}, of its checks {failed}"
    if names == ["all"]:
        if not content["failed"] or checks[0].verdict != "skipped":
            yield f"{place}: none was made, and no picture has failed"
        return
    if sorted(names) != sorted(NAMES):
        yield f"{place}: its checks are {agreement.short(names)}; a run has {agreement.short(sorted(NAMES))}"
    elif (again := masking(checks[:-1])).message != checks[-1].message or again.verdict != checks[-1].verdict:
        yield f"{place} {again.name}: recorded {checks[-1].message!r}, of the other checks {again.message!r}"
    if not sanity["cost"]["forward"] > 0:
        yield f"{place} cost: checks were made, and took no pass of the encoder"


def costs_of(content: Mapping[str, Any], arms: Iterable[str]) -> dict[str, Spent]:
    """The costs in metrics.json, those of all `arms` among them. Raises Damaged."""
    names, costs = [field.name for field in fields(Spent)], content["costs"]
    with reading("metrics.json costs"):
        if lacking := misfit(costs, {name: dict.fromkeys(names, int | float) for name in {*costs, *arms}}):
            raise ValueError(f"`{lacking}` is missing or malformed")
        return {name: Spent(**{key: cost[key] for key in names}) for name, cost in costs.items()}


def attempts(trace: Iterable[Trace]) -> dict[tuple[str, int], list[list[Trace]]]:
    """The steps by arm and batch. A batch that failed was made again picture by picture, each from step 0."""
    made: dict[tuple[str, int], list[list[Trace]]] = defaultdict(list)
    for row in trace:
        if not row.step or not made[row.arm, row.batch]:
            made[row.arm, row.batch].append([])
        made[row.arm, row.batch][-1].append(row)
    return made


def stepped(study: Study, content: Mapping[str, Any], trace: Sequence[Trace]) -> Iterator[str]:
    """The steps of the attack against its configured budget, and the passes that they cost."""
    arms, views = [*study.arms[2:]], study.views
    by_arm: dict[str, list[tuple[int, list[Trace]]]] = defaultdict(list)
    for (arm, batch), tries in attempts(trace).items():
        by_arm[arm] += [(batch, rows) for rows in tries]
    if sorted(by_arm) != sorted(arms):
        yield f"steps.csv: its arms are {[*by_arm]}; the run has {arms}"
        return
    # of any other attack the steps do not say what was asked for
    attack = study.attack
    plain = attack.name == "single" and attack.stop is None and attack.adversary is None
    plain = plain and views.adaptive is None and not study.optimiser.gradient_free
    counted = plain and isinstance(study.risk, Mean) and attack.restarts == 1 and undisturbed(content, trace)
    for arm, cost in costs_of(content, arms).items():
        spent, passes = sum(rows[-1].evals for _, rows in by_arm[arm]), cost.forward - cost.selection
        if arm in arms and counted and spent != passes:
            yield f"steps.csv {arm}: its steps took {spent} passes; metrics.json costs has {passes}"
    for arm in arms:
        for batch, rows in by_arm[arm]:
            place = f"steps.csv {arm}, batch {batch}"
            if [row.step for row in rows] != [*range(len(rows))]:
                yield f"{place}: its steps are not numbered from 0"
            if arm != "eot" or not plain:
                continue
            most, least = views.steps * attack.restarts, math.floor(LEAVES * views.steps)
            if any(row.views != views.per_step for row in rows):
                yield f"{place}: its steps have other views than {views.per_step}"
            if not least <= len(rows) <= most:
                yield f"{place}: it has {len(rows)} steps; the configuration has {most}, at least {least}"


def undisturbed(content: Mapping[str, Any], trace: Sequence[Trace]) -> bool:
    """Whether each step was made in one attempt: then nothing was spent, or noted, that is in no table."""
    once = all(len(tries) == 1 for tries in attempts(trace).values())
    return once and not content["failed"] and not content["fell_back"] and not content["left"]


def followed(out: Path, content: Mapping[str, Any], trace: Sequence[Trace], device: str) -> Iterator[str]:
    """events.jsonl against the steps and the final tables. Steps of worker processes are in no journal; a GPU that
    repeats a step after a stop may give other values."""
    with reading("events.jsonl"):
        lines = (out / "events.jsonl").read_text(encoding="utf-8").splitlines()
        events = {_scalars(event) for event in map(json.loads, lines) if "values" in event}
    steps, final = _Events(out), _Events(out)
    for line in trace:
        log_step(steps, line, line.batch)
    log_end(final, content, out)
    wanted, known = ({_scalars(event) for event in made.events if "values" in event} for made in (final, steps))
    for event in sorted(wanted - events)[: agreement.SHOWN]:
        yield f"events.jsonl: it has no line {agreement.short(event)}, which follows from metrics.json"
    for event in sorted(events - wanted - known)[: agreement.SHOWN]:
        if device == "cpu" and undisturbed(content, trace):
            yield f"events.jsonl: its line {agreement.short(event)} is in neither steps.csv nor metrics.json"


class _Events(JsonLines):
    """Keeps the events that a run in a folder would write."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.events = folder, list[dict[str, Any]]()

    def write(self, **event: Any) -> None:
        self.events.append(event)


def _scalars(event: Mapping[str, Any]) -> str:
    """A line of scalars with the digits of steps.csv. Raises ValueError where it is none."""
    if misfit(event, {"arm": str, "step": int, "values": dict}) is not None:
        raise ValueError("a line of scalars has no arm, step and values")
    values = {name: "" if value is None else f"{float(str(value)):.6g}" for name, value in event["values"].items()}
    return f"{event['arm']}, step {event['step']}: {json.dumps(values)}"
