"""One run from a checked configuration to its directory, without Hydra."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from attacks.build import Parts, build, device
from attacks.distributed import join
from attacks.drift import words
from attacks.engine import describe, keep_freed_memory
from attacks.experiment import Outcome, experiment
from attacks.files import write_json
from attacks.inspection import layer_listing
from attacks.report.figures import contact_sheet
from attacks.report.page import write_report
from attacks.results import encoder_line, manifest, metrics, table, warnings
from attacks.sanity import table as sanity_table
from attacks.schema import Run
from attacks.sets import data
from attacks.subject import subject
from attacks.tuning import decide


def job(run: Run, out: Path, preset: str, overrides: list[str]) -> dict[str, Any]:
    """Run an experiment, write the run directory, and print the four arms and the report's path.

    Of several processes (torchrun) every one calls this; the first one writes and prints.

    Returns the content of metrics.json. Raises ValueError, OSError or FloatingPointError for what a person can mend.
    """
    if run.engine.threads is not None:
        if run.engine.threads < 1:
            raise ValueError(f"`engine.threads` must be at least 1; got {run.engine.threads}")
        torch.set_num_threads(run.engine.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    keep_freed_memory()
    parts = build(run)
    world = join()
    choice = decide(run, parts, world)
    if world.first:
        for note in (*parts.queries.notes, *describe(choice)):
            print(f"note: {note}", file=sys.stderr)
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "manifest.json", manifest(run, parts, preset, overrides, choice, world))
    outcome = experiment(run, parts, choice.decision, world, out)
    content = metrics(run, parts, outcome, preset)
    if world.first:
        _report(out, content, parts, outcome)
    return content


def show(run: Run) -> None:
    """Print the encoder and all its layers, as they answer to the first picture that the run would attack."""
    where = device(run.engine.device)
    image = data(run.data)[0].images[:1].to(where)
    said = layer_listing(subject(run.encoder, where, run.defence), image)
    if join().first:
        print(said)


def _report(out: Path, content: dict[str, Any], parts: Parts, outcome: Outcome) -> None:
    write_json(out / "metrics.json", content)
    contact_sheet(out / "views.png", parts, outcome)
    write_report(out, content, outcome, warnings(content))
    for warning in warnings(content):
        print(f"warning: {warning}")
    print(table(content))
    if outcome.drift is not None:
        print(words(content["drift"]))
    if outcome.sanity is not None:
        print(sanity_table(outcome.sanity))
    print(encoder_line(content))
    print(f"report: {out / 'report.html'}")
