"""A finished run opened again: its encoder, pictures, gallery and views, and its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from attacks.encoders.description import MODULE
from attacks.encoders.engine import Decision
from attacks.experiment.artefact_list import artefact_differences
from attacks.experiment.bench import Bench, Place, bench_of
from attacks.experiment.directory import open_run, refuse_program
from attacks.runtime.untrusted import refuse_links
from attacks.study.assembly import build
from attacks.study.study import Study


def reopen(
    folder: Path, program: str | None = None, device: str | None = None, module: nn.Module | None = None
) -> Bench:
    """The bench of a finished run, of the pictures that are in its tables. Its files must have their digests.

    Args:
        program: the file or plug-in of an encoder that runs code, as the user gives it.
        device: instead of that of the run.
        module: the encoder of a run of a module in memory.

    Raises ValueError or OSError in one line.
    """
    refuse_links(folder)
    previous, content = open_run(folder)
    changes = [*artefact_differences(folder, previous.manifest, content)]
    if changes:
        raise ValueError(f"`{folder}` was changed after its run: {changes[0]}; `viewproof verify` names everything")
    run = previous.run
    if run.encoder.name == MODULE and module is None:
        raise ValueError("`encoder` was a module in memory, which no directory holds")
    refuse_program(run, program, f"--encoder-code {getattr(run.encoder, 'model', None)}")
    run.engine.device = device or run.engine.device
    study = build(run, module)
    exact = Decision.from_dict(previous.manifest["engine"]["decision"]).exact
    return bench_of(study, study.encoder, exact, Place(folder)).only(rows_in(study, content))


def rows_in(study: Study, content: Mapping[str, Any]) -> list[int]:
    """The pictures of a study that are in the tables of its run, by the `content` of metrics.json."""
    failures = {failure["picture"] for failure in content["failed"]}
    return [row for row in range(len(study.queries) - content["left"]) if row not in failures]
