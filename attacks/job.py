"""One run from a checked configuration to its directory, without Hydra."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from attacks.build import build
from attacks.experiment import experiment
from attacks.files import write_json
from attacks.report.figures import contact_sheet
from attacks.report.page import write_report
from attacks.results import manifest, metrics, table, warnings
from attacks.schema import Run


def job(run: Run, out: Path, preset: str, overrides: list[str]) -> dict[str, Any]:
    """Run an experiment, write the run directory, and print the four arms and the report's path.

    Returns the content of metrics.json. Raises ValueError, OSError or FloatingPointError for what a person can mend.
    """
    if run.engine.threads is not None:
        torch.set_num_threads(run.engine.threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    parts = build(run)
    for note in parts.queries.notes:
        print(f"note: {note}", file=sys.stderr)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "manifest.json", manifest(run, parts, preset, overrides))
    outcome = experiment(run, parts, out)
    content = metrics(run, parts, outcome, preset)
    write_json(out / "metrics.json", content)
    contact_sheet(out / "views.png", parts, outcome)
    write_report(out, content, outcome, warnings(content))
    print(table(content))
    for warning in warnings(content):
        print(f"warning: {warning}")
    print(f"report: {out / 'report.html'}")
    return content
