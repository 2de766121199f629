"""One step of a pipeline by itself, on a fresh leaf: does a gradient at its output reach its input?"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transforms.auditing.coverage import gradient_norm, unit_cotangent
from transforms.auditing.steps import AuditStep, StepResult, error_line, floating, run_step

#: Lengths of the step for the numeric slope, of full scale. The first is far above float32's rounding and far below a
#: picture's range; the second, taken where the first disagrees, is above the steps of 8 bits, which rounding with a
#: straight-through gradient follows.
_STEPS = (1e-3, 4 / 255)
#: A numeric slope this near to the claimed one (relative) is it.
SLOPE = 0.2
#: A view that changes by less than this does not depend on a coordinate, which then owes no gradient.
_MIN_CHANGE = 1e-6
#: Output samples further apart than this many source pixels alias (a bilinear tap covers two).
SPACING = 1.5
#: Share of white noise that may pass, relative to what the smaller picture can hold: a box filter passes 1.
ALIAS_LIMIT = 1.2
_TOLERANCE = 1e-3


class Warp(NamedTuple):
    """As in `transforms.auditing.report.StageReport`; `noise` is 1.0 if the stretch exceeds `SPACING` nowhere."""

    stretch: float
    noise: float


class StepProbe(NamedTuple):
    """What one draw showed, as in `transforms.auditing.report.StageReport`; `reason` is why the gradient dies;
    `u_slopes` (dims,), |d/du|; `silent`, the coordinates that measure, change the view, and have a gradient of
    exactly zero."""

    reason: str | None
    gain: float
    zeros: float
    bad: tuple[int, int]
    slope: float | None
    u_slopes: Tensor
    silent: tuple[int, ...]
    kinds: tuple[str, str]
    shape: tuple[int, ...]
    resamples: int
    warp: Warp | None
    repeats: bool


def probe_step(step: AuditStep, value: Any, output: Any, u: Tensor, seed: int) -> StepProbe:
    """Run `step` at `u` (1,dims) on a new leaf made of `value` and pull a cotangent of norm 1 back. `value` and
    `output` are what the step received and returned in the pipeline; `seed`: of its randomness."""
    leaf = floating(value, unit=step.stage is not None).requires_grad_()
    row = u.detach().clone().requires_grad_()
    outcome = run_step(step, leaf, row, seed, raw=value)
    out, again = floating(outcome.result), floating(output)
    cotangent = unit_cotangent(out, seed ^ 0x5EED)
    (grad, u_grad), reason = _pull(outcome, [leaf, row], cotangent)
    first = torch.zeros_like(leaf) if grad is None else grad
    result = outcome.result
    floats = isinstance(result, Tensor) and result.is_floating_point()
    forward = int((~result.isfinite()).sum()) if floats else 0
    u_slopes = torch.zeros(step.dims) if u_grad is None else u_grad[0].abs().cpu()
    backward = int((~first.isfinite()).sum() + (~u_slopes.isfinite()).sum())
    if reason is None and (forward or backward):
        place = f"forward ({forward} values)" if forward else f"in backward ({backward} values)"
        reason = f"NaN or inf {place}"
    elif reason is None and not bool(first.any()):
        reason = "gradient exactly zero everywhere: rounding, thresholding or an integer cast"
    return StepProbe(
        reason=reason,
        gain=gradient_norm(first.nan_to_num(0, 0, 0)),
        zeros=float((first == 0).double().mean()),
        bad=(forward, backward),
        slope=_slope(step, leaf, row, seed, first, cotangent) if reason is None else None,
        u_slopes=u_slopes,
        silent=_silent(step, leaf, row, seed, out, u_slopes),
        kinds=(_kind(value), _kind(result)),
        shape=tuple(out.shape[1:]),
        resamples=(step.stage.resamples() if step.stage is not None else 0) or outcome.resamples,
        warp=_warp(step, leaf, value, u, seed),
        repeats=_kind(value) != _kind(leaf)
        or (out.shape == again.shape and torch.allclose(out, again, rtol=1e-4, atol=1e-4)),
    )


def _pull(outcome: StepResult, leaves: list[Tensor], cotangent: Tensor) -> tuple[Sequence[Tensor | None], str | None]:
    """The gradients, None where there is none, and why the images have none."""
    no_grads = [None] * len(leaves)
    result = outcome.result
    if outcome.refusal is not None:
        return no_grads, f"takes no tensor that requires a gradient: {error_line(outcome.refusal)}"
    if not isinstance(result, Tensor):
        return no_grads, f"returns a {_kind(result)}: a conversion through numpy has no graph"
    if not result.is_floating_point():
        return no_grads, f"returns {_kind(result)}: an integer cast has no graph"
    if not result.requires_grad:
        causes = "a comparison, an integer cast, a conversion through numpy, a `.detach()`, or `no_grad`"
        return no_grads, f"returns a tensor without a graph: {causes}"
    try:
        grads = torch.autograd.grad(result, leaves, cotangent, allow_unused=True, retain_graph=True)
    except Exception as error:  # a foreign backward may raise anything
        return no_grads, f"backward fails ({error_line(error)})"
    message = "returns a tensor whose graph does not reach its input: a `.detach()` or a copy of the data on the way"
    return grads, message if grads[0] is None else None


def _slope(step: AuditStep, leaf: Tensor, u: Tensor, seed: int, gradient: Tensor, cotangent: Tensor) -> float | None:
    """The slope along sign(gradient) by central difference, over |gradient|_1, which it claims to be."""
    if leaf.dtype not in (torch.float32, torch.float64):
        return None
    claim = float(gradient.cpu().double().abs().sum())
    slopes: list[float] = []
    for length in _STEPS:
        ends = []
        for move in (length, -length):
            with torch.no_grad():
                result = run_step(step, leaf + move * gradient.sign(), u, seed).result
            if not isinstance(result, Tensor) or result.shape != cotangent.shape:
                return None
            ends.append(float((result.cpu().double() * cotangent.cpu().double()).sum()))
        slopes.append((ends[0] - ends[1]) / (2 * length) / claim)
        if abs(slopes[-1] - 1) <= SLOPE:
            return slopes[-1]
    return min(slopes, key=lambda slope: abs(slope - 1))


def _silent(step: AuditStep, leaf: Tensor, u: Tensor, seed: int, out: Tensor, slopes: Tensor) -> tuple[int, ...]:
    silent = []
    for i in range(step.dims):
        if slopes[i] != 0 or (step.stage is not None and i in step.stage.discrete):
            continue
        other = u.detach().clone()
        other[0, i] = (other[0, i] + 0.37) % 1
        with torch.no_grad():
            result = run_step(step, leaf, other, seed).result
        if result.shape != out.shape or float((result - out).abs().max()) > _MIN_CHANGE:
            silent.append(i)
    return tuple(silent)


def _warp(step: AuditStep, leaf: Tensor, value: Any, u: Tensor, seed: int) -> Warp | None:
    if leaf.dim() != 4 or leaf.shape[1] != 3 or not isinstance(value, Tensor) or not value.is_floating_point():
        return None

    def call(images: Tensor) -> Tensor | None:
        result = run_step(step, images, u, seed).result
        fits = isinstance(result, Tensor) and result.shape[:2] == (1, 3) and result.dim() == 4
        return result if fits and result.is_floating_point() else None

    try:
        return _warp_of(call, leaf.detach())
    except ValueError:  # it fails on a ramp, though it took the picture: then it is no warp
        return None


@torch.no_grad()
def _warp_of(call: Callable[[Tensor], Tensor | None], like: Tensor) -> Warp | None:
    """The warp that `call` applies to images like `like` (1,3,H,W) in [0,1], or None if it is not one (it changes
    colours). `call` must do the same thing every time, and return (1,3,h,w), or None for anything else."""
    height, width = like.shape[2:]
    y, x = ((torch.arange(n, dtype=like.dtype, device=like.device) + 0.5) / n for n in (height, width))
    ramp = torch.stack([*torch.meshgrid(x, y, indexing="xy"), torch.ones_like(y[:, None] * x)])[None]
    full, half = call(ramp), call(ramp.flip(1) / 2)
    if full is None or half is None or full.shape != half.shape:
        return None
    half = half.flip(1)
    white = ((full[:, 2] - 1).abs() < _TOLERANCE) & ((half[:, 2] - 0.5).abs() < _TOLERANCE)
    # Half as bright and with other colours goes in, and so it comes out: contrast, hue and noise fail, a warp passes.
    linear = (full[:, :2] - 2 * half[:, :2]).abs().amax(1) < _TOLERANCE
    inside = white & linear
    if inside.sum() < max(1, 0.99 * float(white.sum()), 0.05 * white.numel()):
        return None
    points = full[:, :2].movedim(1, -1) * full.new_tensor([width, height]) - 0.5
    stretch, area = _jacobian(points, inside)
    dense = stretch > SPACING
    noise = 1.0
    if bool(dense.any()):
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(2, (1, 3, height, width), generator=generator).to(like)
        output = call(signs)
        if output is not None:
            power = ((output - 0.5).square().mean(1) / 0.25)[:, : stretch.shape[1], : stretch.shape[2]]
            noise = float((power * area)[dense].mean())
    return Warp(float(stretch.max()) if stretch.numel() else 0.0, noise)


def _jacobian(points: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """The larger singular value and the determinant of the map, (1,h-s,w-s) each, 0 where the map is not known."""
    s = 4 if min(points.shape[1:3]) > 16 else 1  # a longer step: a nearest kernel rounds the map to whole pixels
    corner = points[:, :-s, :-s]
    a, b = (points[:, :-s, s:] - corner) / s, (points[:, s:, :-s] - corner) / s
    interior = inside[:, :-s, :-s] & inside[:, :-s, s:] & inside[:, s:, :-s]
    det = (a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]).abs()
    trace = (a * a).sum(-1) + (b * b).sum(-1)
    stretch = ((trace + (trace * trace - 4 * det * det).clamp(min=0).sqrt()) / 2).sqrt()
    return torch.where(interior, stretch, 0.0), torch.where(interior, det, 0.0)


def _kind(value: Any) -> str:
    if isinstance(value, Tensor):
        return str(value.dtype).removeprefix("torch.")
    kind = type(value)
    return "PIL image" if kind.__module__.startswith("PIL.") else f"{kind.__module__}.{kind.__name__}"
