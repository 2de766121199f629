"""Operators of ONNX in torch: a function takes the inputs in ONNX's order, and attributes by ONNX's names.

An input that was an attribute in an older opset has the attribute's name, so one function serves all opsets. An
attribute that a function lacks is refused where the graph is built (`onnx_graph`). The integers of quantised graphs
are floats here, so that a gradient passes.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.families.onnx_windows import average_pool, conv, max_pool, pad, resize, single, slice_tensor
from transforms.sampling.straight_through import straight_through

#: TensorProto's numbers of dtypes: those of floating point, and the others that torch computes with.
FLOATING = (1, 10, 11, 16)
_INTEGERS = {2: torch.uint8, 3: torch.int8, 5: torch.int16, 6: torch.int32, 7: torch.int64, 9: torch.bool}
#: Parameters that stand for a tensor which is read as Python numbers.
NUMBERS = frozenset(
    {"shape", "axes", "axis", "pads", "value", "starts", "ends", "steps", "split", "repeats", "scales", "sizes", "k"}
    | {"min", "max", "start", "limit", "delta", "ratio", "training_mode"}
)
#: The attributes that `**window` and `**kernel` take.
GROUPS = {
    "window": ("auto_pad", "ceil_mode", "dilations", "group", "kernel_shape", "pads", "strides"),
    "kernel": ("mode", "nearest_mode", "cubic_coeff_a"),
}
#: Attributes that change nothing here: of training, of 8-bit floats, of outputs that are not made.
IDLE = frozenset(
    {"is_test", "momentum", "num_outputs", "round_mode", "saturate", "sorted", "spatial", "stash_type"}
    | {"storage_order"}
)
#: Operators that give several tensors; of others only the first output may be used.
SEVERAL = frozenset({"Split", "TopK", "DynamicQuantizeLinear"})
_QDQ = "quantise it with QuantizeLinear and DequantizeLinear (QuantFormat.QDQ of onnxruntime)"
_EVALUATION = "export the network in evaluation mode, after `.eval()`"
#: Operator, or domain -> what to do where it is refused.
REMEDIES = {
    **dict.fromkeys(("If", "Loop", "Scan"), "export it without control flow, such as with `dynamo=True` of torch"),
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "com.microsoft"), _QDQ),
    **dict.fromkeys(("BatchNormalization", "Dropout"), _EVALUATION),
    "": "export the network without it, or use `encoder=torchscript`",
}


def _batch_norm(x: Tensor, scale: Tensor, b: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    gain = scale * (var + epsilon).rsqrt()  # as two steps of arithmetic: see attacks/encoders/engine/batch_norm.py
    return x * _channels(gain, x, 1) + _channels(b - mean * gain, x, 1)


def _group_norm(x: Tensor, scale: Tensor, b: Tensor, *, num_groups: int = 0, epsilon: float = 1e-5) -> Tensor:
    groups = num_groups or x.shape[1]  # of an InstanceNormalization each channel is one
    if len(scale) != x.shape[1]:  # below opset 21 they are of the groups
        scale, b = (w.repeat_interleave(x.shape[1] // groups) for w in (scale, b))
    return F.group_norm(x, groups, scale, b, epsilon)


def _softmax(
    x: Tensor, *, axis: int | None = None, opset: int, function: Callable[..., Tensor] = F.softmax
) -> Tensor:
    if opset >= 13:
        return function(x, -1 if axis is None else axis)
    return function(x.flatten(1 if axis is None else axis), -1).reshape(x.shape)  # over all axes from there on


def _attention(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None = None,
    *,
    is_causal: int = 0,
    scale: float | None = None,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
) -> Tensor:
    heads, counts = [queries, keys, values], (q_num_heads, kv_num_heads, kv_num_heads)
    if is_flat := queries.dim() == 3:
        heads = [x.unflatten(2, (count, -1)).transpose(1, 2) for x, count in zip(heads, counts, strict=True)]
    q, k, v = (x.repeat_interleave(heads[0].shape[1] // x.shape[1], 1) for x in heads)
    if mask is not None and is_causal:
        triangle = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        mask = mask & triangle if mask.dtype == torch.bool else mask.masked_fill(~triangle, -math.inf)
    y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=bool(is_causal) and mask is None, scale=scale)
    return y.transpose(1, 2).flatten(2) if is_flat else y


def _dropout(x: Tensor, ratio: float = 0.5, training_mode: bool = False) -> Tensor:  # noqa: ARG001
    if training_mode:
        raise ValueError(f"training_mode=True is not supported: {_EVALUATION}")
    return x


def _over(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A reduction over axes, all of them by default."""

    def reduction(x: Tensor, axes: Sequence[int] = (), *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Tensor:
        if not axes and noop_with_empty_axes:
            return function(x[None], dim=[0], keepdim=False)
        return function(x, dim=axes or list(range(x.dim())), keepdim=bool(keepdims))

    return reduction


def _product(x: Tensor, dim: Sequence[int], keepdim: bool) -> Tensor:
    return reduce(lambda x, axis: x.prod(axis, keepdim), sorted((i % x.dim() for i in dim), reverse=True), x)


def _cast(x: Tensor, *, to: int) -> Tensor:
    if to in FLOATING:  # any of them is the dtype of the module
        return x if x.is_floating_point() else x.float()
    if to not in _INTEGERS:
        raise ValueError(f"to={to}, a dtype of TensorProto, is not supported: {REMEDIES['']}")
    return x.to(_INTEGERS[to])


# --- quantisation: the gradient goes straight through every rounding ---


def _rounded(x: Tensor, *, function: Callable[[Tensor], Tensor]) -> Tensor:
    return straight_through(function(x), x) if x.is_floating_point() else x


def _channels(w: Tensor, x: Tensor, axis: int) -> Tensor:
    """(C,) in the axis of `x`; one value for all."""
    return w.reshape(()) if w.numel() == 1 else w.view(*(-1 if i == axis % x.dim() else 1 for i in range(x.dim())))


def _minus_zero(x: Tensor, zero: Tensor | None, axis: int, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if zero is None else x.to(dtype) - _channels(zero, x, axis)


def _quantize(x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int = 1) -> Tensor:
    kind = torch.iinfo(torch.uint8 if zero is None else zero.dtype)
    level, offset = x / _channels(scale, x, axis), 0 if zero is None else _channels(zero, x, axis).to(x.dtype)
    code = level.round() + offset
    answer = code.clamp(kind.min, kind.max)
    # beyond the ends it is constant
    return straight_through(answer, torch.where(code == answer, level, level.detach()))


def _dynamic_quantize(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    low, high = x.detach().amin().clamp(max=0), x.detach().amax().clamp(min=0)
    scale = torch.where(high > low, (high - low) / 255, 1.0)
    zero = (-low / scale).round().clamp(0, 255).to(torch.uint8)
    return _quantize(x, scale, zero), scale, zero


def _concat(*tensors: Tensor, axis: int) -> Tensor:
    if axis % tensors[0].dim():  # a class token is written for a batch of one
        rows = max(len(x) for x in tensors)
        tensors = tuple(x.expand(rows, *x.shape[1:]) if len(x) == 1 else x for x in tensors)
    return torch.cat(tensors, axis)


_ZERO = torch.zeros(1)
#: Operators that torch has under the same name.
_TORCH_NAMES = (
    *("Abs", "Neg", "Exp", "Log", "Sqrt", "Reciprocal", "Sigmoid", "Tanh", "Erf", "Sign", "IsNaN", "IsInf", "Relu"),
    *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Add", "Sub", "Mul"),
    *("MatMul", "Where"),
)
OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: getattr(torch, name.lower()) for name in _TORCH_NAMES},
    "Identity": lambda x: x,
    "Not": torch.logical_not,
    "And": torch.logical_and,
    "Or": torch.logical_or,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Div": lambda a, b: torch.div(a, b, rounding_mode=None if a.is_floating_point() else "trunc"),
    "Pow": lambda x, y: torch.pow(x, y).to(x.dtype),
    "Mod": lambda a, b, *, fmod=0: torch.fmod(a, b) if fmod else torch.remainder(a, b),
    "Sum": lambda *tensors: reduce(torch.add, tensors),
    "Mean": lambda *tensors: reduce(torch.add, tensors) / len(tensors),
    "Max": lambda *tensors: reduce(torch.maximum, tensors),
    "Min": lambda *tensors: reduce(torch.minimum, tensors),
    "Clip": lambda x, min=None, max=None: x if min is None and max is None else x.clamp(min, max),  # noqa: A006
    "Cast": _cast,
    "CastLike": lambda x, like: x if x.is_floating_point() and like.is_floating_point() else x.to(like.dtype),
    "Gemm": lambda a, b, c=0.0, *, alpha=1.0, beta=1.0, transA=0, transB=0: (
        alpha * ((a.mT if transA else a) @ (b.mT if transB else b)) + beta * c
    ),
    "Einsum": lambda *tensors, equation: torch.einsum(equation, *tensors),
    # activations
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "Mish": F.mish,
    "HardSwish": F.hardswish,
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    "Swish": lambda x, *, alpha=1.0: x * torch.sigmoid(alpha * x),
    "Elu": lambda x, *, alpha=1.0: F.elu(x, alpha),
    "Celu": lambda x, *, alpha=1.0: F.celu(x, alpha),
    "Selu": lambda x, *, alpha=1.6732632, gamma=1.050701: gamma * F.elu(x, alpha),
    "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
    "ThresholdedRelu": lambda x, *, alpha=1.0: F.threshold(x, alpha, 0.0),
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: (alpha * x + beta).clamp(0, 1),
    "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x),
    "Softmax": _softmax,
    "LogSoftmax": partial(_softmax, function=F.log_softmax),
    "Attention": _attention,
    "Dropout": _dropout,
    # windows and normalisations
    "Conv": conv,
    "MaxPool": max_pool,
    "AveragePool": average_pool,
    "GlobalMaxPool": lambda x: x.amax(tuple(range(2, x.dim())), True),
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.dim())), True),
    "BatchNormalization": _batch_norm,
    "LayerNormalization": lambda x, w, b=0.0, *, axis=-1, epsilon=1e-5: (
        F.layer_norm(x, x.shape[axis:], eps=epsilon) * w + b
    ),
    "RMSNormalization": lambda x, w, *, axis=-1, epsilon=1e-5: F.rms_norm(x, x.shape[axis:], eps=epsilon) * w,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _group_norm,
    "LpNormalization": lambda x, *, axis=-1, p=2: F.normalize(x, p, axis, eps=torch.finfo(x.dtype).tiny),
    # torch's window has its longer half before the channel, ONNX's behind it
    "LRN": lambda x, *, size, alpha=1e-4, beta=0.75, bias=1.0: F.local_response_norm(
        x.flip(1), size, alpha, beta, bias
    ).flip(1),
    # over axes
    "ReduceSum": _over(torch.sum),
    "ReduceMean": _over(torch.mean),
    "ReduceMax": _over(torch.amax),
    "ReduceMin": _over(torch.amin),
    "ReduceProd": _over(_product),
    "ReduceL1": _over(partial(torch.linalg.vector_norm, ord=1)),
    "ReduceL2": _over(torch.linalg.vector_norm),
    "ReduceSumSquare": _over(lambda x, **axes: x.square().sum(**axes)),
    "ReduceLogSum": _over(lambda x, **axes: x.sum(**axes).log()),
    "ReduceLogSumExp": _over(torch.logsumexp),
    "ArgMax": lambda x, *, axis=0, keepdims=1: x.argmax(axis, bool(keepdims)),
    "ArgMin": lambda x, *, axis=0, keepdims=1: x.argmin(axis, bool(keepdims)),
    "TopK": lambda x, k, *, axis=-1, largest=1: x.topk(single(k), axis, bool(largest)),
    # quantisation
    "Round": partial(_rounded, function=torch.round),
    "Floor": partial(_rounded, function=torch.floor),
    "Ceil": partial(_rounded, function=torch.ceil),
    "QuantizeLinear": _quantize,
    "DequantizeLinear": lambda x, w, zero=None, *, axis=1: (
        _minus_zero(x, zero, axis, w.dtype) * _channels(w, x, axis)
    ),
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": lambda a, b, a_zero=None, b_zero=None: (
        _minus_zero(a, a_zero, -2, a.dtype) @ _minus_zero(b, b_zero, -1, a.dtype)
    ),
    "ConvInteger": lambda x, w, zero=None, w_zero=None, **window: conv(
        _minus_zero(x, zero, 1, x.dtype), _minus_zero(w, w_zero, 0, x.dtype), **window
    ),
    # shapes and places
    "Shape": lambda x, *, start=0, end=None: torch.tensor(x.shape[start:end], dtype=torch.int64),
    "Size": lambda x: torch.tensor(x.numel()),
    "Reshape": lambda x, shape, *, allowzero=0: x.reshape(
        [n or (0 if allowzero else x.shape[i]) for i, n in enumerate(shape)]
    ),
    "Flatten": lambda x, *, axis=1: x.reshape(math.prod(x.shape[: axis % (x.dim() + (axis >= 0))]), -1),
    "Squeeze": lambda x, axes=(): x.squeeze(tuple(axes)) if axes else x.squeeze(),
    "Unsqueeze": lambda x, axes: reduce(torch.unsqueeze, sorted(i % (x.dim() + len(axes)) for i in axes), x),
    "Transpose": lambda x, *, perm=(): x.permute(*(perm or reversed(range(x.dim())))),
    "Split": lambda x, split=(), *, axis=0, outputs: x.split(split or math.ceil(x.shape[axis] / outputs), axis),
    "Slice": slice_tensor,
    "Concat": _concat,
    "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, shape)),
    "Tile": lambda x, repeats: x.tile(repeats),
    "Range": lambda start, limit, delta: torch.arange(start, limit, delta),
    "ConstantOfShape": lambda shape, *, value=_ZERO: value.reshape(()).expand(shape),
    "CumSum": lambda x, axis: x.cumsum(single(axis)),
    "Trilu": lambda x, k=0, *, upper=1: x.triu(single(k)) if upper else x.tril(single(k)),
    "Gather": lambda x, indices, *, axis=0: x[(*(slice(None),) * (axis % x.dim()), indices)],
    "GatherElements": lambda x, indices, *, axis=0: x.gather(axis, indices % x.shape[axis]),
    "GatherND": lambda x, indices: x[indices.unbind(-1)],
    "ScatterND": lambda x, indices, updates: x.index_put(indices.unbind(-1), updates),
    "ScatterElements": lambda x, indices, updates, *, axis=0: x.scatter(axis, indices % x.shape[axis], updates),
    "DepthToSpace": lambda x, *, blocksize: F.pixel_shuffle(
        x.unflatten(1, (blocksize**2, -1)).transpose(1, 2).flatten(1, 2), blocksize
    ),
    "SpaceToDepth": lambda x, *, blocksize: (
        F.pixel_unshuffle(x, blocksize).unflatten(1, (x.shape[1], -1)).transpose(1, 2).flatten(1, 2)
    ),
    "Pad": pad,
    "Resize": resize,
    "Upsample": lambda x, scales, *, mode="nearest": resize(
        x, None, scales, mode=mode, nearest_mode="floor", coordinate_transformation_mode="asymmetric"
    ),
    "GridSample": lambda x, grid, *, mode="bilinear", padding_mode="zeros", align_corners=0: F.grid_sample(
        x, grid, mode if mode == "nearest" else f"bi{mode.removeprefix('bi')}", padding_mode, bool(align_corners)
    ),
}
