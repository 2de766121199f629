"""The detector of pictures that a resize shows otherwise than people see them: its false alarms, and its hits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.data.gallery import HELD_OUT, photographs, tiles
from attacks.eot.protocols import Objective
from attacks.evaluation.detection import Detection, cosines, threshold_of
from attacks.evaluation.platforms import library_call
from attacks.evaluation.resizers.pipeline import named
from transforms import Compose, resize

from .downscale import BUDGETS, KERNEL, Case, attacked, known, made, platform, psnr, sets
from .table import Row, Table

KERNELS = ("cv2_linear", "cv2_cubic", "torch_bilinear", "pil_nearest")
#: Sides of tiles: an encoder of 224 pixels sees those of 128 enlarged.
TILES = (128, 256)
#: Weights of the detector in the attack that knows it, which aims above the threshold by this share of what is left.
WEIGHTS, MARGIN = (1.0, 4.0), 0.25


def run(
    arch: tuple[str, ...] = ("pocket",),
    pictures: int = 2,
    size: str = "512",
    steps: int = 100,
    budgets: tuple[str, ...] = BUDGETS,
) -> list[Table]:
    """Share of pictures that the detector flags: clean ones, and those of attacks, also of one that knows it.

    Clean: the bundled tiles and photographs together, each against a threshold of those of other photographs.
    Attacked: the pictures of `downscale` behind OpenCV linear, against the same thresholds.
    """
    cases = [made(name, pictures, size) for name in arch]
    return [table for case in cases for table in (false_alarms(case), _hits(case, steps, budgets))]


class Both(nn.Module):
    """The embeddings behind the deployed kernel and behind the antialiased one, side by side: (N,3,H,W) -> (N,2D)."""

    def __init__(self, network: nn.Module, side: int) -> None:
        super().__init__()
        self.network, self.side = network, side

    def forward(self, images: Tensor) -> Tensor:
        views = [resize(images, (self.side, self.side), kernel, eight_bit=True) for kernel in (KERNEL, "pil_lanczos")]
        return torch.cat([self.network(view) for view in views], 1)


@dataclass(frozen=True)
class Unseen(Objective):
    """The deployed one of `Both` toward the anchor, and the two alike: minus the cosine to the anchor, plus `weight`
    times what their own cosine lacks of `least`."""

    least: float
    weight: float
    attracts: ClassVar[bool] = True

    def __call__(self, features: Tensor, anchor: Tensor) -> Tensor:
        """(N,2D), (N,D) -> (N,)."""
        seen, viewed = features.chunk(2, 1)
        lacks = (self.least - F.cosine_similarity(seen, viewed)).clamp(min=0)
        return self.weight * lacks - F.cosine_similarity(seen, anchor)


def cosines_of(case: Case, pictures: Sequence[Tensor], kernel: str) -> Tensor:
    """The cosine of each picture (3,H,W), of any sizes, behind a kernel and behind Lanczos at the encoder's size."""
    side = (case.side, case.side)
    pipelines = [named(kernel, (picture.shape[1], picture.shape[2]), side) for picture in pictures]
    pairs = zip(pictures, pipelines, strict=True)
    return torch.cat([cosines(picture[None], pipeline, case.network) for picture, pipeline in pairs])


@dataclass(frozen=True)
class Clean:
    """The bundled tiles of both sizes and the bundled photographs at their own: pictures (3,H,W), names, photographs,
    and the group of each."""

    pictures: tuple[Tensor, ...]
    names: tuple[str, ...]
    photos: tuple[str, ...]
    groups: tuple[str, ...]


def clean_pictures() -> Clean:
    """All clean pictures of the benchmark."""
    photos = photographs()
    parts = [(cut.images, cut.names, cut.clusters, f"tiles of {size}") for size in TILES for cut in [tiles(size)]]
    each = [
        (picture, f"{name} ({group})", photo, group)
        for images, names, clusters, group in (*parts, (photos.values(), photos, photos, "photographs"))
        for picture, name, photo in zip(images, names, clusters, strict=True)
    ]
    return Clean(*zip(*each, strict=True))


def false_alarms(case: Case) -> Table:
    """Clean pictures that are flagged, by deployed kernel."""
    clean, rows, notes = clean_pictures(), dict[str, Row](), list[str]()
    counts = Counter(clean.groups)
    for kernel in KERNELS:
        alike = {"clean": cosines_of(case, clean.pictures, kernel)}
        found = Detection(kernel, (case.side, case.side), alike, tuple(clean.names), tuple(clean.photos))
        flags, limits = found.flagged("clean").tolist(), found.thresholds.values()
        flagged = [i for i, flag in enumerate(flags) if flag]
        each = Counter(clean.groups[i] for i in flagged)
        bound, lowest = max(limit.bound for limit in limits), min(limit.value for limit in limits)
        rows[kernel] = (*(each[group] for group in counts), len(flagged) / len(flags), bound, lowest)
        notes.append(f"{kernel}: {', '.join(clean.names[i] for i in flagged) or 'none'}")
    columns = {f"of {count} {group}": ".0f" for group, count in counts.items()}
    columns |= {"share": ".4f", "bound": ".4f", "threshold": ".4f"}
    title = f"Clean pictures flagged, {case.name}: {case.side} px, each by those of other photographs"
    return Table(title, columns, rows, notes=tuple(notes))


def _hits(case: Case, steps: int, budgets: Sequence[str]) -> Table:
    """Success and flags by attack and budget, behind the known kernel."""
    clean = clean_pictures()
    alike = cosines_of(case, clean.pictures, KERNEL)
    others = [
        torch.tensor([photo != HELD_OUT[i % len(HELD_OUT)] for photo in clean.photos])
        for i in range(len(case.images))
    ]
    limits = torch.tensor([threshold_of(alike[rows]).value for rows in others], dtype=torch.float64)
    both = replace(case, network=Both(case.network, case.side).eval())
    rows: dict[str, Row] = {}
    for budget in budgets:
        ball, none = sets(budget, case), Compose([])
        files = {
            name: attacked(case, ball, views(case), steps) for name, views in (("known", known), ("EOT", platform))
        }
        for weight in WEIGHTS:
            aims = [Unseen(limit + MARGIN * (1 - limit), weight) for limit in limits.tolist()]
            files[f"knows it, weight {weight:g}"] = attacked(both, ball, none, steps, aims)
        judged = {}
        for name, each in files.items():
            pictures = [torch.from_numpy(pixels).permute(2, 0, 1) / 255 for pixels in each]
            cosine = cosines_of(case, pictures, KERNEL)
            hit, _ = case.scores(each, library_call(KERNEL))
            judged[name] = hit, cosine < limits
            unseen = hit & ~judged[name][1]
            shares = (float(x.double().mean()) for x in (*judged[name], unseen))
            rows[f"{budget}, {name}"] = (*shares, float(cosine.mean()), float(psnr(each, case.images).mean()))
        either = torch.stack([hit & ~flag for name, (hit, flag) in judged.items() if name.startswith("knows")]).any(0)
        rows[f"{budget}, knows it, either"] = (None, None, float(either.double().mean()), None, None)
    columns = {"success": ".2f", "flagged": ".2f", "success unflagged": ".2f", "cosine": ".4f", "PSNR": ".1f"}
    notes = (f"thresholds, of the clean pictures of other photographs: {', '.join(f'{x:.4f}' for x in limits)}",)
    what = f"{len(case.images)} pictures of {case.images.shape[-1]} px, {case.name}, {steps} steps"
    return Table(f"Attacked pictures flagged, {KERNEL} deployed: {what}", columns, rows, notes=notes)
