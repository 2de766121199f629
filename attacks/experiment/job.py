"""One run, from a validated configuration to its directory, without Hydra."""

import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attacks.encoders.black_box.asked import LEDGER, black_box, ledger_at
from attacks.encoders.defended import view_defence
from attacks.encoders.engine import describe
from attacks.encoders.layers import layer_listing
from attacks.eot.batching import memory_told
from attacks.eot.faults import NotFinite, fault
from attacks.evaluation.sanity.check import Sanity, skip
from attacks.experiment import directory
from attacks.experiment.bench import Bench, bench_of
from attacks.experiment.clean_views import LostViews, look_first
from attacks.experiment.identity import refuse_other_command
from attacks.experiment.preparation import Preparation, prepare_run, resume_preparation
from attacks.experiment.rehearsal import first_words, rehearse
from attacks.experiment.required import is_decided, keep, refuse_changed
from attacks.experiment.results import RunFigures, metrics, rows_of, summary_text, wrap_lines
from attacks.experiment.sections.section import measure_sections
from attacks.experiment.unit import Failure, UnitResult, joined_units, share_of
from attacks.experiment.units import Execute, OtherProcessFinishes, in_process, tables, units_of, work
from attacks.experiment.view_scores import view_scores, write_results
from attacks.experiment.workers import Site, cluster, processes
from attacks.report.comparison import ComparedRuns, own_page, write_page
from attacks.report.runs import collect
from attacks.resizers.pipeline import function_name
from attacks.runtime.command_line import print_notes
from attacks.runtime.distributed import World, join
from attacks.runtime.files import clean, make_folder, write_json, write_text
from attacks.runtime.plugins import given_parts
from attacks.runtime.progress import Progress
from attacks.runtime.tables import write_rows
from attacks.runtime.tracking import Tracker, Trackers, journal, log_end, log_step, started, tracker_state
from attacks.schema.encoder import in_memory
from attacks.schema.launchers import is_queued_again
from attacks.schema.presets import refuse_untyped
from attacks.schema.run import SECTIONS
from attacks.schema.validate import Run, shard, workers
from attacks.study.assembly import device
from attacks.study.data import data
from attacks.study.encoder import subject_encoder
from attacks.study.objective import watching_layers
from attacks.study.pipeline import defended_views


def job(
    run: Run,
    out: Path,
    preset: str,
    overrides: list[str],
    *,
    module: nn.Module | None = None,
    pipeline: Callable[[Any], Any] | None = None,
) -> dict[str, Any]:
    """Run an experiment, write the run directory, and print the arms and the report's path. An interrupted run of
    this configuration in the directory is gone on with; one at work is joined. Every process of torchrun calls this.

    Args:
        module: replaces the configured encoder: (N,3,H,W) in [0,1] -> (N,D).
        pipeline: replaces `evaluate.pipeline`, see `resizers.pipeline.given`.

    Returns the content of metrics.json, or nothing where another process makes the tables. Raises
    ValueError, OSError or FloatingPointError for what a user can fix.
    """
    if module is not None:
        run.encoder = in_memory(run.encoder)
    if pipeline is not None:
        run.evaluate.pipeline = function_name(pipeline)
    in_python = {"module": module, "function": pipeline, "part": given_parts() or None}
    if run.workers != 1 and (kind := next((kind for kind, part in in_python.items() if part is not None), "")):
        raise ValueError(f"`workers` must be 1 for a {kind} in memory, which no other process has; got {run.workers}")
    if run.overwrite and run.shard is not None:
        raise ValueError("`overwrite` must be false with `shard`: each shard would remove what the others have done")
    if run.overwrite and is_queued_again():
        raise ValueError("`overwrite` must be false: the job is queued again, and would remove its own checkpoint")
    start = getattr(run.attack, "start_from", None)
    if run.overwrite and start is not None and Path(start).resolve() == out.resolve():
        raise ValueError(f"`attack.start_from` must be another run than the one to overwrite, {out}: copy it first")
    world, check_command = join(), partial(refuse_other_command, run=run, folder=out)
    with directory.enter(out, check_command, overwrite=run.overwrite) if world.first else nullcontext() as entry:
        place, is_resumed = world.agree(None if entry is None else [str(out.resolve()), entry.is_resumed])
        if is_resumed:
            refuse_changed(run, Path(place))
            previous = directory.interrupted_run(Path(place), getattr(run.encoder, "model", None))
            run.engine = previous.run.engine  # as it was decided
            preparation = resume_preparation(previous, run, world, module)
        else:
            preparation = prepare_run(run, world, preset, overrides, module, pipeline)
        return _run_prepared(preparation, Path(place), entry)


def resume(folder: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Continue an interrupted run, or join one that is running. The result is that of an uninterrupted run. The
    `overrides` are values that a directory may not choose: `encoder.model=FILE` of an encoder that runs code, where a
    tracker sends the run, `data.cache=FOLDER`, and which processes share it: `workers`, `shard`."""
    values = dict(word.split("=", 1) for word in overrides if "=" in word)
    previous = directory.interrupted_run(folder, values.get("encoder.model"))
    directory.refuse_overrides(previous.manifest, overrides)
    run = previous.run
    refuse_untyped(run, overrides, ("tracker.mode", "tracker.uri"))
    if getattr(run.data, "cache", None) is not None:  # a directory may not choose where to write
        run.data.cache = values.get("data.cache")
    count = values.get("workers", "1")
    run.workers, run.shard, run.overwrite = int(count) if count.isdecimal() else count, values.get("shard"), False
    workers(run.workers), shard(run.shard)
    world = join()
    with directory.enter(folder, lambda _: None) if world.first else nullcontext() as entry:
        return _run_prepared(resume_preparation(previous, run, world), folder, entry)


def _run_prepared(preparation: Preparation, out: Path, entry: directory.RunEntry | None) -> dict[str, Any]:
    """Attack what is not done in a run directory, and make the tables. `entry`: of the first process of several."""
    world, run, study = preparation.world, preparation.run, preparation.study
    if not world.agree(entry is None or entry.is_exclusive or world.size == 1):
        raise ValueError(f"`{out}`: another process is at work there, and those of torchrun join none")
    start = partial(started, run.tracker, out / directory.CHECKPOINT, out, preparation.manifest["config"])
    if entry is not None:
        _begin(out, preparation, entry)
    with ledger_at(study.encoder, out / LEDGER), Trackers() as trackers, ExitStack() as showing:
        try:
            if entry is not None:
                _follow(trackers, run, out, start if entry.is_exclusive else None)
            with watching_layers(study.encoder, study.objective, study.members) as encoder, memory_told():
                place = preparation.place(out, lambda line: log_step(trackers, line, line.batch))
                bench = bench_of(study, encoder, preparation.choice.decision, place)
                bench = replace(bench, progress=showing.enter_context(_announce(preparation, bench, entry)))
                stop_rule = None if study.evaluate.most is None else partial(_stops_after, bench)
                results = work(bench, _executor(preparation, bench), shard(run.shard), stop_rule)
                if (box := black_box(encoder)) is not None:
                    box.confirm()
                with nullcontext() if world.size > 1 else tables(out / directory.CHECKPOINT, trackers.close):
                    content, sanity = _tables(preparation, bench, results, partial(trackers.ending, start))
        except (OtherProcessFinishes, OSError) as error:
            return _result_of_other(error, out / directory.CHECKPOINT, out, world)
        except LostViews:
            if entry is not None and entry.lock.exclusive():  # a refused run leaves nothing to go on with
                directory.remove(out)
                (out / "manifest.json").unlink()
            raise
        except NotFinite as error:  # not of one picture: several processes, a shared delta, a section
            if world.first and error.path is None:
                fault.write(out, error)
            raise
    if world.first:
        print(summary_text(content, out, sanity))
    return content


def _announce(preparation: Preparation, bench: Bench, entry: directory.RunEntry | None) -> Progress:
    """The progress of a run, after its first lines: what it does and for how long, its notes, its clean views."""
    views = look_first(bench, preparation.manifest)
    at, shards = shard(preparation.run.shard)
    units, count = units_of(bench.study)[at::shards], workers(preparation.run.workers) or 1
    text = first_words(bench, preparation.manifest["preset"], units, count)
    if entry is not None:
        print(*[wrap_lines(text, 200), *filter(None, [views])], sep="\n", file=sys.stderr)
        notes = [] if entry.is_resumed else [*preparation.study.queries.notes, *describe(preparation.choice)]
        print_notes(notes, "manifest.json")
    return Progress("attack", sum(share_of(bench, unit) for unit in units), visible=entry is not None)


def _stops_after(bench: Bench, results: Sequence[UnitResult], count: int) -> bool:
    """Whether the results of the first `count` pictures, where they are whole clusters, decide the policy."""
    clusters = bench.study.queries.clusters
    if count < len(clusters) and clusters[count] == clusters[count - 1]:
        return False
    result = joined_units(results, bench.study.perturbation.shared)
    bench = bench.only(result.rows)
    return is_decided(bench.exhibits.out, rows_of(bench, view_scores(bench, result)))


def _executor(preparation: Preparation, bench: Bench) -> Execute:
    """What the units are mapped by."""
    run, count = preparation.run, workers(preparation.run.workers)
    if count == 1:
        return in_process(bench)
    if preparation.world.size > 1:
        raise ValueError(f"`workers` must be 1 with torchrun, whose processes share each step; got {run.workers}")
    program, cache = getattr(run.encoder, "model", None), getattr(run.data, "cache", None)
    site = Site(str(bench.exhibits.out), program, cache)
    return cluster(site, torch.get_num_threads()) if count is None else processes(site, count)


def _result_of_other(error: Exception, checkpoint: Path, out: Path, world: World) -> dict[str, Any]:
    """Nothing, where another process has the rest of the work. Raises any other error."""
    content = directory.finished(out)
    if isinstance(error, OSError) and not content:
        raise error
    if world.first:
        if content:  # the other one has removed it, and this one may have made it again
            shutil.rmtree(checkpoint, ignore_errors=True)
        reason = error if isinstance(error, OtherProcessFinishes) else "another process has made the tables"
        print_notes([f"{out}: {reason}"])
    return {}


def _begin(out: Path, preparation: Preparation, entry: directory.RunEntry) -> None:
    """Prepare a run directory before anything is attacked."""
    if not entry.is_resumed:
        keep(preparation.run, out)
        write_json(out / "manifest.json", preparation.manifest)  # a directory with it can be resumed
    make_folder(out / directory.CHECKPOINT)
    entry.lock.shared()  # from now on other processes may join the run
    # Not earlier: matplotlib writes a cache into the home, and a refused run writes nothing. Not at the end of the
    # run: hours later the sources may have changed.
    import attacks.experiment.drawings  # noqa: F401


def _follow(trackers: Trackers, run: Run, out: Path, start: Callable[[], dict[str, Tracker]] | None) -> None:
    """Begin the journal of this process; the first of several in one directory must `start` the tracker, too."""
    node, folder = asdict(run.tracker), out / directory.CHECKPOINT
    with tables(folder):
        if start is not None:
            trackers.others = start()
        trackers.events = journal(folder)
        if (other := tracker_state(folder).get("tracker", node)) != node:
            raise ValueError(f"`tracker` must be that of the process at work in {out}, {other}; got {node}")


def index(sweep: Path) -> None:
    """Write `index.html` and `index.csv` of all runs of a sweep so far, but not over a page of something else."""
    folders = [path.parent for path in sweep.glob("*/manifest.json")]
    folders.sort(key=lambda path: (len(path.name), path.name))  # 2 before 10
    page = sweep / "index.html"
    if folders and page.exists() and not own_page(page):
        print_notes([f"{page} was not written by viewproof, so the sweep has no table of its runs"])
    elif folders:
        write_page(ComparedRuns(*collect({folder: folder.name for folder in folders})), sweep)
        print(f"sweep: {page}")


def show_part(run: Run, preset: str = "", overrides: Sequence[str] = ()) -> None:
    """Print what a run would do and take, or the encoder and all its layers for its first picture."""
    if run.show == "plan":
        print(rehearse(run, preset, [*overrides]).plan)
        return
    target_device = device(run.engine.device)
    image = data(run.data)[0].images[:1].to(target_device)
    view_stage = view_defence(defended_views(run.transforms, run.defence))
    about = [] if view_stage is None else [f"  {'defence':<10} {view_stage}"]
    listing = layer_listing(subject_encoder(run, target_device), image, *about)
    if join().first:
        print(listing)


def _tables(
    preparation: Preparation,
    bench: Bench,
    outcomes: tuple[Sequence[UnitResult], Sequence[Failure]],
    ending: Callable[..., AbstractContextManager[Trackers]],
) -> tuple[dict[str, Any], Sanity | None]:
    """The content of metrics.json and the sanity checks, after all tables and figures are written."""
    out, world, (results, failed) = bench.exhibits.out, bench.world, outcomes
    result = joined_units(results, bench.study.perturbation.shared)
    left = len(bench.study.queries) - len(result.rows) - len(failed)
    bench = bench.only(result.rows)
    bench, scores = replace(bench, costs=bench.costs | result.costs), view_scores(bench, result)
    if world.first:
        write_results(bench, result, scores)
    extras = measure_sections(bench, result.drift)
    bench.progress.part("report")
    world.meet()  # the checkpoint is deleted next, and the others may still read it
    sanity = result.sanity
    if sanity is None and bench.study.sanity.pictures:
        reason = "they are made with the first picture, and that has failed"
        sanity = Sanity((skip("all", reason),), {"forward": 0, "backward": 0, "seconds": 0.0})
    costs, failures = bench.costs | extras.costs, [failure._asdict() for failure in failed]
    checks = None if sanity is None else sanity.to_dict()
    facts = RunFigures(costs, bench.cached, failures, extras.failed, list(result.fell_back), left, checks)
    record, contents = preparation.manifest, {name: extras.content(name) for name in SECTIONS}
    content, rows = metrics(bench, scores, result.budget, facts, contents, record["preset"])
    if world.first:
        tables = {"per_image": rows} | {name: section.rows for name, section in extras.results.items()}
        tables |= {"duplicates": pairs} if (pairs := bench.study.duplicates) else {}
        for name, table in tables.items():
            write_rows(out / f"{name}.csv", table)
        from attacks.experiment.drawings import draw_sheets, report_page

        draw_sheets(out, bench, scores, extras)
        write_text(out / "report.html", report_page(bench, content, record, scores))
        with ending(out / directory.CHECKPOINT, out) as open_trackers:
            log_end(open_trackers, content, out)
        clean(out)  # temporary files of a process that shared the run and was killed
        directory.finish(out, record, content)  # metrics.json is written last: a directory with it is finished
        shutil.rmtree(out / directory.CHECKPOINT, ignore_errors=True)
    return content, sanity
