"""The input of every contestant of the comparison of attacks: pictures, views, an encoder that counts, a budget."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from attacks import L2, Away, CrossEntropy, Linf, Objective, bank
from attacks.data.gallery import tiles
from attacks.data.listing import IMAGENET20
from attacks.data.pictures import read_files
from attacks.eot.bank import Bank
from attacks.perturbations import Masked
from attacks.perturbations.ball import Ball
from attacks.study.pipeline import preset
from transforms import Affine, Brightness, Compose, Contrast, Downscale, Jpeg, Perspective
from transforms.camera import GaussianBlur
from transforms.draws import stream

from .case import GradientCase
from .contest import Counting
from .strength_encoders import REAL_ENCODERS

#: Of pictures; of those that a real encoder is shown.
SIZE, REAL_SIZE = 64, 224
#: Pictures that the peers' settings are chosen on; none of them is attacked for the table.
SCREEN_PICTURES = 4
SEED = 2

#: By name, for pictures of a side; "none": the picture itself, for attacks that only ask.
VIEWS: dict[str, Callable[[int], Compose]] = {
    "mild": lambda _: Compose([Affine(degrees=5, scale=(0.9, 1.1), translate=0.05), Contrast((0.9, 1.1))]),
    "camera": lambda side: preset("camera", side),
    "web": lambda side: preset("web", side),
    "heavy": lambda _: Compose(
        [
            Affine(degrees=60, scale=(0.7, 1.3), translate=0.1),
            Perspective(0.25),
            Brightness(0.15),
            GaussianBlur((0, 1)),
        ]
    ),
    "jpeg": lambda _: Compose([Affine(translate=0.02), Jpeg((30, 90))]),
    "downscale": lambda side: Compose([Affine(degrees=5, translate=0.05), Downscale((side // 4, side * 3 // 4))]),
    "none": lambda _: Compose(),
}


def square_region(side: int) -> Ball:
    """Anything in a square of a quarter of the side, off the centre."""
    mask = torch.zeros(1, 1, side, side)
    mask[..., side // 4 : side // 2, side // 2 : side // 2 + side // 4] = 1
    return Masked(Linf(1.0), mask)


BALLS: dict[str, Callable[[int], Ball]] = {
    f"linf{levels}": lambda _, eps=levels / 255: Linf(eps) for levels in (2, 4, 8, 16)
} | {"l2": lambda side: L2(1.5 * side / SIZE), "patch": square_region}


@lru_cache(maxsize=2)
def strength_pictures(count: int, purpose: str, arch: str = "pocket") -> Tensor:
    """`count` pictures (N,3,S,S) to attack for the "table", or SCREEN_PICTURES others to choose settings on
    ("screen"), or the "first" of these. The former are spread evenly over all tiles, the latter over the gaps; of a
    real encoder the former are the first of the labelled photographs."""
    if arch in REAL_ENCODERS and purpose == "table":
        photographs = read_files(IMAGENET20, REAL_SIZE)
        return torch.stack([photographs.load(i) for i in range(count)])
    all_tiles = tiles(REAL_SIZE if arch in REAL_ENCODERS else SIZE).spread(2 * count).images
    if purpose == "table":
        return all_tiles[::2]
    screen_count = min(SCREEN_PICTURES, count)
    screen_tiles = all_tiles[[2 * (i * count // screen_count) + 1 for i in range(screen_count)]]
    return screen_tiles[:1] if purpose == "first" else screen_tiles


@dataclass(frozen=True, kw_only=True)
class StrengthTask(GradientCase):
    """Several pictures (B,3,S,S) that are attacked together within `ball`: a contestant lowers, for each, the mean
    loss of its views, with `evals` gradients of one view each. `u` is not used: a contestant draws its own views of
    `views`, from `seed`.

    The goals: "away" from the picture's own embedding, the `anchor`, whose cosine is the loss; "toward" another's,
    the negative of which is the anchor; of a classifier, whose anchor is the label (B,) that it gives, the logarithm
    of the label's probability.
    """

    ball: Ball
    views: Compose
    evals: int
    seed: int

    @property
    def counter(self) -> Counting:
        assert isinstance(self.frozen, Counting)
        return self.frozen

    @property
    def objective(self) -> Objective:
        return Away() if self.anchor.is_floating_point() else CrossEntropy()

    def entropy(self, embeddings: Tensor) -> Tensor:
        """As of `GradientCase`; of a classifier minus the logarithm of the label's probability, never quite 0."""
        if self.anchor.is_floating_point():
            return super().entropy(embeddings)
        labels = self.anchor.repeat_interleave(len(embeddings) // len(self.anchor))
        return 1e-7 - CrossEntropy()(embeddings, labels)

    def file(self, images: Tensor) -> Tensor:
        """The attacked pictures as their 8-bit files hold them, brought into the ball first."""
        return self.image + self.ball.quantise(self.ball.project(images - self.image, self.image), self.image)

    def score(self, images: Tensor, views: Bank) -> Tensor:
        """(B,3,S,S) -> the cosine (B,V) of each view of its file to the anchor, or the label's probability."""
        losses = views.losses(self.file(images), self.anchor, self.counter.encoder, self.objective, 128)
        return losses if self.anchor.is_floating_point() else losses.exp()


def task(
    encoder: nn.Module,
    images: Tensor,
    ball: Ball,
    views: Compose,
    evals: int,
    seed: int,
    anchor: Tensor | None = None,
) -> StrengthTask:
    """The task of some pictures, with an encoder that counts; without an anchor it is to move away."""
    counting = Counting(encoder).eval()
    with torch.no_grad():
        anchor = encoder(images) if anchor is None else anchor
    no_points, start = images.new_zeros(0, views.dims), stream(seed, "strength")
    parts = {"ball": ball, "views": views, "evals": evals, "seed": start}
    return StrengthTask(images, no_points, counting, counting, anchor, ball.reach, **parts)  # type: ignore[arg-type]


@torch.no_grad()
def anchor_of(goal: str, encoder: nn.Module, images: Tensor, other_pictures: Tensor) -> Tensor:
    """Of a goal, "away", "toward" or "class": that of each picture, or "toward" that of `other_pictures`, in turn."""
    answers: Tensor = encoder(images)
    if goal == "class":
        return answers.argmax(1)
    if goal == "toward":
        targets: Tensor = encoder(other_pictures[(torch.arange(len(images)) + 1) % len(other_pictures)])
        return -targets
    return answers


def strength_bank(views: Compose, count: int, purpose: str) -> Bank:
    """Views that no attack has seen; settings are chosen on others than those that judge."""
    return bank(views, count, seed=SEED, purpose="evaluate" if purpose == "table" else "screen")
