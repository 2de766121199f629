"""The input of every contestant of the comparison of attacks: pictures, views, a counting encoder, a budget."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import torch
from torch import Tensor, nn

from attacks import Away, Linf, bank
from attacks.data.gallery import Pictures, tiles
from attacks.eot.bank import Bank
from attacks.experiment.build.pipeline import preset
from transforms import stream

from .case import Case, encoder
from .contest import Counting

PIPELINE, SIZE = preset("camera"), 96
#: Pictures that are attacked together, whatever the number of processes: all of them see the same views.
GROUP = 5
#: Pictures that the peers' settings are chosen on; none of them is attacked for the table.
TUNED = 3
#: Our own defaults were chosen on tiles spread over the gallery in these numbers, and on banks with another seed.
#: They have no part in the table.
CHOSEN, SEED = (6, 10, 16), 1
#: Views of which the mean embedding of an encoder without training is taken.
CENTRE = 64

Purpose = Literal["evaluate", "tune"]


class Centred(nn.Module):
    """An encoder less its mean embedding. With random weights the embeddings of all pictures share one large part
    (what ReLUs leave is positive), and their cosines stay near 1 whatever is done to a picture; less the mean, a view
    that has lost its picture has a cosine near 0."""

    mean: Tensor

    def __init__(self, encoder: nn.Module, views: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        with torch.no_grad():
            self.register_buffer("mean", encoder(views).mean(0))

    def forward(self, views: Tensor) -> Tensor:
        embedding: Tensor = self.encoder(views) - self.mean
        return embedding


@lru_cache(maxsize=1)
def network(arch: str) -> nn.Module:
    """(N,3,H,W) -> (N,D), frozen: the pocket encoder, or a centred one with random weights."""
    plain = encoder(arch).requires_grad_(False)
    if arch == "pocket":
        return plain
    points = bank(PIPELINE, CENTRE, seed=0, purpose="centre").u
    return Centred(plain, PIPELINE(tiles(SIZE).spread(CENTRE).images, points)).eval()


@lru_cache(maxsize=2)
def pictures(count: int, purpose: Purpose) -> Tensor:
    """`count` tiles (N,3,S,S) to attack for the table, or TUNED others to choose settings on; the former are spread
    evenly over all tiles, the latter over the gaps between them."""
    whole = tiles(SIZE)
    ours = {name for some in CHOSEN for name in whole.spread(some).names}
    fresh = [i for i, name in enumerate(whole.names) if name not in ours]
    both = Pictures(tuple(whole.names[i] for i in fresh), whole.images[fresh]).spread(2 * count).images
    if purpose == "evaluate":
        return both[::2]
    rows = [2 * (i * count // min(TUNED, count)) + 1 for i in range(min(TUNED, count))]
    return both[rows]


def held_out(purpose: Purpose, views: int) -> Bank:
    """Views that no attack has seen; settings are chosen on others."""
    return bank(PIPELINE, views, seed=SEED, purpose=purpose)


@dataclass(frozen=True, kw_only=True)
class Group(Case):
    """Several pictures (B,3,S,S) that are attacked together within the L-inf ball `eps`: a contestant lowers, for
    each, the mean cosine of its views to its own embedding. Its pictures are kept after each of `marks` gradients of
    one view; the last is the attack's end. `u` is not used: a contestant draws its own views of `PIPELINE`, from
    `seed`."""

    marks: tuple[int, ...]
    seed: int

    @property
    def evals(self) -> int:
        """Gradients of each picture."""
        return self.marks[-1]

    @property
    def counted(self) -> Counting:
        assert isinstance(self.frozen, Counting)
        return self.frozen

    def file(self, attacked: Tensor) -> Tensor:
        """The attacked pictures as their 8-bit files hold them, brought into the ball first."""
        ball = Linf(self.eps)
        return self.image + ball.quantise(ball.project(attacked - self.image, self.image), self.image)

    def score(self, attacked: Tensor, views: Bank) -> Tensor:
        """(B,3,S,S) -> the cosine (B,V) of each view of its file to the untouched picture."""
        return views.losses(self.file(attacked), self.anchor, self.counted.encoder, Away(), 64)


def group(arch: str, images: Tensor, eps: float, marks: tuple[int, ...], index: int) -> Group:
    """The task of some pictures; the same `index`, the same seed."""
    frozen = network(arch)
    counting = Counting(frozen).eval()
    with torch.no_grad():
        anchor = frozen(images)
    unused, seed = images.new_zeros(0, PIPELINE.dims), stream(0, "strength", index)
    return Group(images, unused, counting, counting, anchor, eps, marks=marks, seed=seed)


@dataclass
class Trace:
    """The pictures after each of `marks` evaluations of each of them; the last is the attack's end."""

    marks: tuple[int, ...]
    pictures: dict[int, Tensor] = field(default_factory=dict)

    def record(self, images: Tensor, done: int, more: int) -> None:
        """Record the pictures after `done` evaluations, which serve the next `more`."""
        self.pictures |= {mark: images.detach().clone() for mark in self.marks if done <= mark < done + more}

    def end(self, images: Tensor) -> Mapping[int, Tensor]:
        """The pictures at all marks, the last being `images`."""
        return self.pictures | {self.marks[-1]: images}
