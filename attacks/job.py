"""One run from a checked configuration to its directory, without Hydra."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attacks.aims import watched
from attacks.build import build, device
from attacks.choices_encoder import Subject
from attacks.distributed import join
from attacks.drift import words
from attacks.earlier import interrupted
from attacks.engine import describe, keep_freed_memory
from attacks.experiment import Outcome, experiment
from attacks.files import write_json
from attacks.inspection import layer_listing
from attacks.report.contact import contact_sheet, typical
from attacks.report.index import collect, write_index
from attacks.report.page import write_report
from attacks.results import comparison_lines, encoder_line, manifest, metrics, table, warnings
from attacks.sanity import table as sanity_table
from attacks.schema import Run
from attacks.sections import Sections, check, sections
from attacks.sets import data
from attacks.subject import MODULE, subject
from attacks.tables import write_rows
from attacks.tracking import Trackers, log_end, log_step, refuse_unasked, tracker
from attacks.tuning import decide


def job(
    run: Run, out: Path, preset: str, overrides: list[str], *, module: nn.Module | None = None, resumed: bool = False
) -> dict[str, Any]:
    """Run an experiment, write the run directory, and print the arms and the report's path.

    Of several processes (torchrun) every one calls this; the first one writes and prints.

    Args:
        module: an encoder that takes the place of the configuration's: (N,3,H,W) in [0,1] -> (N,D).
        resumed: whether `out` holds the batches of this very run, which are then taken up.

    Returns the content of metrics.json. Raises ValueError, OSError or FloatingPointError for what a person can mend.
    """
    if run.engine.threads is not None:
        if run.engine.threads < 1:
            raise ValueError(f"`engine.threads` must be at least 1; got {run.engine.threads}")
        torch.set_num_threads(run.engine.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    keep_freed_memory()
    if module is not None:
        run.encoder = Subject(MODULE, list(run.encoder.features), run.encoder.stochastic)
    parts = build(run, module)
    check(run, parts)
    world = join()
    choice = decide(run, parts, world)
    said = manifest(run, parts, preset, overrides, choice, world)
    if world.first and not resumed:
        for note in (*parts.queries.notes, *describe(choice)):
            print(f"note: {note}", file=sys.stderr)
        out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(out / "batches", ignore_errors=True)  # of another run into the same directory
        for name in ("metrics.json", "events.jsonl"):
            (out / name).unlink(missing_ok=True)
        write_json(out / "manifest.json", said)
    with tracker(run.tracker, out, out.name, said["config"]) if world.first else Trackers() as told:
        with watched(parts.encoder, run.objective) as encoder:
            decision = choice.decision
            outcome = experiment(
                run, parts, encoder, decision, world, out, lambda line: log_step(told, line, line.batch)
            )
            looks = sections(outcome)
        content, rows = metrics(run, parts, outcome, looks, preset)
        if world.first:
            _write(out, content, rows, said, outcome, looks)
            log_end(told, content, out)
    if world.first:
        _print(out, content, outcome)
    return content


def resume(folder: Path, words: Sequence[str] = ()) -> dict[str, Any]:
    """Go on with an interrupted run: batches that are done are taken up, the rest is done as it would have been.

    Args:
        words: what whoever starts this says beside it, which a directory may not choose: `encoder.model=FILE` of a
            program, or where a tracker sends the run.
    """
    typed = dict(word.split("=", 1) for word in words)
    before = interrupted(folder, typed.get("encoder.model"))
    refuse_unasked(before.run.tracker, words)
    said = before.manifest
    return job(before.run, folder, said["preset"], said["overrides"], resumed=True)


def index(sweep: Path) -> None:
    """Write `index.html` and `index.csv` of all runs of a sweep, as far as they have come."""
    folders = [path.parent for path in sweep.glob("*/manifest.json")]
    folders.sort(key=lambda path: (len(path.name), path.name))  # 2 before 10
    if folders:
        found = collect(folders)
        write_index(sweep / "index.html", found.rows, found.skipped)
        print(f"sweep: {sweep / 'index.html'}")


def show(run: Run) -> None:
    """Print the encoder and all its layers, as they answer to the first picture that the run would attack."""
    where = device(run.engine.device)
    image = data(run.data)[0].images[:1].to(where)
    said = layer_listing(subject(run.encoder, where, run.defence), image)
    if join().first:
        print(said)


def _write(
    out: Path,
    content: dict[str, Any],
    rows: list[dict[str, object]],
    said: dict[str, Any],
    outcome: Outcome,
    looks: Sections,
) -> None:
    write_rows(out / "per_image.csv", rows)
    for name, lines in looks.rows().items():
        write_rows(out / f"{name}.csv", lines)
    contact_sheet(out / "views.png", outcome)
    looks.draw(out)
    first = [line for line in outcome.trace if line.batch == 0]
    write_report(out, content, said, warnings(content), first, typical(outcome))
    write_json(out / "metrics.json", content)  # the last file: where it is, the run has come to its end
    shutil.rmtree(out / "batches", ignore_errors=True)


def _print(out: Path, content: dict[str, Any], outcome: Outcome) -> None:
    for warning in warnings(content):
        print(f"warning: {warning}")
    print(table(content))
    for line in comparison_lines(content):
        print(line)
    if outcome.drift is not None:
        print(words(content["drift"]))
    if outcome.sanity is not None:
        print(sanity_table(outcome.sanity))
    print(encoder_line(content))
    print(f"report: {out / 'report.html'}")
