"""The downscale attack: which resizers it passes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks import EOT, L2, Linf, Toward, Wiener, solve
from attacks.data.gallery import HELD_OUT, photograph, photographs, tiles
from attacks.data.images import to_bytes
from attacks.encoders.engine import keep_freed_memory
from attacks.perturbations.ball import Ball
from attacks.resizers.platforms import OPEN, Resampler, at_ratios, codecs, resamplers
from attacks.study.perturbation import radius
from attacks.study.pipeline import preset
from transforms import Compose, Downscale, resize
from transforms.resizing.resize import target_size
from transforms.wrappers import OneOf

from .case import Centred, encoder
from .table import Row, Table, student

RATIOS = (0.95, 1.0, 1.05)
#: Ratios within the range of the views, and pixels cut off (top, left) before the resize, as in no view.
HELD_OUT_RATIOS, PHASES = (0.97, 1.03), ((1, 0), (1, 2))
#: The side of an encoder's input, and the kernel that an attack without EOT knows.
SIDES = {"pocket": 96, "resnet18": 224}
KERNEL = "cv2_linear"
BUDGETS = ("8/255", "16/255", "28dB")


def run(
    arch: tuple[str, ...] = ("pocket",),
    pictures: int = 2,
    size: str = "512",
    steps: int = 100,
    budgets: tuple[str, ...] = BUDGETS,
) -> list[Table]:
    """Success toward another picture by resizer and ratio, by the libraries' own calls on the file.

    Crops of the bundled photographs; each is to be taken for a tile of another photograph, nearest of all tiles.
    EOT: the views of transforms=resizers, scaled to the encoder; six: these views at the exact size. Known: OpenCV
    linear at the exact size alone.
    """
    keep_freed_memory()  # as in a run
    cases = [made(name, pictures, size) for name in arch]
    return [_passed(case, steps, budget) for case in cases for budget in budgets]


@dataclass(frozen=True)
class Case:
    """The pictures (N,3,H,W), the gallery's embeddings (G,D), the rows of the targets (N,), and the encoder with the
    shorter side of its input."""

    name: str
    images: Tensor
    gallery: Tensor
    rows: Tensor
    network: nn.Module
    side: int

    def scores(self, files: list[np.ndarray], resizer: Resampler) -> tuple[Tensor, Tensor]:
        """Of 8-bit pictures (H,W,3) through a resizer: whether the target is nearest, and the cosine to it."""
        size = target_size((self.images.shape[2], self.images.shape[3]), self.side)
        seen = np.stack([resizer(pixels, size) for pixels in files])
        views = torch.from_numpy(seen).permute(0, 3, 1, 2).float() / 255
        with torch.no_grad():
            features = self.network(resize(views, size, "pil_bilinear").clamp(0, 1))
        cosine = F.normalize(features, dim=1) @ F.normalize(self.gallery, dim=1).T
        return cosine.argmax(1) == self.rows, cosine.gather(1, self.rows[:, None])[:, 0]


def made(name: str, pictures: int, size: str) -> Case:
    """The case of an encoder by name, with at most 20 pictures of `size`: a side, or WIDTHxHEIGHT.

    Those beyond the number of held-out photographs are the upper left quarters of the same.
    """
    photos, everything, side = photographs(), tiles(128), SIDES[name]
    names = [HELD_OUT[i % len(HELD_OUT)] for i in range(min(pictures, 2 * len(HELD_OUT)))]
    thumbnails = resize(everything.images, (side, side), "cv2_area").clamp(0, 1)
    network = encoder(name).requires_grad_(False)
    if name != "pocket":
        network = Centred(network, thumbnails).eval()
    with torch.no_grad():
        gallery = torch.cat([network(part) for part in thumbnails.split(32)])
    others = [[i for i, tile in enumerate(everything.names) if photograph(tile) != name] for name in names]
    rows = torch.tensor([rows[(37 * i + 11) % len(rows)] for i, rows in enumerate(others)])
    wide, _, high = size.partition("x")
    wanted = (int(high or wide), int(wide))
    images = torch.stack([crop(photos[photo], i // len(HELD_OUT), wanted) for i, photo in enumerate(names)])
    return Case(name, images, gallery, rows, network, side)


def crop(photo: Tensor, number: int, size: tuple[int, int]) -> Tensor:
    """The centre of a photograph (3,H,W), or of its upper left quarter (`number` 1), in the aspect ratio of `size`
    (height, width) and resized to it, in 8 bits."""
    part = photo[:, : photo.shape[1] >> number, : photo.shape[2] >> number]
    scale = min(part.shape[1] / size[0], part.shape[2] / size[1])
    height, width = (int(scale * side) for side in size)
    top, left = (part.shape[1] - height) // 2, (part.shape[2] - width) // 2
    picture = resize(part[None, :, top : top + height, left : left + width], size, "pil_bicubic")[0]
    return (picture.clamp(0, 1) * 255).round() / 255


def attacked(case: Case, ball: Ball, views: Compose, steps: int) -> list[np.ndarray]:
    """The attacked pictures as files, one at a time."""
    files = []
    for image, row in zip(case.images.split(1), case.rows, strict=True):
        best = solve(
            image,
            case.gallery[row][None],
            encoder=case.network,
            objective=Toward(),
            perturbation=ball,
            optimiser=Wiener(),
            eot=EOT(views, views=1, chunk=8),
            steps=steps,
        )
        files.append(to_bytes((image + ball.quantise(best.delta, image))[0]))
    return files


def known(case: Case) -> Compose:
    """The one resizer that is known."""
    return Compose([Downscale(case.side, KERNEL, eight_bit=True)])


def platform(case: Case, exact: bool = False) -> Compose:
    """The views of transforms=resizers, for the encoder's side; `exact`: at that size alone."""
    low, high = (round(ratio * case.side) for ratio in (RATIOS[0], RATIOS[-1]))
    stages = list(preset("resizers").stages)
    for i, choice in enumerate(stages):
        if isinstance(choice, OneOf):
            own = [stage for stage in choice.stages if isinstance(stage, Downscale)]
            near = [replace(stage, size=(low, high), then_size=case.side) for stage in own]
            same = [Downscale(case.side, stage.kernel, eight_bit=True) for stage in near]
            stages[i] = OneOf(same if exact else near)
    return Compose(stages)


def sets(text: str, case: Case) -> Ball:
    """The ball of a budget: an L-inf radius, or a PSNR."""
    return L2(radius(text, case.images)) if text.endswith("dB") else Linf(float(text.partition("/")[0]) / 255)


def psnr(files: list[np.ndarray], images: Tensor) -> Tensor:
    """The PSNR of each file in dB."""
    saved = torch.from_numpy(np.stack(files)).permute(0, 3, 1, 2) / 255
    return -10 * (saved - images).square().mean((1, 2, 3)).log10()


def _passed(case: Case, steps: int, budget: str) -> Table:
    """Success by resizer and ratio, of the three attacks, also through JPEG 90."""
    resizes, save = at_ratios(resamplers()[0], RATIOS), codecs()[0]["JPEG 90"]
    ball = sets(budget, case)
    attacks = {"known": known(case), "six": platform(case, exact=True), "EOT": platform(case)}
    files = {"clean": [to_bytes(image) for image in case.images]}
    files |= {label: attacked(case, ball, views, steps) for label, views in attacks.items()}
    files |= {f"{label}, JPEG 90": [save(pixels) for pixels in files[label]] for label in attacks}
    rows: dict[str, Row] = {}
    for name, resizer in resizes.items():
        scores = [case.scores(each, resizer) for each in files.values()]
        rows[name] = tuple(float(x.double().mean()) for pair in scores for x in pair)
    several = ", ".join(f"{label} {_several(case, each):.2f}" for label, each in files.items())
    visible = ", ".join(f"{label} {float(psnr(files[label], case.images).mean()):.1f}" for label in attacks)
    notes = (
        *(_gain(case, files, where, resizers) for where, resizers in _open().items()),
        f"files that work on 4 of the 6 open resizers or more at the exact size: {several}",
        f"PSNR in dB: {visible}",
    )
    columns = {f"{label}{what}": ".2f" for label in files for what in ("", ", cosine")}
    what = f"{len(case.images)} pictures of {_size(case)} px, {case.name}, {steps} steps"
    return Table(f"Success toward the target at {budget}: {what}", columns, rows, notes=notes)


def _open() -> dict[str, list[Resampler]]:
    """The six open resizers, at the exact size, at other sizes, and after a cut that moves the pixels they read."""
    six = {name: resize for name, resize in resamplers()[0].items() if name in OPEN}
    ratios = {f"x{ratio:g}": (ratio,) for ratio in RATIOS} | {"held-out sizes x0.97, x1.03": HELD_OUT_RATIOS}
    sizes = {where: list(at_ratios(six, each).values()) for where, each in ratios.items()}
    return sizes | {"held-out phases": [partial(_cut, resize, at) for resize in six.values() for at in PHASES]}


def _cut(resizer: Resampler, at: tuple[int, int], pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return resizer(np.ascontiguousarray(pixels[at[0] :, at[1] :]), size)


def _gain(case: Case, files: Mapping[str, list[np.ndarray]], where: str, resizers: list[Resampler]) -> str:
    """The success of each attack over some resizers, and the difference between EOT and the known one, by picture."""
    shares = {
        label: torch.stack([case.scores(each, resizer)[0] for resizer in resizers], 1).double()
        for label, each in files.items()
        if label != "clean"
    }
    mean, low, high = student(shares["EOT"] - shares["known"])
    means = ", ".join(f"{label} {float(share.mean()):.2f}" for label, share in shares.items())
    return f"open resizers, {where}: {means}; EOT minus known {mean:+.2f} [{low:+.2f}, {high:+.2f}]"


def _size(case: Case) -> str:
    height, width = case.images.shape[2:]
    return f"{width}" if width == height else f"{width}x{height}"


def _several(case: Case, files: list[np.ndarray]) -> float:
    """The share of files that work on at least 4 of the 6 open resizers at the exact size."""
    hits = [case.scores(files, resizer)[0] for name, resizer in resamplers()[0].items() if name in OPEN]
    return float((torch.stack(hits).sum(0) >= 4).double().mean())
