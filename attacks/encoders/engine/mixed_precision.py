"""A full-precision forward pass, and the backward pass of its convolutions and linear layers in bfloat16.

Rounding the forward pass flips ReLUs near zero, and a flipped ReLU is an error of the whole size of its gradient.
Rounding the backward pass alone is an error of 2^-9 of each product. Nearly all the time that bfloat16 saves can be
saved in either pass, so it is saved in the backward pass.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Sizes = tuple[int, ...]


def make_mixed(module: nn.Module) -> int:
    """Give, in place, every zero-padded `nn.Conv2d` and every `nn.Linear` of `module` its backward pass in bfloat16.

    Subclasses and other paddings are unchanged. Weights must be frozen: they get no gradient. Returns the number of
    layers that changed.
    """
    count = 0
    for layer in module.modules():
        # The class is changed rather than the module wrapped, so that code that reads `layer.weight` still can.
        if type(layer) is nn.Conv2d and layer.padding_mode == "zeros":
            layer.__class__ = _MixedConv2d
        elif type(layer) is nn.Linear:
            layer.__class__ = _MixedLinear
        else:
            continue
        layer.register_buffer("low", layer.weight.detach().to(torch.bfloat16), persistent=False)
        count += 1
    return count


class _MixedConv2d(nn.Conv2d):
    low: Tensor

    def forward(self, x: Tensor) -> Tensor:
        settings = (self.stride, self.padding, self.dilation, self.groups)
        return _Convolution.apply(  # type: ignore[no-any-return]
            x, self.weight, self.bias, self.low, settings, _padding(self)
        )


class _MixedLinear(nn.Linear):
    low: Tensor

    def forward(self, x: Tensor) -> Tensor:
        return _Product.apply(x, self.weight, self.bias, self.low)  # type: ignore[no-any-return]


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, low: Tensor) -> Tensor:
        ctx.low = low
        return F.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        gradient = (grads[0].to(torch.bfloat16) @ ctx.low).to(grads[0].dtype)
        return gradient, None, None, None


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        low: Tensor,
        settings: tuple[Sizes, Sizes | str, Sizes, int],
        padded: tuple[Sizes, Sizes],
    ) -> Tensor:
        (stride, padding, dilation, groups), (border, extra) = settings, padded
        channels_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
        ctx.format = torch.channels_last if channels_last else torch.contiguous_format
        ctx.low, ctx.shape, ctx.border, ctx.extra = low, tuple(x.shape), border, extra
        ctx.stride, ctx.dilation, ctx.groups = stride, dilation, groups
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        count, channels, height, width = ctx.shape
        low = grads[0].to(torch.bfloat16)
        padded = (count, channels, height + ctx.extra[0], width + ctx.extra[1])
        # Only its shape and layout are read.
        source = torch.empty(padded, dtype=low.dtype, device=low.device, memory_format=ctx.format)
        gradient, _, _ = torch.ops.aten.convolution_backward(
            *(low, source, ctx.low, None, ctx.stride, ctx.border, ctx.dilation),
            *(False, [0, 0], ctx.groups, (True, False, False)),
        )
        return gradient[:, :, :height, :width].to(grads[0].dtype), *[None] * 5


def _padding(layer: nn.Conv2d) -> tuple[Sizes, Sizes]:
    """(zeros before and after each axis, how many more there are after it); "same" is uneven for even kernels."""
    if not isinstance(layer.padding, str):
        return tuple(layer.padding), (0, 0)
    if layer.padding == "valid":
        return (0, 0), (0, 0)
    total = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
    return tuple(t // 2 for t in total), tuple(t % 2 for t in total)
