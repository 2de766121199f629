"""What a run of brightness and contrast stages does to the values of a view, as one line between two bounds.

Each such stage is x -> clamp(gain x + offset, 0, 1) with gain >= 0, and a chain of these is clamp(gain x + offset,
low, high) again, because a line that does not fall maps the bounds of one clamp to those of the next. So neighbours
multiply, as homographies do, and a view's values are touched once.
"""

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

    def shifted(self, by: Tensor) -> "Tone":
        """For values from which `by`, () or (1|N,1|C,1,1), has been taken."""
        return self._replace(offset=self.gain * by + self.offset)

    def each(self) -> "list[OneTone]":
        """View by view, in the machine's numbers: a kernel takes those as they are (on a CPU, that is)."""
        gains, lows, highs = (each.flatten().tolist() for each in (self.gain, self.low, self.high))
        return [OneTone(*one) for one in zip(gains, self.offset.unbind(), lows, highs, strict=True)]

    def to(self, dtype: torch.dtype) -> "Tone":
        """In another precision."""
        same = self.gain.dtype == self.offset.dtype == dtype
        return self if same else Tone(*(each.to(dtype) for each in self))


class OneTone(NamedTuple):
    """The tone of one view; `offset` is (1|C,1,1)."""

    gain: float
    offset: Tensor
    low: float
    high: float


def tone_of(gain: Tensor, offset: Tensor) -> Tone:
    """x -> clamp(gain x + offset, 0, 1) for each view; both (N,1,1,1)."""
    return Tone(gain, offset, torch.zeros_like(gain), torch.ones_like(gain))


def toned(views: Tensor, tone: Tone) -> Tensor:
    """`views` (N,C,h,w) through `tone`. At a bound, and where only rounding leaves it, the derivative is `gain` (see
    `transforms.sampling.straight_through.saturate`)."""
    work = torch.promote_types(views.dtype, torch.float32)  # never half
    result: Tensor = _Toned.apply(views.to(work), *tone.to(work))
    return result.to(views.dtype)


def settle(values: Tensor, tone: Tone, out: Tensor, moved: Tensor) -> None:
    """Write toned `values` to `out`, and how far the bounds have moved them to `moved`, which may be `values`."""
    torch.mul(values, tone.gain, out=moved).add_(tone.offset)
    torch.maximum(moved, tone.low, out=out)
    torch.minimum(out, tone.high, out=out)
    moved.sub_(out)


def settle_one(values: Tensor, tone: OneTone, out: Tensor, moved: Tensor) -> None:
    """`settle` for one view (C,h,w), in three passes for five."""
    torch.add(tone.offset, values, alpha=tone.gain, out=moved)
    torch.clamp(moved, tone.low, tone.high, out=out)
    moved.sub_(out)


def unmoved(grad: Tensor, moved: Tensor, out: Tensor | None = None) -> Tensor:
    """`grad` where `settle` has moved nothing, but for rounding, and 0 elsewhere."""
    far = tolerance(moved.dtype) * (1 + torch.finfo(moved.dtype).eps)  # the kernel's bounds are outside
    out = torch.empty_like(moved) if out is None else out
    return torch.ops.aten.hardtanh_backward.grad_input(grad, moved, -far, far, grad_input=out)  # type: ignore[no-any-return]


class _Toned(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, views: Tensor, *tone: Tensor) -> Tensor:
        out = torch.empty_like(views, memory_format=torch.contiguous_format)
        moved = torch.empty_like(out)
        settle(views, Tone(*tone), out, moved)
        ctx.save_for_backward(moved, tone[0])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        moved, gain = ctx.saved_tensors
        return unmoved(grad, moved).mul_(gain), None, None, None, None
