"""Check a finished run: `viewproof verify RUN_DIRECTORY`."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from attacks.data.images import read_values
from attacks.encoders.black_box.asked import LEDGER, black_box, recorded_answers
from attacks.encoders.description import MODULE
from attacks.encoders.engine import Choice, Decision
from attacks.evaluation.retrieval import thresholds
from attacks.experiment import directory
from attacks.experiment.arms import trace_of
from attacks.experiment.bench import MAIN, Bench, Place, bench_of
from attacks.experiment.directory import FILES, METRICS, PreviousRun
from attacks.experiment.drawings import draw_sheets, report_page
from attacks.experiment.identity import promises, run_identity, sources
from attacks.experiment.preparation import DRAWING, manifest, rows_in, version_of
from attacks.experiment.required import refuse_lacking
from attacks.experiment.result import with_start
from attacks.experiment.results import RunFigures, metrics
from attacks.experiment.sections.section import SectionResult, Sections, rows_of_section, sections_of
from attacks.experiment.times import time_problems
from attacks.experiment.view_scores import NAME, ViewScores
from attacks.gate.lock import policy_record
from attacks.gate.policy import POLICY, read_policy, refuse_other_threat
from attacks.resizers.pipeline import GIVEN
from attacks.runtime.distributed import ALONE
from attacks.runtime.files import sha256
from attacks.runtime.plugins import given
from attacks.runtime.untrusted import refuse_links
from attacks.runtime.values import Damaged, reading
from attacks.schema.encoder import BLACK_BOXES
from attacks.schema.run import SECTIONS
from attacks.schema.validate import Run
from attacks.study.assembly import build
from attacks.study.study import Study
from attacks.verification import judgement, records
from attacks.verification.records import CheckerError, CheckResult, costs_of, run_rows, scores_of

#: What follows from the steps of the attack, which is not repeated, from pictures that are not kept, from passes,
#: seconds and errors of the run, or from what was installed: only the digest covers it.
UNCOMPUTABLE = (
    "steps.csv, events.jsonl, metrics.json sanity; left_out.csv; metrics.json costs, failed, failed_parts, "
    "fell_back, radii passes; metrics.json deployment missing, explanations layer and missing"
)
#: Entries of an identity and of manifest.json that need not be the same today; a difference is a note.
MAY_DIFFER = ("engine.", "the version of ", "the code of ", "the number of ")
MACHINE = ("device", "threads", "processes", "git", "python", "platform", "cpu")
#: Levels by which a pixel of a drawing may differ on another machine.
LEVELS = 8
#: Without the same versions of these and the same code, drawings and report are other bytes.
DRAWING_VERSIONS = ("viewproof", "pillow", "numpy", *DRAWING)


def verify(
    folder: str | Path,
    sample: float = 0.1,
    module: nn.Module | None = None,
    *,
    pipeline: Callable[[Any], Any] | None = None,
    program: str | None = None,
    device: str | None = None,
    seed: int | None = None,
    parts: Mapping[str, Any] = MappingProxyType({}),
) -> CheckResult:
    """Check a finished run. No step of an attack is repeated.

    Args:
        folder: its directory.
        sample: the share of the views, and of the pictures of each part, that are judged again.
        module: the encoder of a run of a module in memory.
        pipeline: the function of a run that was given one; without it the cosines of detection.csv are not judged
            again, and a note says so.
        program: the file or plug-in of an encoder that runs code, as the user gives it.
        device: instead of that of the run.
        parts: the objective, optimiser or perturbation that the run was given in Python, by this name.
        seed: of the sample of views; fresh randomness if None, so that who made the run cannot foresee it.

    Raises ValueError or OSError, in one line, where there is no run, or where its encoder or pictures cannot be
    loaded; CheckerError where the check itself fails.

    Examples:
        >>> import tempfile
        >>> import torch
        >>> from attacks import robustness, verify
        >>> pictures = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> small = {"preset": "smoke", "steps": 1, "data.size": 32, "evaluate.views": 4}
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +ELLIPSIS
        ...     verdict = verify(robustness("phash", pictures, out=f"{folder}/run", **small).folder)
        encoder: phash; weights none; ...
        >>> verdict.passed, verdict.problems
        (True, ())
    """
    if not 0 < sample <= 1:
        raise ValueError(f"`sample` must be above 0 and at most 1, a share of the views; got {sample:g}")
    out = Path(folder)
    if not out.is_dir():
        raise FileNotFoundError(f"`verify` must be the directory of a run; there is none at {str(folder)!r}")
    refuse_links(out)
    if not (out / METRICS).is_file():
        if not (out / "manifest.json").is_file():
            raise FileNotFoundError(f"`verify` must be the directory of a run; {folder} has no manifest.json")
        return CheckResult((f"{METRICS}: it is missing: the run is not finished (resume={folder})",))
    try:
        previous, content = directory.open_run(out)
    except (ValueError, OSError) as error:
        return CheckResult((str(error),))
    files = _caught_lines(lambda: _files(out, previous, content))
    portion = judgement.Portion(sample, secrets.randbits(32) if seed is None else seed)
    try:
        with given(parts):
            return _check_run(out, content, previous, files, (portion, module, pipeline, program, device))
    except Damaged as error:
        return CheckResult((*files, str(error)))


def _files(out: Path, previous: PreviousRun, content: Mapping[str, Any]) -> Iterator[str]:
    """The digests, and what a finished run has or has not."""
    with reading(FILES):
        sha256(out / FILES)
    yield from directory.artefact_differences(out, previous.manifest, content)
    yield from time_problems(out, previous.manifest)
    yield from (f"{name}: it is missing" for name in directory.CORE_FILES if not (out / name).is_file())


def _check_run(
    out: Path, content: Any, previous: PreviousRun, files: list[str], options: tuple[Any, ...]
) -> CheckResult:
    portion, module, pipeline, program, device = options
    run, record = previous.run, previous.manifest
    if run.encoder.name == MODULE and module is None:
        raise ValueError("`encoder` was a module in memory: check this run from Python, verify(folder, module=...)")
    directory.refuse_program(run, program, f"encoder.model={getattr(run.encoder, 'model', None)}")
    run.engine.device = device or run.engine.device
    if getattr(run.data, "cache", None) is not None:
        run.data.cache = None  # nothing is written
    with reading(LEDGER):
        answers = recorded_answers(out / LEDGER) if run.encoder.name in BLACK_BOXES else {}
    study = with_start(run, build(run, module, pipeline, answers=answers))
    with reading("manifest.json engine"):
        full = Decision.from_dict(record["engine"]["decision"]).exact
    if run.require is not None:
        with reading(POLICY):
            refuse_lacking(str(out / POLICY), study)
            refuse_other_threat(read_policy(out / POLICY), asdict(run))
            policy_record(str(out / POLICY))
    rows = rows_in(study, content)
    bench = bench_of(study, study.encoder, full, Place(out)).only(rows)
    try:
        other = _other_versions(record)
        notes, problems = _same_parts(out, run, study, record)
        different, reason = ([], other) if other else records.composition_problems(run, record)
        gaps = [f"manifest.json config with its preset and overrides: {reason}"] if reason else []
        gaps += [f"report.html and the drawings: {other}"] if other else []
        problems += [*different, *_attack_problems(bench, content, (study, rows), portion)]
        problems += _caught_lines(lambda: _record_problems(bench, content, record, portion, with_drawings=not other))
    except Damaged:
        raise
    except Exception as error:  # of whatever kind: no reader of a file has raised it
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckerError(f"verify itself failed: {reason}; this says nothing about the run") from error
    if study.pipeline is None and run.evaluate.pipeline is not None:
        function = run.evaluate.pipeline.removeprefix(GIVEN)
        notes.append(
            f"detection.csv: its cosines were not judged again, for its pipeline was {function}, a function given in "
            "Python, which no directory holds: verify(folder, pipeline=...)"
        )
    if (program_encoder := black_box(study.encoder)) is not None:
        notes.append(
            f"{LEDGER}: its {len(answers)} answers were used, so whether the encoder gives them today was not checked"
            f"; {len(program_encoder.ledger) - len(answers)} pictures were asked about anew"
        )
    counts = {name: len(bank.u) for name, bank in bench.banks.items()}
    views = (f"{portion.size(count)} of {count} views of the bank {name}" for name, count in counts.items())
    words = (
        f"the digests of all files, the configuration and its parts, all tables of {METRICS} and the rows of "
        f"per_image.csv, the drawings and the report, and {len(rows)} pictures of each arm, judged again in "
        f"{' and in '.join(views)}; not recomputed: {UNCOMPUTABLE}"
    )
    queries = bench.study.queries.take(bench.study.queries.judged)
    missable = judgement.missable_change(queries.clusters, counts[MAIN], portion.size(counts[MAIN]), queries.weights)
    return CheckResult((*files, *problems), tuple(notes), words, tuple(gaps), portion.seed, missable)


def _attack_problems(
    bench: Bench, content: Any, parts: tuple[Study, list[int]], portion: judgement.Portion
) -> list[str]:
    """Problems of pictures, steps and scores. `parts`: the study of all pictures, and the rows of the tables."""
    out = bench.exhibits.out
    checks: dict[str, Callable[[], Iterable[str]]] = {
        "pictures": lambda: judgement.picture_problems(bench, out),
        "perturbation.safetensors": lambda: judgement.noise_problems(bench, *parts, out),
        "metrics.json sanity": lambda: records.sanity_problems(bench.study, content),
        "steps.csv": lambda: records.step_problems(bench.study, content, trace_of(out)),
        NAME: lambda: judgement.view_problems(bench, scores_of(bench, out), portion),
        f"{NAME} worst": lambda: judgement.worst_problems(bench, scores_of(bench, out), portion),
    }
    lines = (line for name, check in checks.items() for line in records.first_lines(_caught_lines(check), name))
    return [*dict.fromkeys(lines)]  # a damaged file is one line


def _same_parts(out: Path, run: Run, study: Study, record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Notes and problems: today's parts against manifest.json."""
    decision = Decision.from_dict(record["engine"]["decision"])
    if run.require is not None:
        run = replace(run, require=str(out / POLICY))
    today = records.as_json(manifest(run, study, record["preset"], record["overrides"], Choice(decision, ()), ALONE))
    current: dict[str, str] = run_identity(run, study, decision, ALONE, today["versions"]) | promises(today)
    was, notes, problems = dict(record["identity"]), list[str](), list[str]()
    for name in [name for name in {**was, **current} if was.get(name) != current.get(name)]:
        line = f"{name} was {records.abridge(was.get(name))} and is {records.abridge(current.get(name))}"
        if name.startswith(MAY_DIFFER):
            notes.append(line)
        else:
            problems.append(f"manifest.json identity: {line}")
    prefix, settings = "the version of ", record["engine"].get("settings")
    versions = {name.removeprefix(prefix): value for name, value in was.items() if prefix in name}
    problems += records.value_differences("manifest.json versions", record["versions"], versions)
    problems += records.value_differences("manifest.json engine settings", settings, decision.settings())
    for key in sorted((today.keys() | record.keys()) - {"identity", "versions", "engine", "config", "started"}):
        differ = [*records.value_differences(f"manifest.json {key}", record.get(key), today.get(key))]
        (notes if key in MACHINE else problems).extend(records.first_lines(differ, f"manifest.json {key}"))
    return notes, problems


def _record_problems(
    bench: Bench, content: dict[str, Any], record: Any, portion: judgement.Portion, with_drawings: bool
) -> Iterator[str]:
    """metrics.json from the rows of the other files; rows and drawings (if `with_drawings`) from the pictures."""
    bench = replace(bench, costs=costs_of(content, bench.study.arms[2:]))
    scores, extras = scores_of(bench, bench.exhibits.out), _sections(bench, content)
    pictures = torch.arange(len(bench.study.queries))
    for bank, arms in scores.scores.items():
        for arm, columns in arms.items():
            if not torch.equal(bench.judge.success(columns, pictures), scores.success[bank][arm]):
                yield f"{NAME} {bank}/{arm}/success: it does not follow from the other columns of {bank}/{arm}"
    yield from _metrics(bench, content, scores, extras, str(record["preset"]))
    tables = {name: result.rows for name, result in extras.results.items()}
    yield from judgement.section_problems(bench, tables, portion)
    if with_drawings:
        yield from _redrawn(bench, (content, record), scores, extras, portion)


def _sections(bench: Bench, content: Mapping[str, Any]) -> Sections:
    """The sections as recorded. Raises Damaged."""
    sections, results = sections_of(bench.study), dict[str, SectionResult]()
    for name, section in sections.items():
        if name in content["failed_parts"]:
            continue
        rows = run_rows(bench.exhibits.out, name)
        with reading(f"{name}.csv, {METRICS} {name}"):
            if (lacking := directory.misfit(content[name], section.facts)) is not None:
                raise ValueError(f"`{name} {lacking}` is missing or malformed")
            facts, sample = section.recorded_facts(bench, content[name]), section.sample(bench)
            pictures = dict.fromkeys((row["picture"], row["cluster"]) for row in rows)
            if sorted(pictures) != sorted(zip(sample.names, sample.clusters, strict=True)):
                raise ValueError("its pictures and clusters are not those of this run")
        results[name] = SectionResult(rows, facts)
    return Sections(sections, results, {}, dict(content["failed_parts"]))


def _metrics(
    bench: Bench, content: dict[str, Any], scores: ViewScores, extras: Sections, preset: str
) -> Iterator[str]:
    """metrics.json and per_image.csv from the other files."""
    out, study, slack = bench.exhibits.out, bench.study, judgement.slack_of(bench).cosine
    with reading(f"{METRICS} verification"):
        old_limits = (content["verification"] or {"thresholds": {}})["thresholds"]
        limits = {float(far): limit for far, limit in old_limits.items()}
    if (impostors := bench.judge.impostors()) is not None:
        was, today = ({f"{far:g}": limit for far, limit in x.items()} for x in (limits, thresholds(impostors)))
        yield from records.value_differences(f"{METRICS} verification thresholds", was, today, slack)
    sections, tables = {}, dict[str, Sequence[Mapping[str, object]]]()
    for name in SECTIONS:
        with reading(f"{name}.csv, {METRICS} {name}"):
            sections[name] = extras.content(name)
            if name in extras.results and extras.sections[name].derived:
                tables[name] = extras.sections[name].derived_rows(extras.results[name].rows)
    names = ("failed", "failed_parts", "fell_back", "left", "sanity")  # which no other file holds: `UNCOMPUTABLE`
    facts = RunFigures(bench.costs, content["cost"]["cached"], *(content[name] for name in names))
    norm, pictures = study.perturbation.norm, bench.exhibits.pictures
    budget = {
        arm: torch.cat([norm(pictures(arm, rows) - pictures("clean", rows)).cpu() for rows in study.ranges])
        for arm in study.arms
    }
    new, per_image = metrics(bench, scores, budget, facts, sections, preset, limits)
    tables["per_image"] = per_image
    tables |= {"duplicates": pairs} if (pairs := study.duplicates) else {}
    for name, rows in tables.items():
        differ = records.row_differences(f"{name}.csv", run_rows(out, name), rows)
        yield from records.first_lines(differ, f"{name}.csv")
    new = records.as_json(new)
    if "asked" in new:  # not what this check itself has asked
        new["asked"] = (out / LEDGER).read_bytes().count(b"\n")
    for key in new.keys() | (content.keys() - {"files"}):
        if key not in new or key not in content:
            yield f"{METRICS} {key}: {'it is missing' if key in new else 'it is no key of a run'}"
        else:
            tolerance = slack if key == "chance" else records.EXACT
            differ = records.value_differences(f"{METRICS} {key}", content[key], new[key], tolerance)
            yield from records.first_lines(differ, f"{METRICS} {key}")
    if study.patch is not None:
        with reading("placement.json"):
            places = directory.read_json(out / "placement.json")
        new_places = records.as_json(asdict(study.patch))
        yield from records.value_differences("placement.json", places, new_places)


def _redrawn(
    bench: Bench, contents: tuple[Any, Any], scores: ViewScores, extras: Sections, portion: judgement.Portion
) -> Iterator[str]:
    """The drawings and the report, of which the `contents` are metrics.json and manifest.json; of explanations and
    formats the picture that they show is judged again, and the views of failures are searched where everything is."""
    out, meter, results = bench.exhibits.out, bench.meter(), dict[str, SectionResult]()
    for name in extras.results:
        section = extras.sections[name]
        if section.figure is not None and (name != "failure" or portion.share == 1):
            sample = section.sample(bench)
            part = sample if name == "failure" else sample.only([0])
            results[name] = rows_of_section(section, bench, part, meter)
    with TemporaryDirectory() as folder:
        draw_sheets(Path(folder), bench, scores, Sections(extras.sections, results))
        for path in sorted(Path(folder).iterdir()):
            with reading(path.name):
                old, new = (read_values(p).astype(int) for p in (out / path.name, path))
            if old.shape != new.shape or np.abs(old - new).max() > LEVELS:
                yield f"{path.name}: it is not what the results of this run look like"
    page = report_page(bench, *contents, scores).encode()
    if (out / "report.html").read_bytes() != page:
        yield "report.html: it is not the page of metrics.json, manifest.json, steps.csv and the drawings"


def _other_versions(record: Mapping[str, Any]) -> str:
    """Which versions here are not those that drew the run; empty where all are the same."""
    versions: dict[str, str | None] = {name: version_of(name) for name in DRAWING_VERSIONS} | {"code": sources()}
    was = {name: record["versions"].get(name) for name in DRAWING_VERSIONS}
    was["code"] = record["identity"].get("the code of attacks and transforms")
    differ = [name for name in versions if was[name] != versions[name]]
    return "; ".join(f"{name} was {str(was[name])[:12]} and is {str(versions[name])[:12]}" for name in differ)


def _caught_lines(lines: Callable[[], Iterable[str]]) -> list[str]:
    """The lines of a check; one more where a file that it reads is damaged."""
    problems: list[str] = []
    try:
        problems.extend(lines())  # those before the error stay
    except Damaged as error:
        problems.append(str(error))
    return problems
