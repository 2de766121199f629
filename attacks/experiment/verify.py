"""Check a finished run: `viewproof verify RUN_DIRECTORY`. Its files against their digests, its numbers
against the files that they follow from, and its pictures, judged again by the encoder."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attacks.encoders.black_box.asked import black_box
from attacks.encoders.black_box.ledger import LEDGER
from attacks.encoders.description import MODULE
from attacks.encoders.engine import Choice, Decision
from attacks.evaluation.clusters import Sample
from attacks.evaluation.retrieval_metrics import thresholds
from attacks.experiment import agreement, judged_again, records
from attacks.experiment.artefact_list import ALWAYS, FILES, METRICS, differences, duplicates_of, planned
from attacks.experiment.artifacts import placement
from attacks.experiment.batch import SAME, Bench
from attacks.experiment.directory import Earlier, opened, read_json, refuse_program
from attacks.experiment.drawings import redrawn
from attacks.experiment.experiment import bench_of, narrowed
from attacks.experiment.failure import failures_of
from attacks.experiment.identity import identity, sources
from attacks.experiment.manifest import DRAWING, manifest, version_of
from attacks.experiment.rebuilt import outcome_of, sections_of
from attacks.experiment.records import reading, scores_of, table, trace_of
from attacks.experiment.required import refuse_lacking
from attacks.experiment.results import metrics
from attacks.experiment.sections import Section, Sections, deployment_of, explanations_of, sample_of
from attacks.experiment.view_scores import NAME
from attacks.gate.policy import POLICY
from attacks.resizers.pipeline import GIVEN
from attacks.runtime.distributed import ALONE
from attacks.runtime.files import sha256
from attacks.runtime.folders import refuse_links
from attacks.runtime.remote import local
from attacks.runtime.values import Damaged
from attacks.schema.patch import PatchConfig
from attacks.study.assembly import build
from attacks.study.study import Parts

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
#: Without the same versions of these and the same code, drawings and report are other bytes.
DRAWN_WITH = ("viewproof", "pillow", "numpy", *DRAWING)


class CheckerError(RuntimeError):
    """`verify` itself failed, which says nothing about the run."""


@dataclass(frozen=True)
class Verdict:
    """A line for each thing that does not agree, what may differ between machines, and what was checked.

    `unchecked` has a line for what could not be compared here. `seed` is that of the sample, and `missable` the
    largest change of the mean `success` of an arm, by altered views, that the sample misses with a probability above
    5 %; the cosine of a view may change by 2, so that of the mean cosine is twice as large."""

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    checked: str = ""
    unchecked: tuple[str, ...] = ()
    seed: int | None = None
    missable: float | None = None

    @property
    def passed(self) -> bool:
        """Whether everything agrees."""
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


def verify(
    folder: str | Path,
    sample: float = 0.1,
    module: nn.Module | None = None,
    *,
    pipeline: Callable[[Any], Any] | None = None,
    program: str | None = None,
    device: str | None = None,
    seed: int | None = None,
) -> Verdict:
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
            return Verdict((f"{METRICS}: it is missing: the run is not finished (resume={folder})",))
        try:
            previous, content = opened(out)
        except (ValueError, OSError) as error:
            return Verdict((str(error),))
        files = _guarded(lambda: _files(out, previous, content))
        chosen = judged_again.Drawn(sample, secrets.randbits(32) if seed is None else seed)
        try:
            return _checked(out, content, previous, files, (chosen, module, pipeline, program, device))
        except Damaged as error:
            return Verdict((*files, str(error)))


def _files(out: Path, previous: Earlier, content: Mapping[str, Any]) -> Iterator[str]:
    """The digests, and what a finished run has or has not."""
    with reading(FILES):
        sha256(out / FILES)
    yield from differences(out, previous.manifest, content)
    yield from (f"{name}: it is missing" for name in ALWAYS if not (out / name).is_file())


def _checked(out: Path, content: Any, previous: Earlier, files: list[str], options: tuple[Any, ...]) -> Verdict:
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
            refuse_lacking(replace(run, require=str(out / POLICY)), made)
    everyone, _, _ = bench_of(run, made, made.encoder, full, ALONE, out)
    gone = {failure["picture"] for failure in content["failed"]}
    kept = [row for row in range(len(made.queries) - content["left"]) if row not in gone]
    bench = narrowed(everyone, kept)
    try:
        found = _compared(out, content, record, (bench, everyone, kept), chosen)
    except Damaged:
        raise
    except Exception as error:  # of whatever kind: no reader of a file has raised it
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise CheckerError(f"verify itself failed: {reason}; this says nothing about the run") from error
    notes, problems, unchecked = found
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
    drawn = {name: chosen.many(len(each.u)) for name, each in bench.banks.items()}
    views = (f"{drawn[name]} of {len(each.u)} views of the bank {name}" for name, each in bench.banks.items())
    checked = (
        f"the digests of all files, the configuration and its parts, all tables of {METRICS} and the rows of "
        f"per_image.csv, the drawings and the report, and {len(kept)} pictures of each arm, judged again in "
        f"{' and in '.join(views)}; not recomputed: {'; '.join(ONCE)}"
    )
    queries = bench.parts.queries
    clusters = [queries.clusters[row] for row in queries.judged]
    missable = judged_again.missed(clusters, len(bench.banks[SAME].u), drawn[SAME])
    return Verdict((*files, *problems), tuple(notes), checked, tuple(unchecked), chosen.seed, missable)


def _compared(
    out: Path, content: Any, record: Any, benches: tuple[Bench, Bench, list[int]], chosen: judged_again.Drawn
) -> tuple[list[str], list[str], list[str]]:
    """Notes, problems, and what could not be compared. `benches`: of the pictures in the tables, of all pictures, and
    which of these are in the tables."""
    bench, everyone, kept = benches
    run = bench.run
    notes, problems = _same_parts(run, everyone.parts, record)
    unchecked, other = list[str](), _other_versions(record)
    different, reason = ([], other) if other else records.composed(run, record)
    problems += different
    if reason:
        unchecked.append(f"manifest.json config with its preset and overrides: {reason}")

    def judged() -> Iterator[str]:
        scores = scores_of(bench, out)
        yield from agreement.some(judged_again.views(bench, scores, chosen), NAME)
        yield from agreement.some(judged_again.worst(bench, scores, chosen), f"{NAME} worst")

    def pixels() -> Iterator[str]:
        yield from agreement.some(judged_again.pixels(bench, out), "pictures")
        yield from agreement.some(judged_again.noise(bench, everyone, kept, out), "perturbation.safetensors")

    for make in (pixels, lambda: _attacked(bench, content, out, str(record["device"])), judged):
        problems += _guarded(make)
    problems += _guarded(lambda: _recomputed(bench, out, content, str(record["preset"])))
    problems += _guarded(lambda: judged_again.parts(bench, out, chosen, content))
    if other:
        unchecked.append(f"report.html and the drawings: {other}")
    else:
        problems += _guarded(lambda: _redrawn(bench, out, content, record, chosen))
    return notes, problems, unchecked


def _same_parts(run: Any, made: Parts, record: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Notes and problems: today's parts against manifest.json."""
    decision = Decision.from_dict(record["engine"]["decision"])
    today = manifest(run, made, record["preset"], record["overrides"], Choice(decision, ()), ALONE)
    today = agreement.plain(today | {"artefacts": planned(run, made)})
    now: dict[str, str] = identity(run, made, decision, ALONE, today["versions"])
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


def _recomputed(bench: Bench, out: Path, content: dict[str, Any], preset: str) -> Iterator[str]:
    """metrics.json and the rows of its tables from the other files."""
    scores = scores_of(bench, out)
    everyone = torch.arange(len(bench.parts.queries))
    for name, arms in scores.scores.items():
        for arm, columns in arms.items():
            if not torch.equal(bench.judge.success(columns, everyone), scores.success[name][arm]):
                yield f"{NAME} {name}/{arm}/success: it does not follow from {name}/{arm}/nearest"
    outcome, extras = outcome_of(bench, scores, content, out), sections_of(bench, content, out)
    recorded = content["verification"]
    with reading(f"{METRICS} verification"):
        limits = {float(far): limit for far, limit in (recorded or {"thresholds": {}})["thresholds"].items()}
    if (pairs := bench.judge.impostors()) is not None:
        today = thresholds(pairs)
        was, now = ({f"{far:g}": limit for far, limit in each.items()} for each in (limits, today))
        yield from agreement.leaves(
            f"{METRICS} verification thresholds", was, now, judged_again.slack_of(bench).cosine
        )
    again, per_image = metrics(bench.run, bench.parts, outcome, extras, preset, limits)
    tables = {"per_image": per_image, **extras.rows()}
    if outcome.drift is not None:
        tables["drift"] = outcome.drift.rows(bench.parts.queries.names)
    tables |= {"duplicates": found} if (found := duplicates_of(bench.parts)) else {}
    for name, rows in tables.items():
        yield from agreement.some(agreement.rows(f"{name}.csv", table(out, name), rows), f"{name}.csv")
    again = agreement.plain(again)
    if "asked" in again:  # not what this check itself has asked
        again["asked"] = (out / LEDGER).read_bytes().count(b"\n")
    for key in again.keys() | (content.keys() - {"files"}):
        if key not in again or key not in content:
            yield f"{METRICS} {key}: {'it is missing' if key in again else 'it is no key of a run'}"
        else:
            slack = judged_again.slack_of(bench).cosine if key == "chance" else agreement.EXACT
            differ = agreement.leaves(f"{METRICS} {key}", content[key], again[key], slack)
            yield from agreement.some(differ, f"{METRICS} {key}")
    if isinstance(bench.run.perturbation, PatchConfig):
        parts = bench.parts
        goal = None if parts.goal is None else parts.gallery.names[int(parts.goal[0])]
        images, names = parts.queries.images, list(bench.exhibits.names)
        placed = placement(parts.perturbation, names, images, bench.run, goal)
        with reading("placement.json"):
            content = read_json(out / "placement.json")
        yield from agreement.leaves("placement.json", content, agreement.plain(placed))


def _attacked(bench: Bench, content: Mapping[str, Any], out: Path, device: str) -> Iterator[str]:
    """What the records say of the attack and of its sanity checks."""
    trace = trace_of(out)
    yield from records.checked(bench.run, content)
    yield from agreement.some(records.stepped(bench.run, bench.parts, content, trace), "steps.csv")
    yield from records.followed(out, content, trace, device)


def _redrawn(bench: Bench, out: Path, content: Any, record: Any, chosen: judged_again.Drawn) -> Iterator[str]:
    """The drawings and the report; of explanations and formats the picture that they show is judged again, and the
    views of failures are searched again where everything is."""
    extras = sections_of(bench, content, out)
    makes: dict[str, Callable[[Bench, Sample], Section]]
    makes = {"explanations": explanations_of, "deployment": deployment_of}
    parts = {name: part for name, part in extras.parts.items() if name in makes and part is not None}
    for name in parts:
        count = bench.run.evaluate.explain if name == "explanations" else bench.run.evaluate.deploy
        parts[name] = makes[name](bench, judged_again.of_sample(sample_of(bench, count), [0]))
    if extras.parts["failure"] is not None and chosen.share == 1:
        parts["failure"] = failures_of(bench, sample_of(bench, bench.run.evaluate.failure))
    shown = Sections(dict.fromkeys(extras.parts) | parts)
    yield from redrawn(out, content, record, outcome_of(bench, scores_of(bench, out), content, out), shown)


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
