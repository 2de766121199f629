"""Explanations of a few pictures before and after an attack."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attacks.encoders.engine.batch_norm import settle_batch_norm
from attacks.eot.bank import Bank
from attacks.eot.batching import in_parts
from attacks.evaluation.clusters import Row, Sample, by_arm, by_cluster, column_of
from attacks.evaluation.explain.gradients import (
    CountedEncoder,
    Reach,
    attribution,
    on_picture,
    reach,
    saliency,
    spatial_layer,
)
from attacks.evaluation.intervals import Interval, interval
from attacks.runtime.values import stored


@stored("explanation.maps")
class Maps(NamedTuple):
    """The N pictures of one arm (N,3,H,W), their `likeness` (N,) to the anchor, the input-gradient map and the
    Grad-CAM (N,H,W), None where there is none."""

    pictures: Tensor
    likeness: Tensor
    gradient: Tensor | None
    cam: Tensor | None


@stored("explanations")
@dataclass(frozen=True, eq=False)
class Explanations:
    """The result of `explain`: `arms`, "clean" first; the layer of Grad-CAM, None if no layer is spatial; the
    gradient's `reach` over views of the clean pictures; a line for each part that is `missing`; and passes, in
    pictures."""

    arms: dict[str, Maps]
    layer: str | None
    reach: Reach | None
    missing: tuple[str, ...]
    forward: int
    backward: int
    seconds: float

    def rows(self, sample: Sample) -> list[dict[str, object]]:
        """A row for each picture of the sample and each arm; the coverage of the picture is repeated."""
        columns = {} if self.reach is None else self.reach._asdict()
        none = [None] * len(sample.names)
        shares = {name: columns[field].double().tolist() if columns else none for name, field in COVERAGE.items()}
        return [
            {"picture": name, "cluster": cluster, "arm": arm, "likeness": float(maps.likeness[i])}
            | {key: share[i] for key, share in shares.items()}
            for arm, maps in self.arms.items()
            for i, (name, cluster) in enumerate(zip(sample.names, sample.clusters, strict=True))
        ]


#: The shares of `Reach` by their names in tables.
COVERAGE = {"coverage": "coverage", "view_coverage": "view", "effective_coverage": "effective"}


def explanation_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of metrics.json."""
    arms = by_arm(rows)
    clean = arms["clean"]
    clusters = [str(row["cluster"]) for row in clean]
    likeness = dict[str, dict[str, Any]]()
    for arm, table in arms.items():
        column = column_of(table, "likeness")
        likeness[arm] = dict.fromkeys(Interval._fields)
        if bool(column.isfinite().all()):
            likeness[arm] = interval(by_cluster(column, clusters))._asdict()
    means = {
        name: None if clean[0][name] in (None, "") else float(by_cluster(column_of(clean, name), clusters).mean())
        for name in COVERAGE
    }
    head = {"pictures": [row["picture"] for row in clean], "clusters": len(set(clusters)), "likeness": likeness}
    return head | means | {"dead": None if means["coverage"] is None else 1 - means["coverage"]}


def explain(
    encoder: nn.Module,
    clean: Tensor,
    attacked_arms: Mapping[str, Tensor],
    anchors: Tensor,
    bank: Bank,
    chunk: int = 32,
) -> Explanations:
    """Explain the likeness of the `clean` pictures (N,3,H,W), and of the same pictures in each of the
    `attacked_arms`, to their `anchors` (N,D). The encoder is in evaluation mode and full precision; the gradient's
    coverage is over the first few views of `bank`; at most `chunk` pictures are in memory at once."""
    began, counter, clean = time.perf_counter(), CountedEncoder(encoder), clean.to(anchors.device)
    handles = settle_batch_norm(encoder)
    try:
        layer = spatial_layer(counter, clean, anchors)
        arms = {
            arm: _maps(counter, pictures.to(clean), anchors, layer, chunk)
            for arm, pictures in {"clean": clean, **attacked_arms}.items()
        }
        gradient_reach = reach(counter, clean, anchors, bank, chunk)
    finally:
        for handle in handles:
            handle.remove()
    missing = ["Grad-CAM: no layer with hooks has positions (a hash, or a scripted network)"] if layer is None else []
    if gradient_reach is None:
        missing.append("input gradient and its coverage: the encoder passes no gradient to the picture")
    cost = counter.forward, counter.backward, time.perf_counter() - began
    return Explanations(arms, layer, gradient_reach, tuple(missing), *cost)


def _maps(counter: CountedEncoder, pictures: Tensor, anchors: Tensor, layer: str | None, chunk: int) -> Maps:
    size = (pictures.shape[2], pictures.shape[3])
    indices = torch.arange(len(pictures), device=pictures.device)
    parts = in_parts(lambda rows: attribution(counter, pictures[rows], anchors[rows], layer), indices, chunk)
    attributions = [part for _, part in parts]
    likeness = torch.cat(
        [part for _, part in in_parts(lambda rows: counter.likeness(pictures[rows], anchors[rows]), indices, chunk)]
    )
    cams = [row.cam for row in attributions if row.cam is not None]
    gradients = [row.gradient for row in attributions if row.gradient is not None]
    return Maps(
        pictures.cpu(),
        likeness.cpu(),
        saliency(torch.cat(gradients)).cpu() if gradients else None,
        on_picture(torch.cat(cams), counter.encoder, size).cpu() if cams else None,
    )
