"""Brightness and contrast stages in a row as one line between two bounds: a chain of clamp(gain x + offset, 0, 1),
gain >= 0, is clamp(gain x + offset, low, high) again, so neighbours multiply."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from transforms.sampling.straight_through import tolerance


class Tone(NamedTuple):
    """x -> clamp(gain x + offset, low, high), each (N,1,1,1) and without a gradient of its own."""

    gain: Tensor
    offset: Tensor
    low: Tensor
    high: Tensor

    def then(self, gain: Tensor, offset: Tensor) -> "Tone":
        """Followed by x -> clamp(gain x + offset, 0, 1)."""
        low, high = (gain * self.low + offset).clamp(0, 1), (gain * self.high + offset).clamp(0, 1)
        return Tone(gain * self.gain, gain * self.offset + offset, low, high)

    def rows(self) -> "list[OneTone]":
        """View by view, in the machine's numbers: a kernel takes those as they are (on a CPU, that is)."""
        gains, lows, highs = (value.flatten().tolist() for value in (self.gain, self.low, self.high))
        return [OneTone(*view) for view in zip(gains, self.offset.unbind(), lows, highs, strict=True)]

    def to(self, dtype: torch.dtype) -> "Tone":
        has_dtype = self.gain.dtype == self.offset.dtype == dtype
        return self if has_dtype else Tone(*(value.to(dtype) for value in self))


class OneTone(NamedTuple):
    """The tone of one view; `offset` is (1|C,1,1)."""

    gain: float
    offset: Tensor
    low: float
    high: float


def first_tone(gain: Tensor, offset: Tensor) -> Tone:
    """x -> clamp(gain x + offset, 0, 1) for each view; both (N,1,1,1)."""
    return Tone(gain, offset, torch.zeros_like(gain), torch.ones_like(gain))


def apply_tone(views: Tensor, tone: Tone) -> Tensor:
    """`views` (N,C,h,w) through `tone`. At a bound, and where only rounding leaves it, the derivative is `gain` (see
    `transforms.sampling.straight_through.saturate`)."""
    work = torch.promote_types(views.dtype, torch.float32)  # never half
    result: Tensor = _ApplyTone.apply(views.to(work), *tone.to(work))
    return result.to(views.dtype)


def settle(values: Tensor, tone: Tone, out: Tensor, shift: Tensor) -> None:
    """Write toned `values` to `out`, and how far the bounds have moved them to `shift`, which may be `values`."""
    torch.mul(values, tone.gain, out=shift).add_(tone.offset)
    torch.maximum(shift, tone.low, out=out)
    torch.minimum(out, tone.high, out=out)
    shift.sub_(out)


def settle_view(values: Tensor, tone: OneTone, out: Tensor, shift: Tensor) -> None:
    """`settle` for one view (C,h,w), in three passes for five."""
    torch.add(tone.offset, values, alpha=tone.gain, out=shift)
    torch.clamp(shift, tone.low, tone.high, out=out)
    shift.sub_(out)


def clamp_gradient(grad: Tensor, shift: Tensor, out: Tensor | None = None) -> Tensor:
    """`grad` where `settle` has moved nothing, but for rounding, and 0 elsewhere."""
    far = tolerance(shift.dtype) * (1 + torch.finfo(shift.dtype).eps)  # the kernel's bounds are outside
    out = torch.empty_like(shift) if out is None else out
    return torch.ops.aten.hardtanh_backward.grad_input(grad, shift, -far, far, grad_input=out)  # type: ignore[no-any-return]


class _ApplyTone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, views: Tensor, *tone: Tensor) -> Tensor:
        out = torch.empty_like(views, memory_format=torch.contiguous_format)
        shift = torch.empty_like(out)
        settle(views, Tone(*tone), out, shift)
        ctx.save_for_backward(shift, tone[0])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        shift, gain = ctx.saved_tensors
        return clamp_gradient(grad, shift).mul_(gain), None, None, None, None
