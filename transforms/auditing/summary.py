"""From the probes of single draws to one report per stage, and to warnings that say what to repair."""

from collections.abc import Sequence

import torch
from torch import Tensor

from transforms.auditing.minification import SPACING
from transforms.auditing.probe import SLOPE, StepProbe
from transforms.auditing.report import StageReport
from transforms.auditing.stationary import is_stationary
from transforms.auditing.steps import AuditStep


def summarise(step: AuditStep, probes: Sequence[StepProbe], flows: Sequence[Sequence[float]]) -> StageReport:
    """One stage over all draws: means of sizes, maxima of risks. `flows` holds, for each
    draw, the chain's gradient norm before and behind the stage."""
    reasons = [probe.reason for probe in probes if probe.reason is not None]
    warps = [probe.warp for probe in probes if probe.warp is not None]
    if 2 * len(warps) <= len(probes):  # colours that a few draws leave alone are no warp
        warps = []
    slopes = [probe.slope for probe in probes if probe.slope is not None]
    straight = [probe.straight for probe in probes if probe.straight is not None and warps]
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
        gain=_mean([probe.gain for probe in probes]),
        chain_out=_mean([flow[1] for flow in flows]),
        chain_in=_mean([flow[0] for flow in flows]),
        zeros=_mean([probe.zeros for probe in probes]),
        bad=(sum(probe.bad[0] for probe in probes), sum(probe.bad[1] for probe in probes)),
        slope=_mean(slopes) if slopes else None,
        kinds=probes[0].kinds,
        shape=probes[0].shape,
        resamples=max(probe.resamples for probe in probes),
        stretch=max(warp.stretch for warp in warps) if warps else None,
        noise=max((warp.noise for warp in warps if warp.stretch > SPACING), default=1.0) if warps else None,
        dead_coordinates=tuple(step.stage.names[i] for i in sorted(silent)) if step.stage is not None else (),
        straight=(_mean([c for c, _ in straight]), _mean([m for _, m in straight])) if straight else None,
        repeats=all(probe.repeats for probe in probes),
    )


def repair_advice(
    stages: Sequence[StageReport],
    weights: Tensor,
    flat: dict[str, tuple[float, float]],
    norms: dict[str, float | None],
    draws: int,
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
    if flat and is_stationary(flat):
        messages.append("untargeted losses are flat at delta = 0: start at random, at least 1/255")
    messages.extend(f"`{name}` receives no gradient" for name, norm in norms.items() if not norm)
    return tuple(messages)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
