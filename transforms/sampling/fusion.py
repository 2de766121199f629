"""Neighbouring maps become one: homographies are multiplied, any other map passes points on."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from transforms.devices import uploaded
from transforms.sampling.homography import facing, lattice, transform

#: A geometric stage returns a point with this coordinate for an output point that sees nothing of its input (past the
#: edge of a label, beyond the fold of a lens): the view shows the border value there, and no gradient flows.
UNSEEN = 1e6
#: The last row of an affine matrix: it has the right sign and scale, and needs no `facing`.
AFFINE = torch.tensor([0.0, 0.0, 1.0])


class PointMap(Protocol):
    """The part of a geometric stage (`transforms.compose.Geometry`) that is used here."""

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        """Output points -> input points."""


@runtime_checkable
class MatrixMap(Protocol):
    """The part of a `transforms.compose.Homography` that is used here."""

    def matrix(self, u: Tensor) -> Tensor:
        """(N,dims) -> (N,3,3)."""


#: A geometric stage and its coordinates.
Move = tuple[PointMap | MatrixMap, Tensor]


class Bend(NamedTuple):
    """A map of points that is no homography, and its coordinates (N,dims) on the host."""

    stage: PointMap
    u: Tensor

    def __call__(self, points: Tensor) -> Tensor:
        u = self.u if hasattr(self.stage, "discrete") else uploaded(self.u, points.device)
        return self.stage.pull(points, u)


@dataclass(frozen=True, eq=False)
class Chain:
    """The map of a view's pixels to a source's, a `Pull`: a homography (N,3,3), and what follows."""

    first: Tensor
    links: tuple[Tensor | Bend, ...]

    def __call__(self, x: Tensor, y: Tensor, device: torch.device) -> tuple[Tensor, Tensor | None]:
        points, w = lattice(self.first, x, y, device)
        for link in self.links:
            if isinstance(link, Tensor):
                points, ahead = transform(uploaded(link, device), points)
            else:
                points = link(points)
                ahead = (points.detach().abs().amax(-1) < UNSEEN).to(points.dtype)
            w = ahead if w is None else torch.minimum(w, ahead)
        return points, w

    @property
    def moves(self) -> bool:
        """Whether the places that it leads to may need a gradient. A bend may: it can differ from point to point."""
        return any(not isinstance(link, Tensor) or link.requires_grad for link in (self.first, *self.links))

    def take(self, rows: Tensor) -> "Chain":
        def pick(value: Tensor) -> Tensor:
            return value if len(value) == 1 else value[rows]

        links = (pick(link) if isinstance(link, Tensor) else link._replace(u=pick(link.u)) for link in self.links)
        return Chain(pick(self.first), tuple(links))


def fuse(first: Tensor, stages: Sequence[Move | Tensor], to_source: Tensor, work: torch.dtype) -> Chain:
    """The maps that a point passes from the view's pixels, by `first`, to the source's, by `to_source`: of `stages`,
    maps and matrices (N,3,3) in the order in which pixels meet them, a point meets the last one first. All matrices
    and coordinates are on the host; points may be on any device."""
    links: list[Tensor | Bend] = [first]
    for part in (*reversed(stages), to_source):
        if part is to_source:
            link: Tensor | Bend = to_source
        elif isinstance(part, Tensor) or isinstance(part[0], MatrixMap):
            link = part if isinstance(part, Tensor) else cast(MatrixMap, part[0]).matrix(part[1].to(first))
            if not torch.equal(link[:, 2].detach(), AFFINE.to(link).expand(len(link), 3)):
                link = facing(link)
        else:
            link = Bend(part[0], part[1].to(work))
        if isinstance(link, Tensor) and isinstance(links[-1], Tensor):
            links[-1] = link @ links[-1]
        else:
            links.append(link)
    start, *rest = [link.to(work) if isinstance(link, Tensor) else link for link in links]
    assert isinstance(start, Tensor)
    return Chain(start, tuple(rest))
