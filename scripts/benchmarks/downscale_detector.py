"""The detector of pictures that a resize shows otherwise than people see them: its false alarms, and its hits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.data.gallery import photographs, tiles
from attacks.eot.protocols import Objective
from attacks.evaluation.detection import Detection, cosines, threshold_of
from attacks.evaluation.platforms import library_call
from attacks.evaluation.resizers.pipeline import named
from transforms import Compose, resize

from .downscale import BUDGETS, KERNEL, Case, attacked, crop, known, made, platform, psnr, sets
from .table import Row, Table

KERNELS = ("cv2_linear", "cv2_cubic", "torch_bilinear", "pil_nearest")
#: Sides of tiles: of 128 pixels an encoder of 224 sees them enlarged.
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

    Clean: the bundled tiles, and the bundled photographs as large as they are, each against a threshold of the other
    photographs. Attacked: the pictures of `downscale` behind OpenCV linear, against a threshold of the other
    photographs at that size.
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


def false_alarms(case: Case) -> Table:
    """Clean pictures that are flagged, by deployed kernel."""
    photos, samples = photographs(), {}
    for cut in map(tiles, TILES):
        what = f"{len(cut)} tiles of {cut.images.shape[-1]}"
        samples[what] = list(cut.images), cut.names, cut.clusters
    samples[f"{len(photos)} photographs"] = list(photos.values()), tuple(photos), tuple(photos)
    rows: dict[str, Row] = {}
    notes = ["a bound k / (n + 1) is for exchangeable pictures, which tiles of one photograph are not quite"]
    for kernel in KERNELS:
        row: list[float | None] = []
        for what, (pictures, names, clusters) in samples.items():
            clean = {"clean": cosines_of(case, pictures, kernel)}
            found = Detection(kernel, (case.side, case.side), clean, names, clusters)
            flags, limits = found.flagged("clean"), found.thresholds.values()
            flagged = [name for name, flag in zip(names, flags.tolist(), strict=True) if flag]
            row += [float(flags.double().mean()), max(limit.bound for limit in limits)]
            row += [min(limit.value for limit in limits)]
            notes += [f"{kernel}, of {what}: {', '.join(flagged) or 'none'}"]
        rows[kernel] = tuple(row)
    each = {"flagged": ".4f", "bound": ".4f", "threshold": ".4f"}
    columns = {f"{key}, {what}": form for what in samples for key, form in each.items()}
    return Table(f"Clean pictures flagged, {case.name}: {case.side} px", columns, rows, notes=tuple(notes))


def _hits(case: Case, steps: int, budgets: Sequence[str]) -> Table:
    """Success and flags by attack and budget, behind the known kernel."""
    clean = [crop(photo, 0, (case.images.shape[2], case.images.shape[3])) for photo in photographs().values()]
    alike = cosines_of(case, clean, KERNEL)
    others = [torch.tensor([not torch.equal(image, one) for one in clean]) for image in case.images]
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
    notes = (
        f"thresholds of {int(others[0].sum())} other photographs: {', '.join(f'{x:.4f}' for x in limits.tolist())}; "
        f"a clean picture is flagged with a probability of at most {1 / (1 + int(others[0].sum())):.2f}",
    )
    what = f"{len(case.images)} pictures of {case.images.shape[-1]} px, {case.name}, {steps} steps"
    return Table(f"Attacked pictures flagged, {KERNEL} deployed: {what}", columns, rows, notes=notes)
