"""The result of an audit, as data and as a table."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from transforms.auditing.minification import ALIAS_LIMIT, SPACING


@dataclass(frozen=True)
class StageReport:
    """One stage, over all draws.

    `dead` is the reason why the gradient dies there (None: it does not), in `dead_draws` of the draws. `gain` is the
    local |gradient in| / |gradient out|; `chain_out`, `chain_in` are norms along the real pipeline, from the end loss
    (0: what reaches this stage was cut off later on, or here). `zeros` is the share of exact zeros in the local
    gradient, `bad` counts NaN and inf (forward, backward). `slope` is the numeric slope over the claimed one: 1 for a
    true gradient, over 1e-3 or else over 4/255 of full scale; None if not measured. `kinds` is what goes in and comes
    out, `shape` the result's (C,h,w). `stretch` is the largest number of source pixels between neighbouring output
    pixels and `noise` the share of white noise that passes (above 1: aliased); None if the stage is no pure warp.
    `straight` is (cosine, mass ratio) of the straight-through gradient, if measured; `repeats`, whether
    the same seeds gave the same values.
    """

    name: str
    dead: str | None
    dead_draws: int
    gain: float
    chain_out: float
    chain_in: float
    zeros: float
    bad: tuple[int, int]
    slope: float | None
    kinds: tuple[str, str]
    shape: tuple[int, ...]
    resamples: int
    stretch: float | None
    noise: float | None
    dead_coordinates: tuple[str, ...]
    straight: tuple[float, float] | None
    repeats: bool

    @property
    def aliases(self) -> bool:
        return self.stretch is not None and self.stretch > SPACING and (self.noise or 0) > ALIAS_LIMIT


@dataclass(frozen=True)
class Report:
    """The result of `audit`.

    `stages` in pipeline order, the encoder (if any) last; `first_dead`, the name of the first where the gradient
    dies, or None. `coverage` is the share of the picture's pixels that receive gradient in any draw, `view_coverage`
    the same for single views (mean, least); `effective_coverage` is the participation ratio over all draws (1 if all
    pixels weigh the same). `sensitivity` (H,W) is the pixels' weight, `dead_zones` (H,W) bool those without any.
    `resamples` is how often pixels are interpolated on the way; `minification`, the largest stretch of any stage and
    the largest that aliases for want of a filter, in source pixels (None: no stage is a warp; 1: none). `stationary`
    is True if an untargeted loss is flat at delta = 0 though the pipeline is sound, None without an encoder;
    `flatness`, loss -> gradient norm (at 0, at 1/255). `parameters` is the gradient norm of each further tensor, None
    if it is not in the graph. `warnings` says what to repair.
    """

    stages: tuple[StageReport, ...]
    first_dead: str | None
    coverage: float
    view_coverage: tuple[float, float]
    effective_coverage: float
    sensitivity: Tensor
    dead_zones: Tensor
    resamples: int
    minification: tuple[float, float] | None
    stationary: bool | None
    flatness: dict[str, tuple[float, float]]
    parameters: dict[str, float | None]
    warnings: tuple[str, ...]
    draws: int
    seed: int

    def save_dead_zones(self, path: str | Path) -> None:
        """Write a PNG: grey by sensitivity, red where no draw gave a pixel any gradient."""
        from PIL import Image

        grey = (self.sensitivity / self.sensitivity.max().clamp(min=1e-30)).sqrt().mul(255).round().to(torch.uint8)
        colour = grey[..., None].expand(-1, -1, 3).clone()
        colour[self.dead_zones] = torch.tensor([220, 30, 30], dtype=torch.uint8)
        Image.fromarray(colour.numpy()).save(path, format="PNG")

    def __str__(self) -> str:
        return "\n".join(_lines(self))


HEADER = ("stage", "local gain", "chain out", "chain in", "zeros", "NaN/inf", "slope", "stretch", "result")


def _lines(report: Report) -> list[str]:
    height, width = report.dead_zones.shape
    rows = [HEADER, *map(_row, report.stages)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADER))]
    lines = [f"audit: {report.draws} draws of a {width} x {height} picture, seed {report.seed}", ""]
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(n) for cell, n in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    lines.append("")
    lines.append(f"first dead stage: {report.first_dead or 'none'}")
    mean, minimum = report.view_coverage
    lines.append(
        f"coverage: {report.coverage:.2%} of the pixels receive gradient over all draws (a view: {mean:.2%} on "
        f"average, {minimum:.2%} at least); effective {report.effective_coverage:.2%}"
    )
    lines.append(f"resamples: {report.resamples}; {_minification(report.minification)}")
    lines.extend(_stationary(report))
    for name, norm in report.parameters.items():
        lines.append(f"gradient to `{name}`: {'none, it is not in the graph' if norm is None else f'{norm:.3g}'}")
    for stage in report.stages:
        if stage.straight is not None:
            cosine, mass = stage.straight
            lines.append(
                f"straight-through gradient of {stage.name}: cosine {cosine:.2f} to the true one, "
                f"{mass:.2f} times its mass"
            )
    lines.extend(f"warning: {text}" for text in report.warnings)
    return lines


def _row(stage: StageReport) -> tuple[str, ...]:
    sign = "aliased" if stage.aliases else "antialiased"
    suffix = f" {sign}" if stage.stretch is not None and stage.stretch > SPACING else ""
    source, result = stage.kinds
    kind = result if source == result else f"{source} -> {result}"
    return (
        f"{stage.name}{' DEAD' if stage.dead else ''}",
        f"{stage.gain:.3g}",
        f"{stage.chain_out:.3g}",
        f"{stage.chain_in:.3g}",
        f"{stage.zeros:.1%}",
        f"{stage.bad[0]}/{stage.bad[1]}",
        "-" if stage.slope is None else f"{stage.slope:.2f}",
        "-" if stage.stretch is None else f"{stage.stretch:.2f}{suffix}",
        f"{'x'.join(map(str, stage.shape))} {kind}",
    )


def _minification(pair: tuple[float, float] | None) -> str:
    if pair is None:
        return "minification not known (no stage is a pure warp)"
    bare = f"{pair[1]:.2f} without an antialias filter" if pair[1] > 1 else "nothing aliases"
    return f"largest minification {pair[0]:.2f} source pixels a pixel, {bare}"


def _stationary(report: Report) -> list[str]:
    if report.stationary is None:
        return ["stationary at delta = 0: not asked (give an encoder)"]
    figures = ", ".join(f"{name} {at:.2g} -> {near:.2g}" for name, (at, near) in report.flatness.items())
    answer = "no" if report.first_dead is None else f"no; the gradient dies in {report.first_dead}"
    if report.stationary:
        answer = "yes; a random start of at least 1/255 is needed; the warp is fine"
    return [
        f"gradient of untargeted losses at delta = 0 -> at 1/255: {figures}",
        f"stationary at delta = 0: {answer}",
    ]
