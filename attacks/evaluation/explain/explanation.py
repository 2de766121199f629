"""Explanations of a few pictures before and after an attack."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attacks.encoders.batch_norm import settle
from attacks.eot.bank import Bank
from attacks.eot.batching import in_parts
from attacks.evaluation.clusters import Sample, by_cluster
from attacks.evaluation.explain.deletion import area, curves, ranks
from attacks.evaluation.explain.gradcam import attribution, on_picture, spatial_layer
from attacks.evaluation.explain.gradients import Reach, reach
from attacks.evaluation.explain.saliency import CountedEncoder, saliency
from attacks.evaluation.explain.spectrum import frequencies, radial, ring_count, shares
from attacks.evaluation.intervals import Interval, interval
from attacks.runtime.stored import stored
from transforms import stream

#: The orders of deletion: by Grad-CAM, by the input gradient, and random.
CAM, GRADIENT, RANDOM = "gradcam", "gradient", "random"


@stored("explanation.maps")
class Maps(NamedTuple):
    """The N pictures of one arm (N,3,H,W), their `likeness` (N,) to the anchor, the input-gradient map and the
    Grad-CAM (N,H,W), None where there is none, and by order the deletion and insertion curves (N,2,S)."""

    pictures: Tensor
    likeness: Tensor
    gradient: Tensor | None
    cam: Tensor | None
    curves: dict[str, Tensor]

    def areas(self, order: str) -> Tensor:
        """(N,2): the areas under the deletion and the insertion curves."""
        return area(self.curves[order])


@stored("explanations")
@dataclass(frozen=True, eq=False)
class Explanations:
    """The result of `explain`.

    `arms` begins with "clean". `layer` is the layer of Grad-CAM, None if no layer is spatial. `reach` is the gradient
    over views of the clean pictures; `frequency` (F,) and `power[arm]` (N,F) are the perturbation's spectrum.
    `missing` has a line for each part that could not be computed. Passes are counted in pictures.
    """

    names: tuple[str, ...]
    clusters: tuple[str, ...]
    arms: dict[str, Maps]
    layer: str | None
    reach: Reach | None
    frequency: Tensor
    power: dict[str, Tensor]
    missing: tuple[str, ...]
    forward: int
    backward: int
    seconds: float

    @property
    def orders(self) -> tuple[str, ...]:
        """The available orders of deletion, the random one last."""
        return tuple(self.arms["clean"].curves)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metrics.json. `deletion` and `insertion` are those of the first order, `orders` has all,
        and `beyond_random` the differences from the random order on the same pictures."""
        tables = {order: self._table(order) for order in self.orders}
        beyond = {order: self._table(order, RANDOM) for order in self.orders if order != RANDOM}
        by_arm = {arm: shares(power, self.clusters) for arm, power in self.power.items()}
        spectrum = {"frequency": self.frequency.tolist(), "arms": by_arm}
        means = {
            name: None if column is None else float(by_cluster(column, self.clusters).mean())
            for name, column in self._coverage().items()
        }
        dead = None if means["coverage"] is None else 1 - means["coverage"]
        return {
            "layer": self.layer,
            "pictures": list(self.names),
            "clusters": len(set(self.clusters)),
            "likeness": {arm: _interval(maps.likeness, self.clusters) for arm, maps in self.arms.items()},
            "order": self.orders[0],
            **tables[self.orders[0]],
            "orders": tables,
            "beyond_random": beyond,
            **means,
            "dead": dead,
            "spectrum": spectrum,
            "missing": list(self.missing),
            "cost": {"forward": self.forward, "backward": self.backward, "seconds": self.seconds},
        }

    def rows(self) -> list[dict[str, object]]:
        """A row for each picture, arm and order; the coverage of the picture is repeated."""
        coverage = self._coverage()
        return [
            {
                "picture": name,
                "arm": arm,
                "order": order,
                "likeness": float(maps.likeness[i]),
                "deletion": float(deletion),
                "insertion": float(insertion),
                **{name: None if shares is None else float(shares[i]) for name, shares in coverage.items()},
            }
            for arm, maps in self.arms.items()
            for order in self.orders
            for i, (name, (deletion, insertion)) in enumerate(zip(self.names, maps.areas(order), strict=True))
        ]

    def spectrum_rows(self) -> list[dict[str, object]]:
        """A row for each picture, arm and ring of the spectrum."""
        return [
            {"picture": name, "arm": arm, "frequency": float(frequency), "power": float(value)}
            for arm, power in self.power.items()
            for name, rings in zip(self.names, power, strict=True)
            for frequency, value in zip(self.frequency, rings, strict=True)
        ]

    def _coverage(self) -> dict[str, Tensor | None]:
        """The shares (N,) of `reach` by their names in tables."""
        names = {"coverage": "coverage", "view_coverage": "view", "effective_coverage": "effective"}
        columns = {} if self.reach is None else self.reach._asdict()
        return {name: columns[field].double() if columns else None for name, field in names.items()}

    def _table(self, order: str, baseline: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        """Deletion and insertion by arm, or their differences from those of a baseline."""
        table: dict[str, dict[str, dict[str, Any]]] = {"deletion": {}, "insertion": {}}
        for arm, maps in self.arms.items():
            areas = maps.areas(order) if baseline is None else maps.areas(order) - maps.areas(baseline)
            for measure, column in zip(table, areas.unbind(1), strict=True):
                table[measure][arm] = _interval(column, self.clusters)
        return table


def explain(
    encoder: nn.Module,
    clean: Tensor,
    attacked: Mapping[str, Tensor],
    anchors: Tensor,
    bank: Bank,
    *,
    sample: Sample,
    chunk: int = 32,
    seed: int = 0,
) -> Explanations:
    """Explain the likeness of a few pictures to their anchors, before and after an attack.

    Args:
        encoder: in evaluation mode and full precision.
        clean: (N,3,H,W) in [0,1].
        attacked: arm -> (N,3,H,W), the same pictures after an attack.
        anchors: (N,D) the embeddings that the pictures are compared with: their clean ones, or the target's.
        bank: its first few views are those of the gradient's coverage.
        sample: the pictures.
        chunk: most pictures in memory at once.
        seed: of the random order.
    """
    began, counted, clean = time.perf_counter(), CountedEncoder(encoder), clean.to(anchors.device)
    handles = settle(encoder)
    try:
        layer = spatial_layer(counted, clean, anchors)
        seeds = [stream(seed, "explain", i) for i in range(len(clean))]
        arms = {
            arm: _maps(counted, pictures.to(clean), anchors, layer, seeds, chunk)
            for arm, pictures in {"clean": clean, **attacked}.items()
        }
        over = reach(counted, clean, anchors, bank, chunk)
    finally:
        for handle in handles:
            handle.remove()
    deltas = {arm: maps.pictures - arms["clean"].pictures for arm, maps in arms.items() if arm != "clean"}
    rings = ring_count(clean.shape[2], clean.shape[3])
    power = {arm: radial(delta, rings) for arm, delta in deltas.items()}
    missing = ["Grad-CAM: no layer with hooks has positions (a hash, or a scripted network)"] if layer is None else []
    if over is None:
        missing.append("input gradient and its coverage: the encoder passes no gradient to the picture")
    spent = counted.forward, counted.backward, time.perf_counter() - began
    return Explanations(
        sample.names, sample.clusters, arms, layer, over, frequencies(rings), power, tuple(missing), *spent
    )


def _maps(
    counted: CountedEncoder, pictures: Tensor, anchors: Tensor, layer: str | None, seeds: Sequence[int], chunk: int
) -> Maps:
    size = (pictures.shape[2], pictures.shape[3])
    indices = torch.arange(len(pictures), device=pictures.device)
    parts = in_parts(lambda rows: attribution(counted, pictures[rows], anchors[rows], layer), indices, chunk)
    attributions = [part for _, part in parts]
    available: dict[str, Tensor] = {}
    cams = [one.cam for one in attributions if one.cam is not None]
    if cams:
        available[CAM] = on_picture(torch.cat(cams), counted.encoder, size).cpu()
    gradients = [one.gradient for one in attributions if one.gradient is not None]
    if gradients:
        available[GRADIENT] = saliency(torch.cat(gradients)).cpu()
    rows: dict[str, list[Tensor]] = {order: [] for order in (*available, RANDOM)}
    for i, (picture, anchor, seed) in enumerate(zip(pictures, anchors, seeds, strict=True)):
        places = {order: ranks(maps[i], seed) for order, maps in available.items()}
        places[RANDOM] = ranks(picture.new_zeros(size), seed)  # all weights are equal
        for order, part in curves(counted, picture, anchor, places, chunk).items():
            rows[order].append(part)
    stacked = {order: torch.stack(part) for order, part in rows.items()}
    likeness = stacked[RANDOM][:, 0, 0]
    return Maps(pictures.cpu(), likeness, available.get(GRADIENT), available.get(CAM), stacked)


def _interval(values: Tensor, clusters: Sequence[str]) -> dict[str, Any]:
    """The mean over clusters with its interval, for JSON; all None where a value is not finite."""
    if not bool(values.isfinite().all()):
        return dict.fromkeys(Interval._fields)
    return interval(by_cluster(values, clusters))._asdict()
