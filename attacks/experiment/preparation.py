"""A run that can begin, goes on or is opened again: torch's settings, its parts, its engine (as configured, as an
earlier run decided, or as measured on the first step of this run), and manifest.json."""

import os
import platform
import subprocess
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from attacks.data.images import file_names
from attacks.data.pictures import PIXELS
from attacks.encoders.black_box.asked import LEDGER, black_box, recorded_answers
from attacks.encoders.description import MODULE
from attacks.encoders.engine import keep_freed_memory
from attacks.encoders.engine.decision import SETTINGS, Choice, Decision, Measurement, Trial
from attacks.encoders.engine.precision import has_tf32
from attacks.encoders.engine.tuner import choose
from attacks.encoders.tree import Encoder
from attacks.eot.estimator import EOT
from attacks.eot.problem import Problem
from attacks.evaluation.per_image import declaration
from attacks.experiment import directory
from attacks.experiment.bench import Bench, Place, bench_of
from attacks.experiment.directory import CHECKPOINT, PreviousRun
from attacks.experiment.embeddings import BLOCK, cache_of, embed_gallery
from attacks.experiment.identity import gallery_digest, identity_digest, promises, refuse_other, run_identity
from attacks.experiment.required import refuse_lacking, refuse_unfit
from attacks.experiment.result import with_start
from attacks.experiment.sections.section import check, sections_of
from attacks.gate.lock import lock_file, policy_record
from attacks.gate.policy import POLICY
from attacks.objectives.aim import Knowledge
from attacks.runtime.checkpoint import Checkpoint
from attacks.runtime.clock import now_text
from attacks.runtime.distributed import World
from attacks.schema.groups import EngineConfig
from attacks.schema.run import SECTIONS
from attacks.schema.validate import Run
from attacks.solvers.loop import Trace
from attacks.study.assembly import build
from attacks.study.data import hidden_rows
from attacks.study.objective import aim_of, wants_gallery, watching_layers
from attacks.study.study import Study
from transforms.draws import stream

PACKAGES = ("viewproof", "torch", "torchvision", "kornia", "hydra-core", "numpy", "pillow", "safetensors")
#: Libraries that draw, and write the report.
DRAWING = ("matplotlib", "jinja2")
#: Optional libraries of encoders and resizers.
LIBRARIES = ("opencv-python-headless", "timm", "open_clip_torch", "transformers", "diffusers", "onnx")


def manifest(
    run: Run, study: Study, preset: str, overrides: list[str], choice: Choice, world: World
) -> dict[str, Any]:
    """The content of manifest.json, which reproduces the run. `engine.settings` repeat the decision by overrides."""
    versions = {name: version_of(name) for name in (*PACKAGES, *DRAWING, *LIBRARIES)}
    return {
        "schema": directory.SCHEMA,
        "preset": preset,
        "overrides": overrides,
        "seed": run.seed,
        "primary": declaration(run.evaluate.primary, study.arms, study.sides),
        "config": asdict(run),
        "started": now_text(),
        "policy": policy_record(run.require),
        "gallery": {"sha256": gallery_digest(study), "size": len(study.gallery), "source": study.gallery.source},
        "device": torch.cuda.get_device_name(study.device) if study.device.type == "cuda" else str(study.device),
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "engine": {
            "decision": choice.decision.to_dict(),
            "settings": choice.decision.settings(),
            "measurements": [measurement.to_dict() for measurement in choice.measurements],
        },
        "encoder": study.identity,
        "git": revision(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": processor(),
        "versions": {name: value for name, value in versions.items() if name not in LIBRARIES or value is not None},
        "notes": list(study.queries.notes),
        "artefacts": artefact_plan(study, run.require is not None),
    }


def artefact_plan(study: Study, policy: bool) -> dict[str, Any]:
    """The files that a run, with a `policy` or none, may write (see `artefact_paths`): no other there is its own."""
    sections, arms = sections_of(study), list(study.arms)
    files = [*directory.CORE_FILES, *(f"{name}.csv" for name in sections)]
    files += [section.figure for section in sections.values() if section.figure is not None]
    files += [LEDGER] if black_box(study.encoder) is not None else []
    files += ["duplicates.csv"] if study.duplicates else []
    files += [POLICY, lock_file(Path(POLICY)).name] if policy else []
    files += ["placement.json"] if study.patch is not None else []
    if study.perturbation.texture_size is not None:
        files += ["patch.png", *(f"patches/{arm}.png" for arm in arms if arm != "clean")]
    files += ["fault.safetensors", *(f"fault.{name}.safetensors" for name in SECTIONS)]
    arms += ["radius"] if "radii" in sections else []
    pictures = {"arms": arms, "names": file_names(study.queries.names)}
    return {"pictures": pictures, "files": files, "folders": [CHECKPOINT]}


def processor() -> str:
    """The model of this machine's CPU, and how many cores the system shows."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # another system than Linux
        lines = []
    models = (line.partition(": ")[2] for line in lines if line.startswith("model name"))
    return f"{next(models, platform.processor() or platform.machine())}, {os.cpu_count()} cores"


def version_of(name: str) -> str | None:
    """The installed version of a package; None without it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def revision() -> str | None:
    """The git revision of the source tree, "-dirty" appended if it was changed; None outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


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
        like = study.queries.only([0]).images.to(study.device)
        pace, key = self.run.checkpoint, identity_digest(self.manifest["identity"])
        checkpoint = Checkpoint(out / CHECKPOINT, key, pace.seconds, pace.steps, self.world, study.device)
        folder = getattr(self.run.data, "cache", None)
        cache = cache_of(folder, study.encoder, study.identity, like, self.choice.decision.exact)
        return Place(out, self.world, checkpoint, cache, follow)


def prepare_run(
    run: Run,
    world: World,
    preset: str,
    overrides: list[str],
    module: nn.Module | None = None,
    pipeline: Callable[[Any], Any] | None = None,
    answers: Mapping[str, Any] = MappingProxyType({}),
) -> Preparation:
    """Set up torch, make the parts of a run, and decide how its engine computes. A `module` replaces the encoder,
    `pipeline` is the recorded function, `answers` are those of a black box so far. Raises ValueError or OSError."""
    if run.engine.threads is not None:
        if not 1 <= run.engine.threads <= 1024:  # above the system's limit the library ends the process
            raise ValueError(f"`engine.threads` must be at least 1, and at most 1024; got {run.engine.threads}")
        torch.set_num_threads(run.engine.threads)
    refuse_unfit(run)
    # `use_deterministic_algorithms` would also import the compiler, which takes seconds. `grid_sample` on CUDA is
    # documented instead: with `transforms.deterministic=true` nothing calls it.
    warnings.filterwarnings("ignore", message="grid_sampler_2d_backward_cuda does not have a deterministic")
    torch.set_deterministic_debug_mode("warn")
    keep_freed_memory()
    study = with_start(run, build(run, module, pipeline, answers=answers))
    if study.queries.store is not None:  # large blocks of several sizes would split what is kept
        keep_freed_memory(keep=False)
    check(study)
    refuse_lacking(run.require, study)
    choice = _limited(engine_choice(run.engine, study, world, getattr(run.data, "cache", None)), study)
    record = manifest(run, study, preset, overrides, choice, world)
    record["identity"] = run_identity(run, study, choice.decision, world, record["versions"]) | promises(record)
    return Preparation(run, study, choice, record, world)


def resume_preparation(previous: PreviousRun, run: Run, world: World, module: nn.Module | None = None) -> Preparation:
    """The same for a run that has begun, with its own manifest. Raises ValueError where its numbers would differ."""
    record = previous.manifest
    if run.require is not None:
        run = replace(run, require=str(previous.folder / POLICY))  # as it was when the run began
    ledger = previous.folder / LEDGER
    answers = recorded_answers(ledger) if ledger.exists() else {}
    preparation = prepare_run(run, world, record["preset"], record["overrides"], module, answers=answers)
    refuse_other(record, preparation.manifest["identity"], previous.folder)
    return replace(preparation, manifest=record)


def reopen(folder: Path, program: str | None = None, device: str | None = None) -> Bench:
    """The bench of a finished run, of the pictures in its tables. Its files must have their digests. `program`: of an
    encoder that runs code, as the user gives it. Raises ValueError or OSError."""
    previous, content = directory.intact_run(folder)
    run = previous.run
    if run.encoder.name == MODULE:
        raise ValueError("`encoder` was a module in memory, which no directory holds")
    directory.refuse_program(run, program, f"--encoder-code {getattr(run.encoder, 'model', None)}")
    run.engine.device = device or run.engine.device
    study = build(run)
    exact = Decision.from_dict(previous.manifest["engine"]["decision"]).exact
    return bench_of(study, study.encoder, exact, Place(folder)).only(rows_in(study, content))


def rows_in(study: Study, content: Mapping[str, Any]) -> list[int]:
    """The pictures of a study that are in the tables of its run, by the `content` of metrics.json."""
    failures = {failure["picture"] for failure in content["failed"]}
    return [row for row in range(len(study.queries) - content["left"]) if row not in failures]


#: The approximate number of views of a measurement, on a CPU and on CUDA.
ROWS = (32, 256)
#: The views of a measured step where the attack chooses them: a single one would not show the noise that rounding is
#: compared with.
VIEWS = 4


def engine_choice(node: EngineConfig, study: Study, world: World, cache: str | None) -> Choice:
    """The engine's decision for a run, the same on every process of `world`: the first one measures. Raises
    ValueError or FileNotFoundError for a setting that does not exist."""
    requests = {name: getattr(node, name) for name in SETTINGS}
    fixed_values = {name: value for name, value in requests.items() if value != "auto"}
    try:
        decision = Decision(**fixed_values)
    except ValueError as error:
        raise ValueError(f"`engine.{str(error).removeprefix('`')}") from None
    if node.reuse is not None:
        decision = read_decision(node.reuse)
        if node.name == "auto" and not fixed_values.items() <= decision.to_dict().items():
            raise ValueError("`engine.reuse` takes over a whole decision; give no other engine setting beside it")
    if decision.precision == "tf32" and not has_tf32(study.device):
        raise ValueError(
            f"`engine.precision` must not be tf32 on {study.device}, which has none (NVIDIA GPUs do, from "
            "Ampere on); use engine.precision=auto"
        )
    is_decided = node.reuse is not None or len(fixed_values) == len(requests)
    if not is_decided and black_box(study.encoder) is None:  # which has nothing to measure
        choice = _measure(study, requests, cache) if world.first else None
        plain = None if choice is None else [choice.decision.to_dict(), [m.to_dict() for m in choice.measurements]]
        settings, measurements = world.agree(plain)
        return Choice(Decision.from_dict(settings), tuple(Measurement(**m) for m in measurements))
    return Choice(decision, ())


def _limited(choice: Choice, study: Study) -> Choice:
    """The same with passes of few views where pictures keep their shape: a view reads all pixels of its picture."""
    if study.queries.store is None:
        return choice
    limit = max(1, PIXELS // max(height * width for height, width in study.queries.shapes))
    return choice._replace(decision=replace(choice.decision, chunk=min(choice.decision.chunk, limit)))


def read_decision(path: str) -> Decision:
    """The decision of a run directory, or of its manifest.json."""
    file = Path(path) / "manifest.json" if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise FileNotFoundError(f"`engine.reuse` must be a run directory or its manifest.json; got {path!r}")
    try:
        return Decision.from_dict(dict(directory.read_json(file)["engine"]["decision"]))
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"`engine.reuse`: {file} holds no engine decision; is it a manifest.json?") from None


def _measure(study: Study, requests: dict[str, Any], cache: str | None) -> Choice:
    """Measure on the first step of the attack: its first pictures, views, and start."""
    views, rows = study.views.per_step * (1 if study.views.adaptive is None else VIEWS), study.queries.attacked
    count, exclusions = len(rows), hidden_rows(study.gallery, study.queries, study.truth)
    picture_count = min(count, max(1, ROWS[study.device.type == "cuda"] // views))
    study = study.only([rows[i] for i in study.take(rows[:picture_count]).queries.ranges(picture_count)[0]])
    images = study.queries.images.to(study.device)
    delta = study.perturbation.start(images, torch.Generator().manual_seed(stream(study.seed, "start")))
    eot = EOT(study.transforms, study.draws, views=views, risk=study.risk)
    u = eot.points(stream(study.seed, "attack"), 0, images)
    with torch.no_grad():
        embeddings = gallery = study.encoder(images)
        if wants_gallery(study.objective):
            embedding_cache = cache_of(cache, study.encoder, study.identity, images[:1], Decision())
            gallery = embed_gallery(study.gallery, study.encoder, study.device, BLOCK, embedding_cache).rows
    knowledge = Knowledge(images, embeddings, gallery, *study.right)
    knowledge = knowledge.drop(exclusions) if gallery is not embeddings else knowledge

    def trial(encoder: Encoder, chunk: int) -> Trial:
        problem = Problem(images, anchor, encoder, objective, study.perturbation)
        estimate = replace(eot, chunk=chunk).estimate(problem, delta, u)
        return Trial(estimate.grad, estimate.snr)

    total = min(2, len(study.arms[2:])) * count * study.views.gradients  # `eot`, and `no_eot` where it is another
    with watching_layers(study.encoder, study.objective, study.members) as encoder:
        objective, anchor = aim_of(study.objective, knowledge, encoder, study.transforms, study.seed)
        return choose(encoder, trial, requests, rows=picture_count * views, total_views=total, device=study.device)
