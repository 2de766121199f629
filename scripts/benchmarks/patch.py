"""The strength of patches for equal numbers of gradients: ours by one rule, ART's as documented and tuned."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import EOT, Away, Wiener, attack
from attacks.objectives import InfoNCE
from transforms.auditing.steps import seeded

from .contest import OURS, Attack, Contestant, Setting, outcomes
from .patch_case import GROUPS, SCENES, SIZE, TEXTURE, PatchRanges, PatchTask, patch_task
from .peers import LogProbabilities, art_patch
from .table import MISSING, BenchmarkTable, Row, student_interval

#: Views of each scene that choose a peer's setting.
TUNING_VIEWS = 32
TEMPERATURE = InfoNCE.temperature


def our_patch(question: PatchTask, setting: Setting) -> Attack:
    """The last iterate of our loop, the loss that of the preset `patch_quickstart`; or away from the scene's own
    embedding."""
    direction = question.target is None

    def run() -> Tensor:
        *_, step = attack(
            question.image,
            question.anchor if direction else question.goal,
            encoder=question.counter,
            objective=Away() if direction else InfoNCE(question.gallery, TEMPERATURE, targeted=True),
            perturbation=question.ranges.patch(question.image.shape[-1], TEXTURE),
            optimiser=Wiener(rel_step_size=setting.step),
            eot=EOT(question.ranges.pipeline, views=setting.views),
            steps=question.evals // setting.views,
            seed=question.seed,
        )
        return step.delta

    return run


class ToGallery(nn.Module):
    """A class for each picture of the gallery, the logits its cosines over `TEMPERATURE`."""

    def __init__(self, question: PatchTask) -> None:
        super().__init__()
        self.encoder, self.gallery = question.counter, question.gallery

    def forward(self, views: Tensor) -> Tensor:
        return F.normalize(self.encoder(views), dim=1) @ self.gallery.T / TEMPERATURE


def moving_patch(question: PatchTask, setting: Setting, optimiser: str) -> tuple[Any, Tensor, Tensor]:
    """ART's attack, the pictures of a step (each scene as often as it has views), and their labels."""
    model: nn.Module
    model, labels, classes = LogProbabilities(question.counter, question.anchor), torch.zeros_like(question.goal), 2
    if setting.loss == "gallery":
        model, labels, classes = ToGallery(question), question.goal, len(question.gallery)
    pictures = question.image.repeat_interleave(setting.views, 0)
    patch_attack = art_patch(
        model,
        pictures,
        classes,
        **question.ranges.arguments(),
        learning_rate=setting.step,
        max_iter=question.evals // setting.views,
        patch_shape=(3, TEXTURE, TEXTURE),
        optimizer=optimiser,
        targeted=question.target is not None,
    )
    return patch_attack, pictures, F.one_hot(labels.repeat_interleave(setting.views), classes).float()


def art(optimiser: str) -> Callable[[PatchTask, Setting], Attack]:
    """ART's texture with one of its two optimisers."""

    def prepare(question: PatchTask, setting: Setting) -> Attack:
        patch_attack, pictures, labels = moving_patch(question, setting, optimiser)

        def run() -> Tensor:
            with seeded(question.seed):
                texture, _ = patch_attack.generate(pictures.numpy(), labels.numpy(), shuffle=False)
            return torch.as_tensor(texture, dtype=torch.float32)[None]

        return run

    return prepare


#: Learning rates, views and losses.
GRID = tuple(
    Setting(step, views, loss=loss)
    for step, views, loss in itertools.product((0.01, 0.02, 0.05, 0.1, 0.2), (1, 4), ("cosine", "gallery"))
)
#: Ours: the defaults, and two views of each scene a step, chosen on the first group. ART's default learning rate, 5,
#: is that of its signature.
CONTESTANTS = {
    OURS: Contestant("attacks", our_patch, (), Setting(Wiener().rel_step_size, 2, loss="as its preset")),
    "ART, Adam": Contestant("art", art("Adam"), GRID, Setting(5.0, 1, loss="cosine")),
    "ART, pgd": Contestant("art", art("pgd"), GRID, Setting(5.0, 1, loss="cosine")),
}


class PatchCell(NamedTuple):
    """A goal, and where the patch may lie. The scales leave room for a difference: at 0.3 to 0.6 of a scene's side a
    patch hides nearly every scene, and is taken for hardly any target."""

    targeted: bool
    ranges: PatchRanges

    def __str__(self) -> str:
        low, high = self.ranges.scale
        askew = f", distortion {self.ranges.distortion:g}" if self.ranges.distortion else ""
        return f"{'toward a target' if self.targeted else 'direction'}, scale {low:g} to {high:g}{askew}"


CELLS = (
    PatchCell(True, PatchRanges((0.5, 0.8))),
    PatchCell(True, PatchRanges((0.5, 0.8), distortion=0.2)),
    PatchCell(False, PatchRanges((0.2, 0.4))),
)


class PatchJob(NamedTuple):
    """An attack of a contestant on a group of scenes, `evals` gradients of each, and how many `views` of each scene
    judge it, for each renderer."""

    cell: PatchCell
    group: int
    name: str
    setting: Setting
    evals: int
    views: int


class PatchOutcome(NamedTuple):
    """The outcome of one texture: whether each view succeeds, and its cosine to the anchor, (2,B,V) both: by our
    renderer, and by ART's. And the gradients of each scene that it took."""

    success: Tensor
    cosine: Tensor
    gradients: float


def patch_outcome(job: PatchJob) -> PatchOutcome:
    """The texture of a job, as an 8-bit file holds it, on fresh placements. The result depends on the job alone."""
    task = patch_task(job.group, job.cell.targeted, job.cell.ranges, job.evals)
    texture = CONTESTANTS[job.name].prepare(task, job.setting)()
    gradients = task.counter.gradients / len(task.image)
    texture = (texture.clamp(0, 1) * 255).round() / 255
    judges = [task.ours(texture, job.views)]
    if any(contestant.installed for contestant in CONTESTANTS.values() if contestant.module == "art"):
        theirs, _, _ = moving_patch(task, Setting(1.0, 1), "Adam")
        judges.append(task.theirs(theirs._random_overlay, texture, job.views))
    cosine, success = zip(*(task.judgement(views) for views in judges), strict=True)
    return PatchOutcome(torch.stack(success).float(), torch.stack(cosine), gradients)


def run(evals: int = 64, groups: int = 6, held_out: int = 64) -> list[BenchmarkTable]:
    """A patch that lies anywhere, ours and ART's: success and cosine.

    Args:
        evals: gradients of each scene.
        groups: of scenes, for each a patch.
        held_out: placements in each scene that judge, for each renderer.

    Raises:
        ValueError: more groups than there are.
    """
    if not groups < GROUPS:
        raise ValueError(f"`--groups` must be at most {GROUPS - 1}, for the first one chooses settings; got {groups}")
    return [table for cell in CELLS for table in compare_patches(cell, evals, groups, held_out)]


def compare_patches(cell: PatchCell, evals: int, groups: int, views: int) -> tuple[BenchmarkTable, BenchmarkTable]:
    """All contestants on one cell, ART's with the defaults of its signature and tuned."""

    def results(title: str, plan: Mapping[Any, Sequence[PatchJob]]) -> dict[Any, list[PatchOutcome]]:
        return outcomes(title, patch_outcome, plan, lambda o: {"success": float(o.success.mean())})

    def best_setting(name: str, grid: Sequence[Setting]) -> Setting:
        """The setting with the most success on the first group, by the contestant's own renderer; among equals, that
        with the better cosine."""
        plan = {setting: [PatchJob(cell, 0, name, setting, evals, TUNING_VIEWS)] for setting in grid}
        scores = {key: outcome for key, (outcome,) in results(f"tuning {name}", plan).items()}
        sign = 1 if cell.targeted else -1
        measures = (lambda o: float(o.success[-1].mean())), (lambda o: sign * float(o.cosine[-1].mean()))
        return max(grid, key=lambda setting: [measure(scores[setting]) for measure in measures])

    rows = dict[str, tuple[str, Setting]]()
    for name, contestant in CONTESTANTS.items():
        if contestant.installed and contestant.default:
            rows[name] = name, contestant.default
            if grid := [setting for setting in contestant.grid if setting.views <= evals]:
                rows[f"{name}, tuned"] = name, best_setting(name, grid)
    missing: dict[str, Row] = dict.fromkeys((name for name in CONTESTANTS if name not in rows), MISSING)
    plan = {
        row: [PatchJob(cell, group, name, setting, evals, views) for group in range(1, groups + 1)]
        for row, (name, setting) in rows.items()
    }
    scores = results(f"{cell}", plan)
    success, cosine = (
        {row: patch_row(measure, score, scores[OURS]) for row, score in scores.items()} | missing
        for measure in ("success", "cosine")
    )
    subject = f"{cell}; {groups} groups of {SCENES} scenes, {evals} gradients of each"
    size = f"({SIZE}x{SIZE}, texture {TEXTURE}x{TEXTURE}), {views} views of each judge"
    notes = tuple(f"{row}: {setting}; {scores[row][0].gradients:g} gradients" for row, (_, setting) in rows.items())
    better = "higher" if cell.targeted else "lower"
    return (
        BenchmarkTable(f"Success of a patch, {subject} {size}", patch_columns(3), success, notes),
        BenchmarkTable(f"Cosine to the anchor, {better} is stronger: {subject}", patch_columns(4), cosine),
    )


def patch_columns(digits: int) -> dict[str, str]:
    """The heads of a table, with so many digits."""
    means, differences = ("by ours", "by ART"), ("- ours", "low", "high")
    return dict.fromkeys(means, f".{digits}f") | dict.fromkeys(differences, f"+.{digits}f")


def patch_row(name: str, mine: Sequence[PatchOutcome], ours: Sequence[PatchOutcome]) -> Row:
    """A row: the means by each renderer (ART's is None where it is missing), and over both the difference to ours,
    with its interval over groups, because the scenes of a group share a patch."""
    means_of_peer, means_of_ours = (
        torch.stack([getattr(o, name).mean((1, 2)) for o in results_of_row]) for results_of_row in (mine, ours)
    )
    by = [float(value) for value in means_of_peer.mean(0)]
    return (
        by[0],
        by[1] if len(by) > 1 else None,
        *student_interval((means_of_peer - means_of_ours).mean(1, keepdim=True)),
    )
