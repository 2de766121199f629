"""What no change of a picture up to some length undoes behind Gaussian smoothing, beside what an attack undoes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders import Panel
from attacks.encoders.randomness import encoder_randomness
from attacks.encoders.rules import SmoothedFeatures
from attacks.evaluation.clusters import Row, by_cluster, column_of, grouped, medians, totals
from attacks.evaluation.scores import signature_method
from attacks.inference.bounded import Floats, Interval, median, rate, smoothed_floor
from transforms.camera import SensorNoise
from transforms.doors import unchecked
from transforms.draws import Uniform, stream

#: Samples of a pass; and a floor's samples as a multiple of those of its pilot, and of those of a found value.
BATCH, MULTIPLE = 64, 10


def smoothing(encoder: object) -> tuple[Panel, float]:
    """An encoder that Gaussian noise smooths, and the noise's deviation in [0,1]. Raises ValueError for others."""
    if isinstance(encoder, Panel) and isinstance(encoder.rule, SmoothedFeatures):
        stages: Any = encoder.stages.stages
        is_plain = encoder_randomness(encoder.encoder) is None and signature_method(encoder) is None
        is_noise = len(stages) == 1 and isinstance(stages[0], SensorNoise) and not any(stages[0].shot)
        if is_plain and is_noise and 0 < stages[0].read[0] == stages[0].read[1]:
            return encoder, float(stages[0].read[0])
    raise ValueError(
        "`defence` must be smooth, its only stage sensor_noise {read: [sigma, sigma]}, of an encoder without "
        "dropout that compares features: without smoothing by Gaussian noise there is no floor"
    )


@dataclass(frozen=True)
class Certifier:
    """Floors of pictures behind a panel with noise of that `deviation`, at radius 0 and some `radii` in L2 of pixels
    in [0,1]. Those of a picture fail with a probability of at most `alpha`; `lowest` is the least cosine of features
    to an anchor."""

    encoder: Panel
    deviation: float
    radii: Sequence[float]
    samples: int = 10_000
    alpha: float = 0.001
    lowest: float = -1.0
    seed: int = 0

    @property
    def passes(self) -> int:
        """Calls of the encoder for a picture."""
        return math.ceil(self.samples / BATCH) + (2 + len(self.radii)) * math.ceil(self.samples // MULTIPLE / BATCH)

    @torch.no_grad()
    def rows(
        self, clean: Tensor, delta: Tensor, anchor: Tensor, gallery: tuple[Tensor, Tensor], step: Callable[[], None]
    ) -> list[dict[str, Any]]:
        """A row a radius, of F, the mean of unit features over the noise: `similarity`, the product of F and the unit
        `anchor` (D,); and `margin`, the distance of F to the nearest boundary behind which a wrong row of the
        `gallery` (G,D) is nearer than its right one (D,), given first. Of both the `floor`, of a `clean` picture
        (1,3,H,W); `found`, with its change `delta` scaled to the radius, and the upper limit `high` of that. `wrong`:
        a floor is above it, an error of the program but for chance. `step` is called after each pass. Raises
        ValueError for a gallery without wrong rows, and for features less like the anchor than `lowest`."""
        if not len(gallery[1]):
            raise ValueError("`data.gallery` must show something else too, which the picture could be taken for")
        right, unit = F.normalize(torch.stack([gallery[0], anchor]).double(), dim=1)
        rivals = F.normalize(right - F.normalize(gallery[1].double(), dim=1), dim=1)
        directions, stages = torch.cat([unit[None], rivals]), self.encoder.stages
        radii, count, rows = [0.0, *self.radii], self.samples // MULTIPLE, []

        def sample(picture: Tensor, count: int, purpose: str) -> tuple[Floats, list[float]]:
            """Both functions of unit features under noise, (n,2), and of their mean, (2)."""
            values, sums = [], []
            for number, size in enumerate(map(len, torch.empty(count).split(BATCH))):
                seed = stream(self.seed, "certificate", purpose)
                u = Uniform()(size, stages.dims, seed=seed, step=number).to(picture)
                views = unchecked(stages)(picture.expand(size, -1, -1, -1), u)
                products = F.normalize(self.encoder.encode(views).double(), dim=1) @ directions.T
                values.append(functions_of(products))
                sums.append(products.sum(0))
                step()
            mean = torch.stack(sums).sum(0, keepdim=True) / count
            return torch.cat(values).cpu().numpy(), functions_of(mean)[0].tolist()

        def functions_of(products: Tensor) -> Tensor:
            # The least of all rivals is one function, so nothing is corrected for their number.
            return torch.stack([products[:, 0], products[:, 1:].amin(1)], 1)

        (pilot, _), (values, _) = sample(clean, count, "pilot"), sample(clean, self.samples, "floor")
        shifts = np.array(radii) / self.deviation
        floors = smoothed_floor(values, pilot, np.array([self.lowest, -1.0]), shifts, self.alpha)
        for radius, floor in zip(radii, floors, strict=True):
            image = (clean + delta * (radius / delta.norm().clamp(min=1e-12))).clamp(0, 1)
            values, mean = sample(image, count, f"found {radius}")
            pilot, values = np.split(-values, [count // 4])  # the upper limit of h is the lower one of -h
            high = -smoothed_floor(values, pilot, -np.ones(2), np.zeros(1), self.alpha / len(radii))[0]
            parts = {"floor": floor.tolist(), "found": mean, "high": high.tolist()}
            row = {f"{name}_{end}": parts[end][k] for k, name in enumerate(("similarity", "margin")) for end in parts}
            rows.append({"radius": radius, **row, "wrong": bool((floor > high).any())})
        return rows


def certified_figures(rows: Sequence[Row]) -> dict[float, list[Interval]]:
    """By radius the median similarity, floor and found, and the share of pictures with a margin, floor and found."""
    figures = {}
    for (radius,), group in grouped(rows, "radius").items():
        clusters = [str(row["cluster"]) for row in group]
        similar, margins = (
            [column_of(group, f"{name}_{end}") for end in ("floor", "found")] for name in ("similarity", "margin")
        )
        trials = totals(torch.ones(len(group)), clusters)
        figures[float(radius)] = [median(medians(values, clusters)) for values in similar]
        figures[float(radius)] += [rate(by_cluster((values > 0).double(), clusters), trials) for values in margins]
    return figures
