"""One run, from a validated configuration to its directory, without Hydra."""

import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from attacks.encoders.description import MODULE
from attacks.encoders.engine import describe, keep_freed_memory
from attacks.encoders.layers import layer_listing
from attacks.eot.batching import memory_told
from attacks.eot.faults import NotFinite, fault
from attacks.evaluation.drift import summary
from attacks.evaluation.sanity.check import table as sanity_table
from attacks.experiment.artefact_list import CHECKPOINT, finish, planned
from attacks.experiment.build.data import data
from attacks.experiment.build.encoder import subject
from attacks.experiment.build.objective import watched
from attacks.experiment.build.parts import build, device
from attacks.experiment.directory import earlier, interrupted, refuse_overrides
from attacks.experiment.experiment import Session, experiment
from attacks.experiment.identity import identity, key_of, refuse_other
from attacks.experiment.outcome import Outcome
from attacks.experiment.results import comparison_lines, encoder_line, headline, manifest, metrics, table
from attacks.experiment.sections import Sections, check, sections
from attacks.experiment.tuning import decide
from attacks.experiment.units import LEDGER, Elsewhere, ledger_of
from attacks.report.facts import legend
from attacks.report.index import collect, write_index
from attacks.report.warnings import warnings
from attacks.runtime.checkpoint import Checkpoint
from attacks.runtime.distributed import World, join
from attacks.runtime.files import clean, write_json
from attacks.runtime.folders import refuse_links
from attacks.runtime.tables import write_rows
from attacks.runtime.tracking import Trackers, log_end, log_step, refuse_unasked, tracker
from attacks.schema.encoder import EncoderConfig
from attacks.schema.validate import Run


def job(
    run: Run, out: Path, preset: str, overrides: list[str], *, module: nn.Module | None = None, resumed: bool = False
) -> dict[str, Any]:
    """Run an experiment, write the run directory, and print the arms and the report's path.

    Of several processes (torchrun) every one calls this; the first one writes and prints.

    Args:
        module: replaces the configured encoder: (N,3,H,W) in [0,1] -> (N,D).
        resumed: whether `out` holds partial results of this run to continue from.

    Returns the content of metrics.json, or nothing where another process makes the tables. Raises
    ValueError, OSError or FloatingPointError for what a user can fix.
    """
    if run.engine.threads is not None:
        if not 1 <= run.engine.threads <= 1024:  # above the system's limit the library ends the process
            raise ValueError(f"`engine.threads` must be at least 1, and at most 1024; got {run.engine.threads}")
        torch.set_num_threads(run.engine.threads)
    _deterministic(compiles=run.engine.compile is not False)
    keep_freed_memory()
    if module is not None:
        run.encoder = EncoderConfig(MODULE, list(run.encoder.features), run.encoder.stochastic)
    parts = build(run, module)
    check(run, parts)
    world = join()
    choice = decide(run, parts, world)
    record = manifest(run, parts, preset, overrides, choice, world)
    record["artefacts"] = planned(run, parts)
    run_identity = record["identity"] = identity(run, parts, choice.decision, world, record["versions"])
    if world.first:
        _begin(out, record, (*parts.queries.notes, *describe(choice)), resumed)
        _prepare_to_draw()
    folder = Path(world.agree(str(out.resolve()))) / CHECKPOINT  # only the first process has a directory
    checkpoint = Checkpoint(
        folder, key_of(run_identity), run.checkpoint.seconds, run.checkpoint.steps, world, parts.device
    )
    with ledger_of(parts, run.evaluate.batch, out, world) as ledger, _trackers(run, out, record, world) as trackers:
        try:
            with watched(parts.encoder, run.objective) as encoder, memory_told():
                session = Session(world, out, ledger, checkpoint, lambda line: log_step(trackers, line, line.batch))
                outcome = experiment(run, parts, encoder, choice.decision, session)
                extras = sections(outcome)
        except (Elsewhere, OSError) as error:
            ended = (folder.parent / "metrics.json").exists()  # our new checkpoint folder goes too
            if isinstance(error, OSError) and not ended:
                raise
            if world.first:
                if ended:
                    shutil.rmtree(folder, ignore_errors=True)
                print(f"note: all pictures of {out} are done, and another process writes the tables", file=sys.stderr)
            return {}
        except NotFinite as error:  # not of one picture: several processes, a shared delta, a section
            if world.first and error.path is None:
                fault.write(out, error)
            raise
        world.meet()  # the checkpoint is deleted next, and the others may still read it
        content, rows = metrics(run, outcome.bench.parts, outcome, extras, preset)
        if world.first:
            _write(out, content, rows, record, outcome, extras)
            log_end(trackers, content, out)
            trackers.close()  # events.jsonl is complete
            finish(out, record, content)  # metrics.json is written last: a directory with it is finished
            shutil.rmtree(out / CHECKPOINT, ignore_errors=True)
    if world.first:
        _print(out, content, outcome)
    return content


def _deterministic(compiles: bool) -> None:
    """Ask torch for deterministic algorithms, with a warning where there is none. Both calls do; the first one tells
    the compiler too, and imports it, which takes seconds."""
    if compiles:
        torch.use_deterministic_algorithms(True, warn_only=True)
    else:
        torch.set_deterministic_debug_mode("warn")


def _begin(out: Path, record: dict[str, Any], notes: Iterable[str], resumed: bool) -> None:
    """Prepare a run directory before anything is attacked. Raises ValueError if a resumed run is another run."""
    if resumed:
        refuse_other(earlier(out).manifest, record["identity"], out)
        (out / CHECKPOINT).mkdir(exist_ok=True)
        for folder in (out, *(path for path in out.rglob("*") if path.is_dir())):
            clean(folder)
        return
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    refuse_links(out)
    out.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out / CHECKPOINT, ignore_errors=True)  # of an earlier run in this directory
    old = ("metrics.json", "events.jsonl", LEDGER, f"{LEDGER}-journal", "manifest.json")
    for path in (*(out / name for name in old), *out.glob("fault*.safetensors")):
        path.unlink(missing_ok=True)
    (out / CHECKPOINT).mkdir()
    write_json(out / "manifest.json", record)  # written last: a directory with it can be resumed


def _prepare_to_draw() -> None:
    """Import the modules that draw. Not earlier: matplotlib writes a cache into the home, and a refused run writes
    nothing. Not at the end of the run: hours later the sources may have changed."""
    import attacks.experiment.contact_sheet
    import attacks.report.explanations
    import attacks.report.page  # noqa: F401


@contextmanager
def _trackers(run: Run, out: Path, record: dict[str, Any], world: World) -> Iterator[Trackers]:
    """The trackers of a run; of several workers in one directory only the first has them."""
    if not world.first:
        yield Trackers()
        return
    with (out / CHECKPOINT / "tracker.lock").open("a") as lock:
        if not _locked(lock):
            yield Trackers()
            return
        with tracker(run.tracker, out, out.name, record["config"]) as trackers:
            yield trackers


def _locked(file: IO[str]) -> bool:
    """Lock the file; True also where the system has no locks."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def resume(folder: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Continue an interrupted run, or join one that is running. The result is that of an uninterrupted run.

    Args:
        overrides: values that a directory may not choose: `encoder.model=FILE` of an encoder that runs code, where a
            tracker sends the run, or `data.cache=FOLDER`.
    """
    if (folder / "metrics.json").exists():  # the run was killed while it removed its checkpoint
        shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)
    values = dict(word.split("=", 1) for word in overrides if "=" in word)
    previous = interrupted(folder, values.get("encoder.model"))
    refuse_overrides(previous.manifest, overrides)
    refuse_unasked(previous.run.tracker, overrides)
    if getattr(previous.run.data, "cache", None) is not None:  # a directory may not choose where to write
        previous.run.data.cache = values.get("data.cache")
    record = previous.manifest
    return job(previous.run, folder, record["preset"], record["overrides"], resumed=True)


def index(sweep: Path) -> None:
    """Write `index.html` and `index.csv` of all runs of a sweep so far."""
    folders = [path.parent for path in sweep.glob("*/manifest.json")]
    folders.sort(key=lambda path: (len(path.name), path.name))  # 2 before 10
    if folders:
        runs = collect(folders)
        write_index(sweep / "index.html", runs.rows, runs.skipped)
        print(f"sweep: {sweep / 'index.html'}")


def show(run: Run) -> None:
    """Print the encoder and all its layers for the first picture of the run."""
    where = device(run.engine.device)
    image = data(run.data)[0].images[:1].to(where)
    listing = layer_listing(subject(run.encoder, where, run.defence), image)
    if join().first:
        print(listing)


def _write(
    out: Path,
    content: dict[str, Any],
    rows: list[dict[str, object]],
    record: dict[str, Any],
    outcome: Outcome,
    extras: Sections,
) -> None:
    from attacks.experiment.contact_sheet import contact_sheet, typical
    from attacks.report.page import write_report

    write_rows(out / "per_image.csv", rows)
    drift = outcome.drift
    tables = extras.rows() | ({} if drift is None else {"drift": drift.rows(outcome.bench.parts.queries.names)})
    for name, table_rows in tables.items():
        write_rows(out / f"{name}.csv", table_rows)
    contact_sheet(out / "views.png", outcome)
    extras.draw(out)
    first = [line for line in outcome.trace if line.batch == 0]
    write_report(out, content, record, warnings(content), first, typical(outcome))


def _print(out: Path, content: dict[str, Any], outcome: Outcome) -> None:
    print(headline(content))
    for warning in warnings(content):
        print(f"warning: {warning}")
    print(table(content))
    print(legend(content))
    for line in comparison_lines(content):
        print(line)
    if outcome.drift is not None:
        print(summary(content["drift"]))
    if outcome.sanity is not None:
        print(sanity_table(outcome.sanity))
    print(encoder_line(content))
    print(f"report: {out / 'report.html'}")
    print(f"record: sha256 {content['files']} (python -m attacks.run verify={out} checks it)")
