"""Neighbouring maps become one: homographies are multiplied, any other map passes points on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

#: A geometric stage (`transforms.compose.Geometry`) and its coordinates.
Move = tuple[Any, Tensor]
Link = Tensor | Callable[[Tensor], Tensor]  # a homography, or any other map of points


def fuse(first: Tensor, seen: Sequence[Move | Tensor], last: Tensor, work: torch.dtype) -> list[Link]:
    """The maps that a point passes from the view's pixels, by `first`, to the source's, by `last`: of `seen`, stages
    and matrices (N,3,3) in the order in which pixels meet them, a point meets the last one first."""
    maps: list[Link] = [first]
    for each in reversed(seen):
        if isinstance(each, Tensor):
            maps.append(each)
            continue
        stage, u = each
        matrix = getattr(stage, "matrix", None)  # a `Homography`
        maps.append(partial(_bent, stage, u.to(work)) if matrix is None else matrix(u.to(first)))
    links: list[Link] = []
    for link in [*maps, last]:
        if links and isinstance(link, Tensor) and isinstance(links[-1], Tensor):
            links[-1] = link @ links[-1]
        else:
            links.append(link)
    return [link.to(work) if isinstance(link, Tensor) else link for link in links]


def _bent(stage: Any, u: Tensor, points: Tensor) -> Tensor:
    found: Tensor = stage.pull(points, u)
    return found
