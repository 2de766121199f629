"""What a picture is, when it is never seen but through views."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.randomness import drawn
from attacks.encoders.tree import Tree, joined, mapped
from attacks.eot.batching import in_parts
from attacks.eot.estimator import view
from attacks.eot.protocols import Encoder
from attacks.evaluation.scores import Bank
from transforms import Scene, scene_of


@torch.no_grad()
def mean_embedding(images: Tensor, encoder: Encoder, bank: Bank, chunk: int = 64) -> Tree:
    """The direction that the views of each picture have in common: (N,C,H,W) -> (N,D) of length 1, or a tree of such.

    Every view's embedding is scaled to length 1 before the mean is taken, and the mean itself after it: of all
    directions this is the one whose mean cosine to the views is highest (the mean direction of directional
    statistics, Mardia & Jupp 2000). As the anchor of `Away` it keeps an attack from being paid for what the
    views do by themselves. For the metric "l2" take the plain mean, `bank.features(...).mean(1)`.

    Args:
        images: in [0,1].
        bank: the views, on any device; not those that scores are taken from.
        chunk: most views held in memory at once.
    """
    u, rows = bank.u.to(images), []
    for image in images:
        scene = scene_of(image[None])

        def look(part: Tensor, scene: Scene = scene) -> Tree:
            return encoder(view(bank.transforms, scene, part), **drawn(bank.transforms, part))

        seen = in_parts(look, u, chunk)
        sums = [mapped(found, lambda leaf: F.normalize(leaf, dim=-1).sum(0)) for _, found in seen]
        rows.append(joined(sums, lambda leaves: torch.stack(leaves).sum(0)))
    return mapped(joined(rows, torch.stack), lambda leaf: F.normalize(leaf, dim=-1))
