"""The result of an audit, as data, as a table, and as advice on what to repair."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from transforms.auditing.probe import ALIAS_LIMIT, SLOPE, SPACING, StepProbe
from transforms.auditing.steps import AuditStep


@dataclass(frozen=True)
class StageReport:
    """One stage over all draws: means of norms and shares, sums of counts, and the largest stretch and noise.

    `dead` is the reason why the gradient dies there (None: it does not), in `dead_draws` of the draws. `gain` is the
    local |gradient in| / |gradient out|. `chain_out` and `chain_in` are norms along the real pipeline, of the end
    loss's gradient behind and before the stage (0: what reaches this stage was cut off later on, or here). `zeros`
    is the share of exact zeros in the local gradient. `bad` counts NaN and inf (forward, backward).

    `slope` is the numeric slope over the claimed one: 1 for a true gradient. It is taken over steps of 1e-3 of full
    scale, or of 4/255 where that disagrees; None if not measured. `kinds` is what goes in and comes out, `shape` the
    result's (C,h,w), `resamples` how often the stage interpolates pixels. `stretch` is the largest number of source
    pixels between neighbouring output pixels. `noise` is the power of white noise that passes where the stretch is
    large, relative to what the result can hold (clearly above 1: aliased, see `aliases`). Both are None if the stage
    is no pure warp. `dead_coordinates` are those that change the view, but get no gradient. `repeats` says whether
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
    repeats: bool

    @property
    def aliases(self) -> bool:
        return self.stretch is not None and self.stretch > SPACING and (self.noise or 0) > ALIAS_LIMIT


@dataclass(frozen=True)
class Report:
    """The result of `audit`.

    `stages` are in pipeline order, the encoder (if any) last. `first_dead` is the name of the first where the
    gradient dies, or None. `coverage` is the share of the picture's pixels that receive gradient in any draw,
    `view_coverage` the same for single views (mean, least). `effective_coverage` is the participation ratio over all
    draws (1 if all pixels weigh the same). `sensitivity` (H,W) is the pixels' weight; `dead_zones` (H,W) bool marks
    those without any.

    `resamples` is how often pixels are interpolated on the way. `minification` is the largest stretch of any stage,
    and the largest that aliases for want of a filter, in source pixels (1: none; None: no stage is a warp).
    `stationary` is True if untargeted losses are flat at delta = 0 though the pipeline is sound: they have a gradient
    at 1/255 (None without an encoder). `flatness` maps each loss to its gradient norm (at 0, at 1/255). `warnings`
    says what to repair, most urgent first.
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
        height, width = self.dead_zones.shape
        lines = [f"audit: {self.draws} draws of a {width} x {height} picture, seed {self.seed}", ""]
        rows = [HEADER, *map(_row, self.stages)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
            lines.append("  ".join(cells).rstrip())
        mean, minimum = self.view_coverage
        minification = "minification not known (no stage is a pure warp)"
        if self.minification is not None:
            largest, bare = self.minification
            aliases = f"{bare:.2f} without an antialias filter" if bare > 1 else "nothing aliases"
            minification = f"largest minification {largest:.2f} source pixels a pixel, {aliases}"
        lines += [
            "",
            f"first dead stage: {self.first_dead or 'none'}",
            f"coverage: {self.coverage:.2%} of the pixels receive gradient over all draws (a view: {mean:.2%} on "
            f"average, {minimum:.2%} at least); effective {self.effective_coverage:.2%}",
            f"resamples: {self.resamples}; {minification}",
            *_stationary(self),
        ]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


HEADER = ("stage", "local gain", "chain out", "chain in", "zeros", "NaN/inf", "slope", "stretch", "result")


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


def summarise(step: AuditStep, probes: Sequence[StepProbe], flows: Sequence[Sequence[float]]) -> StageReport:
    """One stage over all draws: means of sizes, maxima of risks; `flows`: the chain's gradient norm before and behind
    the stage, draw by draw."""
    reasons = [probe.reason for probe in probes if probe.reason is not None]
    warps = [probe.warp for probe in probes if probe.warp is not None]
    if 2 * len(warps) <= len(probes):  # colours that a few draws leave alone are no warp
        warps = []
    slopes = [probe.slope for probe in probes if probe.slope is not None]
    dead = None
    if reasons:
        share_of_draws = f" (in {len(reasons)} of {len(probes)} draws)" if len(reasons) < len(probes) else ""
        dead = reasons[0] + share_of_draws
    sensitivities = torch.stack([probe.u_slopes for probe in probes]).amax(0)
    silent = {i for probe in probes for i in probe.silent if not sensitivities[i] > 0}
    return StageReport(
        name=step.name,
        dead=dead,
        dead_draws=len(reasons),
        gain=fmean([probe.gain for probe in probes]),
        chain_out=fmean([flow[1] for flow in flows]),
        chain_in=fmean([flow[0] for flow in flows]),
        zeros=fmean([probe.zeros for probe in probes]),
        bad=(sum(probe.bad[0] for probe in probes), sum(probe.bad[1] for probe in probes)),
        slope=fmean(slopes) if slopes else None,
        kinds=probes[0].kinds,
        shape=probes[0].shape,
        resamples=max(probe.resamples for probe in probes),
        stretch=max(warp.stretch for warp in warps) if warps else None,
        noise=max((warp.noise for warp in warps if warp.stretch > SPACING), default=1.0) if warps else None,
        dead_coordinates=tuple(step.stage.names[i] for i in sorted(silent)) if step.stage is not None else (),
        repeats=all(probe.repeats for probe in probes),
    )


def repair_advice(
    stages: Sequence[StageReport], weights: Tensor, stationary: bool | None, draws: int
) -> tuple[str, ...]:
    """What to repair, most urgent first; `weights` (H,W) is the sensitivity over all draws."""
    messages = [f"{stage.name}: {stage.dead}" for stage in stages if stage.dead]
    if not messages and not bool(weights.any()):
        messages.append(
            "every stage passes a gradient by itself, but nothing passes them all: one drops what another reads"
        )
    for stage in stages:
        if stage.dead_coordinates:
            messages.append(f"{stage.name}: no gradient to {', '.join(stage.dead_coordinates)}")
        if stage.slope is not None and abs(stage.slope - 1) > SLOPE:
            messages.append(
                f"{stage.name}: its gradient is not that of its values (it moves {stage.slope:.2f} of what the "
                "gradient claims): a straight-through estimate, or a wrong backward"
            )
        if stage.aliases:
            messages.append(
                f"{stage.name}: shrinks {stage.stretch:.2f}-fold without an antialias filter; noise passes "
                f"{stage.noise:.1f} times what the result can hold, and pixels between the samples get no gradient"
            )
        if not stage.repeats:
            messages.append(f"{stage.name}: two calls with the same seeds differ; it has a generator of its own")
    resamples = sum(stage.resamples for stage in stages if stage.stretch is not None)
    if resamples > 1:
        messages.append(f"pixels are interpolated {resamples} times in a row; a fused warp blurs once")
    share = float((weights == 0).double().mean())
    if 0 < share < 1:
        messages.append(f"{share:.2%} of the pixels never receive a gradient in {draws} draws (dead zones)")
    if stationary:
        messages.append("untargeted losses are flat at delta = 0: start at random, at least 1/255")
    return tuple(messages)
