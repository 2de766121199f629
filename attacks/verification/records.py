"""The records of a run: what they say of one another and of what was recomputed; and the result of the check."""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.encoders.description import MODULE
from attacks.encoders.passes import passes_of
from attacks.eot.risk import Mean
from attacks.evaluation.sanity.battery import NAMES, masking
from attacks.evaluation.sanity.check import Check
from attacks.evaluation.sanity.questions import THROUGH_DEFENCE
from attacks.experiment.bench import Bench, Cost
from attacks.experiment.directory import misfit
from attacks.experiment.result import read_deltas
from attacks.experiment.view_scores import NAME as SCORES
from attacks.experiment.view_scores import ViewScores, read_scores
from attacks.resizers.pipeline import GIVEN
from attacks.runtime.tables import cell, read_rows, unescaped_text
from attacks.runtime.values import reading
from attacks.schema.composition import compose
from attacks.schema.presets import is_path, is_word
from attacks.schema.validate import Run
from attacks.solvers.loop import Trace
from attacks.solvers.selection import LEAVES
from attacks.study.study import BARE, Study

#: Numbers are the same values in another order of sums; so far apart they may be, absolutely and relatively.
EXACT, CSV_EXACT = 1e-9, 1e-12
#: The most lines for one file or column.
LINES = 5


class CheckerError(RuntimeError):
    """`verify` itself failed, which says nothing about the run."""


@dataclass(frozen=True)
class CheckResult:
    """A line for each thing that does not agree, what may differ between machines, and what was checked.

    `unchecked` could not be compared here. `seed` is that of the sample, and `missable` the largest change of an
    arm's mean `success` by altered views that the sample misses with a probability above 5 %."""

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    checked: str = ""
    unchecked: tuple[str, ...] = ()
    seed: int | None = None
    missable: float | None = None

    @property
    def passed(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        lines = [f"note: {note}" for note in self.notes]
        lines += [f"NOT COMPARED: {line}" for line in self.unchecked]
        if self.missable is not None:
            lines.append(
                f"sample: seed {self.seed} (--seed {self.seed} repeats it); with a probability above 5 % it misses "
                f"altered views that change the mean success of an arm by up to {self.missable:.3f}, or its mean "
                f"cosine by up to {2 * self.missable:.3f}; --sample 1 misses none"
            )
        word = "PASS, except what was not compared" if self.unchecked else "PASS"
        return "\n".join([*lines, *(self.problems or (f"{word}: {self.checked}",))])


def first_lines(lines: Iterable[str], name: str) -> Iterator[str]:
    """The first few lines, and how many more there are."""
    listing = [*lines]
    yield from listing[:LINES]
    if len(listing) > LINES:
        yield f"{name}: {len(listing) - LINES} more do not agree"


def value_differences(name: str, old: Any, new: Any, tolerance: float = EXACT) -> Iterator[str]:
    """A line for each value that differs in two JSON contents, `old` as recorded and `new` as recomputed."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in old.keys() - new.keys():
            yield f"{name} {key}: {abridge(old[key])} is recorded, and there is none"
        for key in new.keys() - old.keys():
            yield f"{name} {key}: it is missing; recomputed {abridge(new[key])}"
        for key in old.keys() & new.keys():
            yield from value_differences(f"{name} {key}", old[key], new[key], tolerance)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, pair in enumerate(zip(old, new, strict=True)):
            yield from value_differences(f"{name} {i}", *pair, tolerance)
    elif not _same_value(old, new, tolerance):
        yield f"{name}: recorded {abridge(old)}, recomputed {abridge(new)}"


def as_json(content: Any) -> Any:
    """A content as it comes back from its JSON."""
    return json.loads(json.dumps(content))


def row_differences(
    name: str, old: Sequence[Mapping[str, str]], new: Sequence[Mapping[str, object]]
) -> Iterator[str]:
    """A line for each cell of a table that is not the same, `old` as recorded and `new` as recomputed."""
    for number, (old_row, row) in enumerate(zip_longest(old, new), start=2):  # the header is line 1
        if old_row is None or row is None:
            yield f"{name}: it has {len(old)} rows; recomputed {len(new)}"
            return
        if [*old_row] != [*row]:
            yield f"{name} line {number}: its columns are {abridge([*old_row])}; recomputed {abridge([*row])}"
            return
        for column, value in row.items():
            old_text, text = old_row[column], unescaped_text(str(cell(value)))
            if old_text != text and not (isinstance(value, float) and _close(old_text, value)):
                yield f"{name} line {number}, {column}: recorded {abridge(old_text)}, recomputed {abridge(text)}"


def abridge(value: object) -> str:
    """A value for a message."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _same_value(old: Any, new: Any, tolerance: float) -> bool:
    if {type(old), type(new)} in ({float}, {int, float}):
        return math.isclose(old, new, rel_tol=tolerance, abs_tol=tolerance)
    return bool(old == new and type(old) is type(new))


def _close(text: str, value: float) -> bool:
    try:
        return math.isclose(float(text), value, rel_tol=CSV_EXACT, abs_tol=CSV_EXACT)
    except ValueError:
        return False


def run_rows(out: Path, name: str) -> list[dict[str, str]]:
    """The rows of a table of the run. Raises Damaged."""
    with reading(f"{name}.csv"):
        return read_rows(out / f"{name}.csv")


def deltas(bench: Bench, out: Path) -> dict[str, list[Tensor]]:
    """By arm the perturbations, or a patch's texture, as 8-bit files hold them, on the device. Raises Damaged."""
    study, images = bench.study, bench.study.queries.images.to(bench.study.device)
    by_arm = read_deltas(out, study.perturbation, study.arms[1:], study.queries.shapes)
    on_device = {arm: [delta.to(study.device) for delta in rows] for arm, rows in by_arm.items()}
    if not study.perturbation.shared:
        return on_device
    return {arm: [*study.perturbation.quantise(torch.stack(rows), images)] for arm, rows in on_device.items()}


def scores_of(bench: Bench, out: Path) -> ViewScores:
    """The scores of a run. Raises Damaged where they are not of its pictures, banks, arms and gallery."""
    arms, count = [*bench.study.arms], len(bench.study.queries)
    with reading(SCORES):
        file = read_scores(out)
        by_bank = {bank: {arm: file.scores[bank][arm] for arm in arms} for bank in bench.banks}
        success = {bank: {arm: file.success[bank][arm] for arm in arms} for bank in bench.banks}
        worst, steps = {arm: file.worst[arm] for arm in arms}, {arm: file.steps[arm] for arm in arms[2:]}
        for bank, arm in product(bench.banks, arms):
            columns = [x for x in (*by_bank[bank][arm], success[bank][arm]) if x is not None]
            low, high = by_bank[bank][arm].nearest.aminmax()
            expected = {(count, len(bench.banks[bank].u))}
            if {x.shape for x in columns} != expected or low < 0 or high >= len(bench.study.gallery):
                raise ValueError(f"{bank}/{arm}: its scores are not of these pictures, views and gallery")
            if not all(x.isfinite().all() for x in columns):
                raise ValueError(f"{bank}/{arm}: a score is not finite")
        if any(column.shape != (count,) for column in (*worst.values(), *steps.values())):
            raise ValueError("worst and step must have a value for each picture")
    return ViewScores(by_bank, success, worst, steps)


def composition_problems(run: Run, record: Mapping[str, Any]) -> tuple[list[str], str]:
    """Where the configuration is not what preset and overrides compose to; and why it cannot be composed here."""
    preset, overrides = str(record["preset"]), map(str, record["overrides"])
    words = [word for word in overrides if not word.startswith("config=")]
    if any("${" in word for word in words) or is_path(preset) or not is_word(preset):
        return ([], f"the preset {abridge(preset)} and its overrides are no plain words")
    try:
        reference = as_json(asdict(compose(preset, words)))
    except (ValueError, OSError) as error:
        return [], str(error)
    config = as_json(asdict(run))
    if run.encoder.name == MODULE:
        reference["encoder"] = config["encoder"]
    if (run.evaluate.pipeline or "").startswith(GIVEN):
        reference["evaluate"]["pipeline"] = config["evaluate"]["pipeline"]
    for content in (reference, config):  # as decided where the run began, or where it is checked
        del content["engine"]
        content["data"].pop("cache", None)
    return [*value_differences("manifest.json config, of its preset and overrides,", config, reference)], ""


def sanity_problems(study: Study, content: Mapping[str, Any]) -> Iterator[str]:
    """The sanity checks: whether they are those of the configuration, and follow from one another."""
    place, sanity = "metrics.json sanity", content["sanity"]
    if (sanity is None) != (study.sanity.pictures == 0):
        yield f"{place}: recorded {'none' if sanity is None else 'some'}, sanity.pictures={study.sanity.pictures}"
    if sanity is None:
        return
    checks = [Check(check["name"], check["verdict"], check["words"]) for check in sanity["checks"]]
    names, failed = ([check.name for check in checks], [check.name for check in checks if check.verdict == "failed"])
    if sanity["failed"] != failed:
        yield f"{place} failed: recorded {sanity['failed']}, of its checks {failed}"
    if names == ["all"]:
        if not content["failed"] or checks[0].verdict != "skipped":
            yield f"{place}: none was made, and no picture has failed"
        return
    expected = sorted([*NAMES, *([] if study.bare is None else [THROUGH_DEFENCE])])
    if sorted(names) != expected:
        yield f"{place}: its checks are {abridge(names)}; a run has {abridge(expected)}"
    elif (verdict := masking(checks[:-1])).message != checks[-1].message or verdict.verdict != checks[-1].verdict:
        yield f"{place} {verdict.name}: recorded {checks[-1].message!r}, of the other checks {verdict.message!r}"
    if not sanity["cost"]["forward"] > 0:
        yield f"{place} cost: checks were made, and took no pass of the encoder"


def costs_of(content: Mapping[str, Any], arms: Iterable[str]) -> dict[str, Cost]:
    """The costs in metrics.json, those of all `arms` among them. Raises Damaged."""
    names, costs = [field.name for field in fields(Cost)], content["costs"]
    with reading("metrics.json costs"):
        if lacking := misfit(costs, {name: dict.fromkeys(names, int | float) for name in {*costs, *arms}}):
            raise ValueError(f"`{lacking}` is missing or malformed")
        return {name: Cost(**{key: cost[key] for key in names}) for name, cost in costs.items()}


def attempts(trace: Iterable[Trace]) -> list[tuple[str, int, list[Trace]]]:
    """The arm, the batch and the steps of each attempt: a batch that failed was made again picture by picture."""
    by_batch: dict[tuple[str, int], list[list[Trace]]] = defaultdict(list)
    for row in trace:
        if not row.step or not by_batch[row.arm, row.batch]:
            by_batch[row.arm, row.batch].append([])
        by_batch[row.arm, row.batch][-1].append(row)
    return [(arm, batch, rows) for (arm, batch), lists in by_batch.items() for rows in lists]


def step_problems(study: Study, content: Mapping[str, Any], trace: Sequence[Trace]) -> Iterator[str]:
    """The steps of the attack against its configured budget, and the passes that they cost."""
    arms, views, attack, tries = [*study.arms[2:]], study.views, study.attack, attempts(trace)
    if sorted(names := dict.fromkeys(arm for arm, *_ in tries)) != sorted(arms):
        yield f"steps.csv: its arms are {[*names]}; the run has {arms}"
        return
    # of any other attack the steps do not say what was asked for
    is_plain = attack.name == "single" and attack.stop is None and attack.adversary is None
    is_plain = is_plain and views.adaptive is None and not study.optimiser.gradient_free
    # then more was spent than is in tables
    is_repeated = content["failed"] or content["fell_back"] or content["left"]
    costs = costs_of(content, arms)
    for arm in arms if is_plain and isinstance(study.risk, Mean) and attack.restarts == 1 and not is_repeated else ():
        evals = sum(rows[-1].evals for name, _, rows in tries if name == arm)
        subject = (study.bare if arm == BARE else None) or study
        encoders, passes = (subject.encoder, *study.members), costs[arm].forward - costs[arm].selection
        expected = evals * sum(passes_of(encoder).forward for encoder in encoders)
        if expected != passes:
            yield f"steps.csv {arm}: its steps took {expected} passes; metrics.json costs has {passes}"
    limit, minimum = views.steps * attack.restarts * len(attack.prices), math.floor(LEAVES * views.steps)
    for arm, batch, rows in tries:
        place = f"steps.csv {arm}, batch {batch}"
        if [row.step for row in rows] != [*range(len(rows))]:
            yield f"{place}: its steps are not numbered from 0"
        if arm == "eot" and is_plain and any(row.views != views.per_step for row in rows):
            yield f"{place}: its steps have other views than {views.per_step}"
        if arm == "eot" and is_plain and not minimum <= len(rows) <= limit:
            yield f"{place}: it has {len(rows)} steps; the configuration has {limit}, at least {minimum}"
