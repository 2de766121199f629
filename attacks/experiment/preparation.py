"""What a run needs before it attacks: torch's settings, its parts, the engine's decision, and its manifest."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attacks.encoders.engine import Choice, keep_freed_memory
from attacks.experiment.artefact_list import CHECKPOINT, artefact_plan
from attacks.experiment.bench import Place
from attacks.experiment.directory import PreviousRun
from attacks.experiment.embeddings import cache_of
from attacks.experiment.identity import key_of, refuse_other, run_identity
from attacks.experiment.manifest import manifest
from attacks.experiment.required import refuse_lacking, refuse_unfit
from attacks.experiment.sections.registry import check, sections_of
from attacks.experiment.tuning import engine_choice
from attacks.runtime.checkpoint import Checkpoint
from attacks.runtime.distributed import World
from attacks.schema.validate import Run
from attacks.solvers.trace import Trace
from attacks.study.assembly import build
from attacks.study.study import Study


@dataclass(frozen=True, eq=False)
class Preparation:
    """A run that can begin, with the content of its manifest.json."""

    run: Run
    study: Study
    choice: Choice
    manifest: dict[str, Any]
    world: World

    def place(self, out: Path, follow: Callable[[Trace], None] | None = None) -> Place:
        """Where it runs: in the directory `out`."""
        study = self.study
        like = study.queries.images[:1].to(study.device)
        pace, key = self.run.checkpoint, key_of(self.manifest["identity"])
        checkpoint = Checkpoint(out / CHECKPOINT, key, pace.seconds, pace.steps, self.world, study.device)
        cache = cache_of(cache_folder(self.run), study.encoder, study.identity, like, self.choice.decision.exact)
        return Place(out, self.world, checkpoint, cache, follow)


def prepare_run(
    run: Run,
    world: World,
    preset: str,
    overrides: list[str],
    module: nn.Module | None = None,
    pipeline: Callable[[Any], Any] | None = None,
) -> Preparation:
    """Set up torch, make the parts of a run, and decide how its engine computes.

    Args:
        module: replaces the configured encoder.
        pipeline: the function that the configuration records as its pipeline.

    Raises:
        ValueError, OSError: in one line.
    """
    if run.engine.threads is not None:
        if not 1 <= run.engine.threads <= 1024:  # above the system's limit the library ends the process
            raise ValueError(f"`engine.threads` must be at least 1, and at most 1024; got {run.engine.threads}")
        torch.set_num_threads(run.engine.threads)
    refuse_unfit(run)
    _deterministic()
    keep_freed_memory()
    study = build(run, module, pipeline)
    check(study)
    refuse_lacking(run.require, study)
    choice = engine_choice(run.engine, study, world, cache_folder(run))
    record = manifest(run, study, preset, overrides, choice, world)
    record["artefacts"] = artefact_plan(study, sections_of(study), run.require is not None)
    record["identity"] = run_identity(run, study, choice.decision, world, record["versions"])
    return Preparation(run, study, choice, record, world)


def cache_folder(run: Run) -> str | None:
    """The folder of `data.cache`, if it is configured."""
    folder: str | None = getattr(run.data, "cache", None)
    return folder


def resume_preparation(previous: PreviousRun, run: Run, world: World, module: nn.Module | None = None) -> Preparation:
    """The same for a run that has begun, with its own manifest.

    Args:
        run: its configuration.

    Raises:
        ValueError: the numbers of this process would be those of another run.
    """
    record = previous.manifest
    preparation = prepare_run(run, world, record["preset"], record["overrides"], module)
    refuse_other(record, preparation.manifest["identity"], previous.folder)
    return replace(preparation, manifest=record)


def _deterministic() -> None:
    """Ask torch for deterministic algorithms, with a warning where there is none. `use_deterministic_algorithms`
    would also import the compiler, which takes seconds. `grid_sample` on CUDA is documented instead: with
    `transforms.deterministic=true` nothing calls it."""
    warnings.filterwarnings("ignore", message="grid_sampler_2d_backward_cuda does not have a deterministic")
    torch.set_deterministic_debug_mode("warn")
