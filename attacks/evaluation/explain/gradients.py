"""The pixels that the gradient reaches through the views of a bank and the encoder."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.encoders.randomness import drawn
from attacks.eot.bank import Bank
from attacks.eot.batching import in_parts
from attacks.evaluation.explain.saliency import CountedEncoder
from attacks.runtime.stored import stored
from transforms import scene_of
from transforms.auditing.coverage import covered, effective, together
from transforms.doors import unchecked

#: The number of views, the first ones of the bank.
VIEWS = 8


@stored("explanation.gradients")
class Reach(NamedTuple):
    """The gradient at N pictures over some views.

    sensitivity: (N,H,W) the root mean square length of the gradient at each pixel; 0 in dead zones.
    coverage: (N,) share of pixels with a gradient in any view.
    view: (N,) the same in one view, on average.
    effective: (N,) the participation ratio of the sensitivities: 1 if all are equal.
    """

    sensitivity: Tensor
    coverage: Tensor
    view: Tensor
    effective: Tensor


def reach(encoder: CountedEncoder, pictures: Tensor, anchors: Tensor, bank: Bank, chunk: int) -> Reach | None:
    """The gradient of the similarity in the first views of `bank` at the pictures (N,3,H,W), at most `chunk` views at
    a time; None if the encoder has no gradient."""
    u = bank.u[:VIEWS].to(pictures)
    rows: list[tuple[Tensor, ...]] = []

    def gradients_of(some: Tensor, picture: Tensor, anchor: Tensor) -> list[Tensor | None]:
        # One copy for each view gives one gradient for each.
        leaf = picture.detach().repeat(len(some), 1, 1, 1).requires_grad_()
        with torch.enable_grad():
            views = unchecked(bank.transforms)(scene_of(leaf), some)
            values = encoder.sloped(views, anchor[None], **drawn(bank.transforms, some))
            return encoder.gradients(values, [leaf])

    for picture, anchor in zip(pictures, anchors, strict=True):
        parts = []
        for _, (gradient,) in in_parts(partial(gradients_of, picture=picture, anchor=anchor), u, chunk):
            if gradient is None:
                return None
            parts.append(gradient.nan_to_num(0, 0, 0))
        maps = torch.cat(parts).double().norm(dim=1).cpu()
        weights = together(list(maps))
        numbers = covered(weights), sum(map(covered, maps)) / len(maps), effective(weights)
        rows.append((weights, *map(torch.tensor, numbers)))
    return Reach(*(torch.stack(column) for column in zip(*rows, strict=True)))
