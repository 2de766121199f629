"""The explanations of a few pictures, before and after an attack, put together."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.batch_norm import settle
from attacks.eot.bank import Bank
from attacks.eot.batching import in_parts
from attacks.evaluation.explain.deletion import curves, ranks
from attacks.evaluation.explain.gradcam import attribution, on_picture, spatial_layer
from attacks.evaluation.explain.gradients import Reach, reach
from attacks.evaluation.explain.maps import CAM, GRADIENT, RANDOM, Maps
from attacks.evaluation.explain.saliency import CountedEncoder, saliency
from attacks.evaluation.explain.spectrum import frequencies, radial, ring_count, shares
from attacks.evaluation.intervals import interval
from attacks.runtime.stored import stored
from transforms import stream


@stored("explanations")
@dataclass(frozen=True, eq=False)
class Explanations:
    """The result of `explain`.

    `arms` are the pictures' states, "clean" first. `layer` is the layer of Grad-CAM, None where no layer is
    spatial. `reach` is the gradient's coverage over views of the clean pictures; `frequency` (F,) and `power[arm]`
    (N,F) are the perturbation's spectrum. `missing` has a line for each part that could not be computed. Passes are
    counted in pictures.
    """

    names: tuple[str, ...]
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
        """The orders of deletion, the best first and the random one last."""
        return tuple(self.arms["clean"].curves)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metrics.json. `deletion` and `insertion` are those of the first order, `orders` has all,
        and `beyond_random` how far each is from the random order on the same pictures."""
        tables = {order: self._table(order, None) for order in self.orders}
        beyond = {order: self._table(order, RANDOM) for order in self.orders if order != RANDOM}
        spectrum = {"frequency": self.frequency.tolist(), "arms": {a: shares(p) for a, p in self.power.items()}}
        over = self.reach
        return {
            "layer": self.layer,
            "pictures": list(self.names),
            "likeness": {arm: _interval(maps.likeness) for arm, maps in self.arms.items()},
            "order": self.orders[0],
            **tables[self.orders[0]],
            "orders": tables,
            "beyond_random": beyond,
            "coverage": None if over is None else float(over.coverage.double().mean()),
            "view_coverage": None if over is None else float(over.view.double().mean()),
            "effective_coverage": None if over is None else float(over.effective.double().mean()),
            "dead": None if over is None else float((1 - over.coverage.double()).mean()),
            "spectrum": spectrum,
            "missing": list(self.missing),
            "cost": {"forward": self.forward, "backward": self.backward, "seconds": self.seconds},
        }

    def rows(self) -> list[dict[str, object]]:
        """A row for each picture, arm and order; what belongs to the picture alone is repeated."""
        return [
            {
                "picture": name,
                "arm": arm,
                "order": order,
                "likeness": float(maps.likeness[i]),
                "deletion": float(deletion),
                "insertion": float(insertion),
                "coverage": None if self.reach is None else float(self.reach.coverage[i]),
                "view_coverage": None if self.reach is None else float(self.reach.view[i]),
                "effective_coverage": None if self.reach is None else float(self.reach.effective[i]),
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

    def _table(self, order: str, beside: str | None) -> dict[str, dict[str, dict[str, float | None]]]:
        areas = {
            arm: maps.areas(order) if beside is None else maps.areas(order) - maps.areas(beside)
            for arm, maps in self.arms.items()
        }
        return {
            measure: {arm: _interval(area[:, i]) for arm, area in areas.items()}
            for i, measure in enumerate(("deletion", "insertion"))
        }


def explain(
    encoder: nn.Module,
    clean: Tensor,
    attacked: Mapping[str, Tensor],
    anchors: Tensor,
    bank: Bank,
    *,
    names: Sequence[str],
    chunk: int = 32,
    seed: int = 0,
) -> Explanations:
    """Explain the likeness of a few pictures to their anchors, before and after an attack.

    Args:
        encoder: in evaluation mode and full precision.
        clean: (N,3,H,W) in [0,1].
        attacked: arm -> (N,3,H,W), the same pictures after an attack.
        anchors: (N,D) the embeddings that the pictures are compared with: their clean embeddings, or the target's.
        bank: the views over which the gradient's coverage is taken, its first few.
        names: of the pictures.
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
    missing = _missing(layer, over)
    spent = counted.forward, counted.backward, time.perf_counter() - began
    return Explanations(tuple(names), arms, layer, over, frequencies(rings), power, missing, *spent)


def _maps(
    counted: CountedEncoder, pictures: Tensor, anchors: Tensor, layer: str | None, seeds: Sequence[int], chunk: int
) -> Maps:
    size = (pictures.shape[2], pictures.shape[3])
    every = torch.arange(len(pictures), device=pictures.device)
    parts = in_parts(lambda rows: attribution(counted, pictures[rows], anchors[rows], layer), every, chunk)
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
        places[RANDOM] = ranks(picture.new_zeros(size), seed)  # all weigh the same
        for order, part in curves(counted, picture, anchor, places, chunk).items():
            rows[order].append(part)
    stacked = {order: torch.stack(part) for order, part in rows.items()}
    likeness = stacked[RANDOM][:, 0, 0]
    return Maps(pictures.cpu(), likeness, available.get(GRADIENT), available.get(CAM), stacked)


def _missing(layer: str | None, over: Reach | None) -> tuple[str, ...]:
    reasons = []
    if layer is None:
        reasons.append("Grad-CAM: no layer that can be watched knows of places (a hash, or a scripted network)")
    if over is None:
        reasons.append("input gradient and its coverage: the encoder passes no gradient on to the picture")
    return tuple(reasons)


def _interval(values: Tensor) -> dict[str, float | None]:
    """The mean over pictures with its interval, for JSON: None for a value that is not finite."""
    ends = interval(values[:, None])._asdict()
    return {key: value if math.isfinite(value) else None for key, value in ends.items()}
