"""The time of a view of a patch: ours, ART's, and the encoder alone, which is the lower bound."""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks import Wiener
from attacks.encoders.engine import keep_freed_memory
from attacks.runtime.progress import Progress
from transforms.auditing.steps import seeded

from .contest import OURS, Setting, installed
from .patch_case import SCENES, Question, Ranges, question
from .patch_peers import moving_patch, started
from .table import Row, Table
from .timing import allocating, compare

#: The side of the scenes, that of the texture, and the views of a step over all scenes.
TIMED = ((96, 48, 8), (96, 48, 32), (96, 200, 32), (224, 48, 8), (224, 48, 32), (224, 200, 8), (224, 200, 32))
ART, ALONE = "ART", "encoder"
#: More steps than any benchmark takes: each call takes the next.
ENDLESS = 10**6


def run(rounds: int = 15, device: str = "cpu") -> list[Table]:
    """Milliseconds a view: a step of ours, one of ART's, and the encoder, forward and backward, on views that are
    there. All have the encoder frozen, in float32."""
    rows: dict[str, Row] = {}
    with Progress("timing", len(TIMED)) as progress:
        for size, texture, batch in TIMED:
            rows[f"{size}x{size}, texture {texture}, {batch} views"] = times(size, texture, batch, rounds, device)
            progress.step()
    where = f"pocket encoder, {device}, {torch.get_num_threads()} threads, {rounds} rounds"
    table = Table(
        f"Milliseconds a view, a step of all: {where}",
        dict.fromkeys((OURS, ART, ALONE, "ART / ours", "ART / encoder"), ".2f"),
        rows,
        None,
        ("ART / encoder: what no placement, however fast, exceeds with this encoder as it comes",),
    )
    return [table]


def times(size: int, texture: int, batch: int, rounds: int, device: str) -> Row:
    """A row: ours, ART's (None where it is missing), the encoder, and ART's over both."""
    task = on(device, question(1, True, Ranges(), 1, size))
    makers = {ALONE: alone(task, batch), OURS: ours(task, batch, texture)}
    if installed("art"):
        makers[ART] = art(task, batch, texture)
    steps = {name: allocating(step, name != ART) for name, step in makers.items()}
    seconds = compare(steps, rounds, device, warm=True)
    keep_freed_memory(False)
    each = {name: 1e3 * s / batch for name, s in seconds.items()}
    mine, theirs, bare = each[OURS], each.get(ART), each[ALONE]
    return mine, theirs, bare, theirs and theirs / mine, theirs and theirs / bare


def on(device: str, task: Question) -> Question:
    """The same question with its tensors and its encoder there."""
    tensors = {name: getattr(task, name).to(device) for name in ("image", "rows", "gallery")}
    return dataclasses.replace(task, **tensors, counted=task.counted.to(device))


def alone(task: Question, batch: int) -> Callable[[], object]:
    """The encoder's gradient for `batch` views that are there."""
    views = task.image.repeat_interleave(batch // SCENES, 0)

    def run() -> Tensor:
        leaf = views.clone().requires_grad_()
        loss = F.cosine_similarity(task.counted.encoder(leaf), task.anchor[:1]).sum()
        return torch.autograd.grad(loss, leaf)[0]

    return run


def ours(task: Question, batch: int, texture: int) -> Callable[[], object]:
    """The next step of our loop at each call."""
    steps = started(task, Setting(Wiener().rel_step_size, batch // SCENES), ENDLESS, texture)
    return lambda: next(steps)


def art(task: Question, batch: int, texture: int) -> Callable[[], object]:
    """The next step of ART's Adam; its pgd costs the same."""
    setting = Setting(0.05, batch // SCENES, loss="gallery")
    attacker, pictures, labels = moving_patch(task, setting, 1, "Adam", texture)
    with seeded(0):
        # determines the kind of its loss
        attacker.generate(pictures[:1].numpy(force=True), labels[:1].numpy(force=True))
    return lambda: attacker._train_step(images=pictures, target=labels)
