"""Neighbouring maps become one: homographies are multiplied, any other map passes points on."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from transforms.devices import uploaded


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
Link = Tensor | Callable[[Tensor], Tensor]  # a homography, or any other map of points


def fuse(first: Tensor, seen: Sequence[Move | Tensor], last: Tensor, work: torch.dtype) -> list[Link]:
    """The maps that a point passes from the view's pixels, by `first`, to the source's, by `last`: of `seen`, stages
    and matrices (N,3,3) in the order in which pixels meet them, a point meets the last one first. All matrices and
    coordinates are on the host; points may be on any device."""
    maps: list[Link] = [first]
    for each in reversed(seen):
        if isinstance(each, Tensor):
            maps.append(each)
            continue
        stage, u = each
        if isinstance(stage, MatrixMap):
            maps.append(stage.matrix(u.to(first)))
        else:
            maps.append(partial(_pull, stage, u.to(work)))
    links: list[Link] = []
    for link in [*maps, last]:
        if links and isinstance(link, Tensor) and isinstance(links[-1], Tensor):
            links[-1] = link @ links[-1]
        else:
            links.append(link)
    return [link.to(work) if isinstance(link, Tensor) else link for link in links]


def _pull(stage: PointMap, u: Tensor, points: Tensor) -> Tensor:
    return stage.pull(points, u if hasattr(stage, "discrete") else uploaded(u, points.device))
