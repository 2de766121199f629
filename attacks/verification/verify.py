"""Check a finished run: `viewproof verify RUN_DIRECTORY`."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attacks.data.images import read_values
from attacks.encoders.black_box.asked import black_box
from attacks.encoders.black_box.ledger import LEDGER
from attacks.encoders.description import MODULE
from attacks.encoders.engine import Choice, Decision
from attacks.evaluation.retrieval_metrics import thresholds
from attacks.experiment.arms import trace_of
from attacks.experiment.artefact_list import ALWAYS, FILES, METRICS, differences, duplicates_of, planned
from attacks.experiment.bench import SAME, Bench, Place, bench_of
from attacks.experiment.directory import Earlier, misfit, opened, read_json, refuse_program
from attacks.experiment.drawings import draw_sheets, page_values
from attacks.experiment.identity import identity, sources
from attacks.experiment.manifest import DRAWING, manifest, version_of
from attacks.experiment.reopened import rows_in
from attacks.experiment.required import refuse_lacking
from attacks.experiment.results import Facts, metrics
from attacks.experiment.sections.registry import Sections, sections_of
from attacks.experiment.sections.section import SectionResult
from attacks.experiment.view_scores import NAME, ViewScores, placement
from attacks.gate.policy import POLICY, read_policy, refuse_other_threat
from attacks.report import page as report
from attacks.resizers.pipeline import GIVEN
from attacks.runtime.damage import reading
from attacks.runtime.distributed import ALONE
from attacks.runtime.files import sha256
from attacks.runtime.folders import refuse_links
from attacks.runtime.remote import local
from attacks.runtime.values import Damaged
from attacks.schema.validate import Run
from attacks.study.assembly import build
from attacks.study.study import Study
from attacks.verification import agreement, records, rejudged
from attacks.verification.records import costs_of, scores_of, table
from attacks.verification.result import CheckerError, Verification

#: What cannot be recomputed, and why; only the digest covers it.
ONCE = {
    "steps.csv, events.jsonl, metrics.json sanity": (
        "they follow from the steps of the attack, which is not repeated; their number, their passes and what these "
        "records say of one another is checked"
    ),
    "left_out.csv": "its pictures are not kept; the tables in metrics.json are computed from it",
    "metrics.json costs, failed, failed_parts, fell_back, radii passes": "passes, seconds and errors of the run",
    "metrics.json deployment missing, explanations layer and missing": "what was installed, or had no gradient",
}
#: Entries of an identity and of manifest.json that need not be the same today; a difference is a note.
MAY_DIFFER = ("engine.", "the version of ", "the code of ", "the number of ")
MACHINE = ("device", "threads", "processes", "git", "python", "platform")
#: Levels by which a pixel of a drawing may differ on another machine.
LEVELS = 8
#: Without the same versions of these and the same code, drawings and report are other bytes.
DRAWN_WITH = ("viewproof", "pillow", "numpy", *DRAWING)


def verify(
    folder: str | Path,
    sample: float = 0.1,
    module: nn.Module | None = None,
    *,
    pipeline: Callable[[Any], Any] | None = None,
    program: str | None = None,
    device: str | None = None,
    seed: int | None = None,
) -> Verification:
    """Check a finished run. No step of an attack is made.

    Args:
        folder: its directory; also a location of fsspec, such as `zip://run::runs.zip`.
        sample: the share of the views, and of the pictures of each part, that are judged again.
        module: the encoder of a run of a module in memory.
        pipeline: the function of a run that was given one; without it the cosines of detection.csv are not judged
            again, and a note says so.
        program: the file or plug-in of an encoder that runs code, as the user gives it.
        device: instead of that of the run.
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
        In 4 held-out views of each of 2 pictures in 2 clusters, the attack with EOT makes the encoder phash take ...
        >>> verdict.passed, verdict.problems
        (True, ())
    """
    if not 0 < sample <= 1:
        raise ValueError(f"`sample` must be above 0 and at most 1, a share of the views; got {sample:g}")
    with local(folder) as out:
        if not out.is_dir():
            raise FileNotFoundError(f"`verify` must be the directory of a run; there is none at {str(folder)!r}")
        refuse_links(out)
        if not (out / METRICS).is_file():
            if not (out / "manifest.json").is_file():
                raise FileNotFoundError(f"`verify` must be the directory of a run; {folder} has no manifest.json")
            return Verification((f"{METRICS}: it is missing: the run is not finished (resume={folder})",))
        try:
            previous, content = opened(out)
        except (ValueError, OSError) as error:
            return Verification((str(error),))
        files = _guarded(lambda: _files(out, previous, content))
        chosen = rejudged.Drawn(sample, secrets.randbits(32) if seed is None else seed)
        try:
            return _checked(out, content, previous, files, (chosen, module, pipeline, program, device))
        except Damaged as error:
            return Verification((*files, str(error)))


def _files(out: Path, previous: Earlier, content: Mapping[str, Any]) -> Iterator[str]:
    """The digests, and what a finished run has or has not."""
    with reading(FILES):
        sha256(out / FILES)
    yield from differences(out, previous.manifest, content)
    yield from (f"{name}: it is missing" for name in ALWAYS if not (out / name).is_file())


def _checked(out: Path, content: Any, previous: Earlier, files: list[str], options: tuple[Any, ...]) -> Verification:
    chosen, module, pipeline, program, device = options
    run, record = previous.run, previous.manifest
    if run.encoder.name == MODULE and module is None:
        raise ValueError("`encoder` was a module in memory: check this run from Python, verify(folder, module=...)")
    refuse_program(run, program, f"encoder.model={getattr(run.encoder, 'model', None)}")
    run.engine.device = device or run.engine.device
    if getattr(run.data, "cache", None) is not None:
        run.data.cache = None  # nothing is written
    made = build(run, module, pipeline)
    asked, recorded = black_box(made.encoder), 0
    if asked is not None:
        with reading(LEDGER):
            asked.ledger.read(out / LEDGER, (out / LEDGER).read_bytes())
        recorded = len(asked.ledger)
    with reading("manifest.json engine"):
        full = Decision.from_dict(record["engine"]["decision"]).exact
    if run.require is not None:
        with reading(POLICY):
            refuse_lacking(str(out / POLICY), made)
            refuse_other_threat(read_policy(out / POLICY), asdict(run))
    rows = rows_in(made, content)
    bench = bench_of(made, made.encoder, full, Place(out)).only(rows)
    try:
        other = _other_versions(record)
        notes, problems = _same_parts(run, made, record)
        different, reason = ([], other) if other else records.composed(run, record)
        unchecked = [f"manifest.json config with its preset and overrides: {reason}"] if reason else []
        unchecked += [f"report.html and the drawings: {other}"] if other else []
        problems += [*different, *_compared(bench, content, (made, rows), chosen, str(record["device"]))]
        problems += _guarded(lambda: _recomputed(bench, content, record, chosen, drawn=not other))
    except Damaged:
        raise
    except Exception as error:  # of whatever kind: no reader of a file has raised it
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckerError(f"verify itself failed: {reason}; this says nothing about the run") from error
    if made.pipeline is None and run.evaluate.pipeline is not None:
        function = run.evaluate.pipeline.removeprefix(GIVEN)
        notes.append(
            f"detection.csv: its cosines were not judged again, for its pipeline was {function}, a function given in "
            "Python, which no directory holds: verify(folder, pipeline=...)"
        )
    if asked is not None:
        notes.append(
            f"{LEDGER}: its {recorded} answers were used, so whether the encoder gives them today was not checked; "
            f"{len(asked.ledger) - recorded} pictures were asked about anew"
        )
    counts = {name: len(bank.u) for name, bank in bench.banks.items()}
    drawn = {name: chosen.many(count) for name, count in counts.items()}
    views = (f"{drawn[name]} of {count} views of the bank {name}" for name, count in counts.items())
    checked = (
        f"the digests of all files, the configuration and its parts, all tables of {METRICS} and the rows of "
        f"per_image.csv, the drawings and the report, and {len(rows)} pictures of each arm, judged again in "
        f"{' and in '.join(views)}; not recomputed: {'; '.join(ONCE)}"
    )
    queries = bench.study.queries
    clusters = [queries.clusters[row] for row in queries.judged]
    missable = rejudged.missed(clusters, counts[SAME], drawn[SAME])
    return Verification((*files, *problems), tuple(notes), checked, tuple(unchecked), chosen.seed, missable)


def _compared(
    bench: Bench, content: Any, parts: tuple[Study, list[int]], chosen: rejudged.Drawn, device: str
) -> list[str]:
    """The problems of the pictures, of the records of the attack, and of the scores. `parts`: the study of all
    pictures, and which are in the tables, of which the `bench` is."""
    out = bench.exhibits.out

    def pixels() -> Iterator[str]:
        yield from agreement.some(rejudged.pixels(bench, out), "pictures")
        yield from agreement.some(rejudged.noise(bench, *parts, out), "perturbation.safetensors")

    def scores() -> Iterator[str]:
        recorded = scores_of(bench, out)
        yield from agreement.some(rejudged.views(bench, recorded, chosen), NAME)
        yield from agreement.some(rejudged.worst(bench, recorded, chosen), f"{NAME} worst")

    checks = (pixels, lambda: _attacked(bench, content, device), scores)
    return [line for check in checks for line in _guarded(check)]


def _same_parts(run: Run, study: Study, record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Notes and problems: today's parts against manifest.json."""
    decision = Decision.from_dict(record["engine"]["decision"])
    today = manifest(run, study, record["preset"], record["overrides"], Choice(decision, ()), ALONE)
    today = agreement.plain(today | {"artefacts": planned(study, sections_of(study), run.require is not None)})
    now: dict[str, str] = identity(run, study, decision, ALONE, today["versions"])
    was, notes, problems = dict(record["identity"]), list[str](), list[str]()
    other = [name for name in {**was, **now} if was.get(name) != now.get(name)]
    short = agreement.short
    for name in other:
        line = f"{name} was {short(was.get(name))} and is {short(now.get(name))}"
        if name.startswith(MAY_DIFFER):
            notes.append(line)
        else:
            problems.append(f"manifest.json identity: {line}")
    versions = {
        name.removeprefix("the version of "): value for name, value in was.items() if "the version of" in name
    }
    for key, mine, known in (
        ("versions", record["versions"], versions),
        ("engine settings", record["engine"].get("settings"), decision.settings()),
    ):
        problems += agreement.leaves(f"manifest.json {key}", mine, known)
    for key in sorted((today.keys() | record.keys()) - {"identity", "versions", "engine", "config"}):
        differ = [*agreement.leaves(f"manifest.json {key}", record.get(key), today.get(key))]
        (notes if key in MACHINE else problems).extend(agreement.some(differ, f"manifest.json {key}"))
    return notes, problems


def _recomputed(
    bench: Bench, content: dict[str, Any], record: Any, chosen: rejudged.Drawn, drawn: bool
) -> Iterator[str]:
    """metrics.json from the rows of the other files; the rows, the drawings (where `drawn`) and the report from the
    pictures."""
    bench = replace(bench, costs=costs_of(content, bench.study.arms[2:]))
    scores, extras = scores_of(bench, bench.exhibits.out), _sections(bench, content)
    yield from _success(bench, scores)
    yield from _metrics(bench, content, scores, extras, str(record["preset"]))
    tables = {name: result.rows for name, result in extras.results.items()}
    yield from rejudged.sections(bench, tables, chosen)
    if drawn:
        yield from _redrawn(bench, (content, record), scores, extras, chosen)


def _sections(bench: Bench, content: Mapping[str, Any]) -> Sections:
    """The sections as recorded, in their files and, the facts, in metrics.json. Raises Damaged."""
    sections, results = sections_of(bench.study), dict[str, SectionResult]()
    for name, section in sections.items():
        if section is None or name in content["failed_parts"]:
            continue
        rows = table(bench.exhibits.out, name)
        with reading(f"{name}.csv, {METRICS} {name}"):
            if (lacking := misfit(content[name], section.facts)) is not None:
                raise ValueError(f"`{name} {lacking}` is missing or malformed")
            facts, sample = section.recorded_facts(bench, content[name]), section.sample(bench)
            pictures = dict.fromkeys((row["picture"], row["cluster"]) for row in rows)
            if sorted(pictures) != sorted(zip(sample.names, sample.clusters, strict=True)):
                raise ValueError("its pictures and clusters are not those of this run")
        results[name] = SectionResult(rows, facts)
    return Sections(sections, results, {}, dict(content["failed_parts"]))


def _success(bench: Bench, scores: ViewScores) -> Iterator[str]:
    rows = torch.arange(len(bench.study.queries))
    for bank, arms in scores.scores.items():
        for arm, columns in arms.items():
            if not torch.equal(bench.judge.success(columns, rows), scores.success[bank][arm]):
                yield f"{NAME} {bank}/{arm}/success: it does not follow from {bank}/{arm}/nearest"


def _metrics(
    bench: Bench, content: dict[str, Any], scores: ViewScores, extras: Sections, preset: str
) -> Iterator[str]:
    """metrics.json and per_image.csv from the other files."""
    out, study, slack = bench.exhibits.out, bench.study, rejudged.slack_of(bench).cosine
    with reading(f"{METRICS} verification"):
        recorded = (content["verification"] or {"thresholds": {}})["thresholds"]
        limits = {float(far): limit for far, limit in recorded.items()}
    if (impostors := bench.judge.impostors()) is not None:
        was, now = ({f"{far:g}": limit for far, limit in x.items()} for x in (limits, thresholds(impostors)))
        yield from agreement.leaves(f"{METRICS} verification thresholds", was, now, slack)
    sections, tables = {}, dict[str, Sequence[Mapping[str, object]]]()
    for name, section in extras.sections.items():
        with reading(f"{name}.csv, {METRICS} {name}"):
            sections[name] = extras.content(name)
            if section is not None and section.derived and name in extras.results:
                tables[name] = section.derived_rows(extras.results[name].rows)
    again, per_image = metrics(bench, scores, _budget(bench), _facts(bench, content), sections, preset, limits)
    tables["per_image"] = per_image
    tables |= {"duplicates": pairs} if (pairs := duplicates_of(study)) else {}
    for name, rows in tables.items():
        yield from agreement.some(agreement.rows(f"{name}.csv", table(out, name), rows), f"{name}.csv")
    again = agreement.plain(again)
    if "asked" in again:  # not what this check itself has asked
        again["asked"] = (out / LEDGER).read_bytes().count(b"\n")
    for key in again.keys() | (content.keys() - {"files"}):
        if key not in again or key not in content:
            yield f"{METRICS} {key}: {'it is missing' if key in again else 'it is no key of a run'}"
        else:
            tolerance = slack if key == "chance" else agreement.EXACT
            differ = agreement.leaves(f"{METRICS} {key}", content[key], again[key], tolerance)
            yield from agreement.some(differ, f"{METRICS} {key}")
    if study.patch is not None:
        with reading("placement.json"):
            placed = read_json(out / "placement.json")
        now = agreement.plain(placement(study, bench.exhibits.names))
        yield from agreement.leaves("placement.json", placed, now)


def _facts(bench: Bench, content: Mapping[str, Any]) -> Facts:
    """What no file but metrics.json holds; see `ONCE`."""
    return Facts(
        bench.costs,
        content["cost"]["cached"],
        list(content["failed"]),
        content["failed_parts"],
        list(content["fell_back"]),
        content["left"],
        content["sanity"],
    )


def _budget(bench: Bench) -> dict[str, Tensor]:
    """By arm the norm of the change of each picture (N,), from the files."""
    study, rows = bench.study, range(len(bench.study.queries))
    images = study.queries.images.to(study.device)
    return {arm: study.perturbation.norm(bench.exhibits.pictures(arm, rows) - images).cpu() for arm in study.arms}


def _attacked(bench: Bench, content: Mapping[str, Any], device: str) -> Iterator[str]:
    """What the records say of the attack and of its sanity checks."""
    out = bench.exhibits.out
    trace = trace_of(out)
    yield from records.checked(bench.study, content)
    yield from agreement.some(records.stepped(bench.study, content, trace), "steps.csv")
    yield from records.followed(out, content, trace, device)


def _redrawn(
    bench: Bench, contents: tuple[Any, Any], scores: ViewScores, extras: Sections, chosen: rejudged.Drawn
) -> Iterator[str]:
    """The drawings and the report; of explanations and formats the picture that they show is judged again, and the
    views of failures are searched again where everything is. Needs the versions of the libraries that the run had.

    Args:
        contents: of metrics.json and of manifest.json.
    """
    out, meter, results = bench.exhibits.out, bench.meter(), dict[str, SectionResult]()
    for name in extras.results:
        section = extras.sections[name]
        if section is not None and section.figure is not None and (name != "failure" or chosen.share == 1):
            sample = section.sample(bench)
            results[name] = section.rows(bench, sample if name == "failure" else sample.only([0]), meter)
    with TemporaryDirectory() as folder:
        draw_sheets(Path(folder), bench, scores, Sections(extras.sections, results))
        for path in sorted(Path(folder).iterdir()):
            with reading(path.name):
                was, now = read_values(out / path.name).astype(int), read_values(path).astype(int)
            if was.shape != now.shape or np.abs(was - now).max() > LEVELS:
                yield f"{path.name}: it is not what the results of this run look like"
    page = report.page(out, *page_values(bench, *contents, scores)).encode()
    if (out / "report.html").read_bytes() != page:
        yield "report.html: it is not the page of metrics.json, manifest.json, steps.csv and the drawings"


def _other_versions(record: Mapping[str, Any]) -> str:
    """Which versions here are not those that drew the run; empty where all are the same."""
    now: dict[str, str | None] = {name: version_of(name) for name in DRAWN_WITH} | {"code": sources()}
    was = {name: record["versions"].get(name) for name in DRAWN_WITH}
    was["code"] = record["identity"].get("the code of attacks and transforms")
    lines = [
        f"{name} was {str(was[name])[:12]} and is {str(now[name])[:12]}" for name in now if was[name] != now[name]
    ]
    return "; ".join(lines)


def _guarded(lines: Callable[[], Iterable[str]]) -> list[str]:
    """The lines of a check; one more where a file that it reads is damaged."""
    found: list[str] = []
    try:
        for line in lines():
            found.append(line)
    except Damaged as error:
        found.append(str(error))
    return found
