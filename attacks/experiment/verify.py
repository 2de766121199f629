"""Check a finished run: `viewproof verify RUN_DIRECTORY`. Its files against their digests, its numbers
against the files that they follow from, and its pictures, judged again by the encoder."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attacks.encoders.black_box.asked import black_box
from attacks.encoders.black_box.ledger import LEDGER
from attacks.encoders.description import MODULE
from attacks.encoders.engine import Choice, Decision
from attacks.evaluation.resizers.pipeline import GIVEN
from attacks.evaluation.retrieval_metrics import thresholds
from attacks.experiment import agreement, judged_again
from attacks.experiment.artefact_list import ALWAYS, FILES, METRICS, differences, duplicates_of, planned
from attacks.experiment.artifacts import placement
from attacks.experiment.batch import Bench
from attacks.experiment.build.parts import build
from attacks.experiment.directory import Earlier, opened, read_json, refuse_program
from attacks.experiment.experiment import bench_of, narrowed
from attacks.experiment.identity import identity
from attacks.experiment.manifest import manifest
from attacks.experiment.parts import Parts
from attacks.experiment.rebuilt import outcome_of, sections_of
from attacks.experiment.results import metrics
from attacks.experiment.view_scores import NAME, read_scores
from attacks.runtime.distributed import ALONE
from attacks.runtime.files import sha256
from attacks.runtime.folders import refuse_links
from attacks.runtime.remote import local
from attacks.runtime.tables import read_rows
from attacks.schema.patch import PatchConfig

#: What cannot be recomputed, and why; only the digest covers it.
ONCE = {
    "steps.csv, events.jsonl, metrics.json sanity": "they follow from the steps of the attack, which is not repeated",
    "left_out.csv": "its pictures are not kept; the tables in metrics.json are computed from it",
    "metrics.json costs, failed, failed_parts, fell_back, radii passes": "passes, seconds and errors of the run",
    "metrics.json deployment missing, explanations layer and missing": "what was installed, or had no gradient",
    "views.png, explanations.png, deployment.png, failure.png, report.html": (
        "drawings of the numbers and pictures that are checked"
    ),
}
#: Entries of an identity and of manifest.json that need not be the same today; a difference is a note.
MAY_DIFFER = ("engine.", "the version of ", "the code of ", "the number of ")
MACHINE = ("device", "threads", "processes", "git", "python", "platform")
#: Errors of malformed files.
MALFORMED = (ValueError, OSError, KeyError, TypeError, IndexError, AttributeError, RuntimeError, ArithmeticError)


@dataclass(frozen=True)
class Verdict:
    """A line for each thing that does not agree, what may differ between machines, and what was checked."""

    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    checked: str = ""

    @property
    def passed(self) -> bool:
        """Whether everything agrees."""
        return not self.problems

    def __str__(self) -> str:
        lines = [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, *(self.problems or (f"PASS: {self.checked}",))])


def verify(
    folder: str | Path,
    sample: float = 0.1,
    module: nn.Module | None = None,
    *,
    pipeline: Callable[[Any], Any] | None = None,
    program: str | None = None,
    device: str | None = None,
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

    Raises ValueError or OSError, in one line, where there is no run, or where its encoder or pictures cannot be
    loaded.

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
            files = [*_guarded(FILES, lambda: _files(out, previous.manifest, content))]
        except (ValueError, OSError) as error:
            return Verdict((str(error),))
        return _checked(out, content, previous, files, (sample, module, pipeline, program, device))


def _files(out: Path, record: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[str]:
    """The digests, and what a finished run has or has not."""
    yield from differences(out, record, content)
    yield from (f"{name}: it is missing" for name in ALWAYS if not (out / name).is_file())


def _checked(out: Path, content: Any, previous: Earlier, files: list[str], options: tuple[Any, ...]) -> Verdict:
    sample, module, pipeline, program, device = options
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
        asked.ledger.read(out / LEDGER, (out / LEDGER).read_bytes())
        recorded = len(asked.ledger)
    full = Decision.from_dict(record["engine"]["decision"]).exact
    everyone, _, _ = bench_of(run, made, made.encoder, full, ALONE, out)
    gone = {failure["picture"] for failure in content["failed"]}
    kept = [row for row in range(len(made.queries) - content["left"]) if row not in gone]
    bench = narrowed(everyone, kept)
    chosen = judged_again.Drawn(sample, int(sha256(out / FILES)[:12], 16))
    notes, problems = _same_parts(run, made, record)
    problems += files
    if made.pipeline is None and run.evaluate.pipeline is not None:
        function = run.evaluate.pipeline.removeprefix(GIVEN)
        notes += [
            f"detection.csv: its cosines were not judged again, for its pipeline was {function}, a function given in "
            "Python, which no directory holds: verify(folder, pipeline=...)"
        ]

    def judged() -> Iterator[str]:
        scores = read_scores(out)
        yield from agreement.some(judged_again.views(bench, scores, chosen), NAME)
        yield from agreement.some(judged_again.worst(bench, scores, chosen), f"{NAME} worst")

    def pixels() -> Iterator[str]:
        yield from agreement.some(judged_again.pixels(bench, out), "pictures")
        yield from agreement.some(judged_again.noise(bench, everyone, kept, out), "perturbation.safetensors")

    for name, make in (
        ("pictures", pixels),
        (METRICS, lambda: _recomputed(bench, out, content, str(record["preset"]))),
        (NAME, judged),
        ("the parts", lambda: judged_again.parts(bench, out, chosen, content)),
    ):
        problems += _guarded(name, make)
    if asked is not None:
        notes.append(
            f"{LEDGER}: its {recorded} answers were used, so whether the encoder gives them today was not checked; "
            f"{len(asked.ledger) - recorded} pictures were asked about anew"
        )
    views = (
        f"{len(chosen.of(len(each.u), name))} of {len(each.u)} views of the bank {name}"
        for name, each in bench.banks.items()
    )
    checked = (
        f"the digests of all files, the configuration and its parts, all tables of {METRICS} and the rows of "
        f"per_image.csv, and {len(kept)} pictures of each arm, judged again in {' and in '.join(views)}; not "
        f"recomputed: {'; '.join(ONCE)}"
    )
    return Verdict(tuple(problems), tuple(notes), checked)


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
    for key in sorted((today.keys() | record.keys()) - {"identity", "versions", "engine", "config"}):
        differ = [*agreement.leaves(f"manifest.json {key}", record.get(key), today.get(key))]
        (notes if key in MACHINE else problems).extend(agreement.some(differ, f"manifest.json {key}"))
    return notes, problems


def _recomputed(bench: Bench, out: Path, content: dict[str, Any], preset: str) -> Iterator[str]:
    """metrics.json and the rows of its tables from the other files."""
    scores = read_scores(out)
    everyone = torch.arange(len(bench.parts.queries))
    for name, arms in scores.scores.items():
        for arm, columns in arms.items():
            if not torch.equal(bench.judge.success(columns, everyone), scores.success[name][arm]):
                yield f"{NAME} {name}/{arm}/success: it does not follow from {name}/{arm}/nearest"
    outcome, extras = outcome_of(bench, scores, content, out), sections_of(bench, content, out)
    recorded = content["verification"]
    limits = {float(far): limit for far, limit in (recorded or {"thresholds": {}})["thresholds"].items()}
    if (pairs := bench.judge.impostors()) is not None:
        today = thresholds(pairs)
        was, now = ({f"{far:g}": limit for far, limit in each.items()} for each in (limits, today))
        yield from agreement.leaves(
            f"{METRICS} verification thresholds", was, now, judged_again.slack_of(bench).cosine
        )
    again, table = metrics(bench.run, bench.parts, outcome, extras, preset, limits)
    tables = {"per_image": table, **extras.rows()}
    if outcome.drift is not None:
        tables["drift"] = outcome.drift.rows(bench.parts.queries.names)
    tables |= {"duplicates": found} if (found := duplicates_of(bench.parts)) else {}
    for name, rows in tables.items():
        yield from agreement.some(agreement.rows(f"{name}.csv", read_rows(out / f"{name}.csv"), rows), f"{name}.csv")
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
        yield from agreement.leaves("placement.json", read_json(out / "placement.json"), agreement.plain(placed))


def _guarded(name: str, lines: Callable[[], Iterable[str]]) -> list[str]:
    """The lines of a check; one more where what it reads is malformed."""
    found: list[str] = []
    try:
        for line in lines():
            found.append(line)
    except MALFORMED as error:
        found.append(f"{name}: it cannot be checked ({type(error).__name__}: {' '.join(str(error).split())[:300]})")
    return found
