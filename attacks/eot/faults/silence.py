"""Why a gradient is exactly zero: the loss is at its end, or something cuts it on the way; the audit says what."""

from __future__ import annotations

import torch
from torch import Tensor

from attacks.encoders.tree import leaves
from attacks.eot.faults.locate import Query, one_view
from attacks.eot.faults.trace import ENCODER, traced
from transforms import audit
from transforms.compose import seen

#: Views that are looked at.
VIEWS = 4


def why_silent(query: Query, row: int) -> str:
    """In words, of image `row` (of the first one, where all share a delta)."""
    with torch.no_grad():
        views = [one_view(query, row, j) for j in range(min(VIEWS, query.u.shape[-2]))]
    slopes = [line.slope for view in views for line in traced(view)[0] if line.name == ENCODER]
    if not any(slopes):
        return (
            "the loss is at its end: by the features, its gradient is zero (or the objective itself cuts the graph)"
        )

    def features(images: Tensor) -> Tensor:
        return torch.cat([leaf.flatten(1) for leaf in leaves(query.problem.encoder(images))], dim=1)

    picture = seen(views[0].scene)[:1].detach().clamp(0, 1)
    try:
        found = audit(query.transforms, picture, features, draws=VIEWS)
    except ValueError as error:
        return f"the loss has a gradient by the features, and the audit cannot look further: {error}"
    dead = next((stage for stage in found.stages if stage.dead), None)
    if dead is None:
        return (
            "every stage and the encoder pass a gradient on, so no view shows what may be changed, or the loss is "
            "flat there"
        )
    if dead is found.stages[-1]:
        return f"every stage passes a gradient on, and the encoder cuts it: {dead.dead}"
    return f"the gradient dies in the stage {dead.name}: {dead.dead}"
