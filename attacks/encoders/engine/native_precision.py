"""Networks in the precision of their own weights: half precision runs as it is, for pictures in float32."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.jit import ScriptModule

from attacks.encoders.engine.memory import out_of_memory
from attacks.encoders.engine.precision import Overflow
from attacks.encoders.randomness import encoder_randomness
from attacks.encoders.tiles import Tiles
from attacks.encoders.tree import Tree, adopt, embeddings, map_tree, optional
from transforms.doors import unchecked

#: The largest entry of a picture's scaled gradient where it enters a float16 network, and the least that is tried.
#: float16 ends at 2^16, and its normal numbers begin at 2^-14: a gradient may grow 2^8-fold in the network, or shrink
#: 2^22-fold.
LARGEST, SMALLEST = 2.0**8, 2.0**-12
NATIVE, FLOAT32 = "own", "float32"
HALVES = torch.float16, torch.bfloat16


class RowScale:
    """The loss scale of one pass through a float16 network, a power of two for each picture.

    The first gradient that comes back chooses it, so that no size of loss underflows, and a picture's gradient
    depends on no other's.
    """

    def __init__(self, largest: float) -> None:
        self.largest = largest
        self.rows: Tensor | None = None

    def times(self, gradient: Tensor) -> Tensor:
        size = gradient.flatten(1).abs().amax(1)
        exponent = torch.frexp(size).exponent.clamp(min=-100)
        scale = torch.where(size > 0, torch.ldexp(torch.full_like(size, self.largest), -exponent), 0.0)
        # A row without a gradient here may have one at another layer, which then chooses.
        self.rows = scale if self.rows is None else torch.where(self.rows > 0, self.rows, scale)
        return gradient * _column(self.rows, gradient)

    def divide(self, gradient: Tensor) -> Tensor:
        if self.rows is None:
            return gradient
        return gradient / _column(torch.where(self.rows > 0, self.rows, 1.0), gradient)


def _hook_gradient(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A view of a tensor whose gradient goes through `change`."""
    view = tensor.view_as(tensor)
    if view.requires_grad:
        view.register_hook(change)
    return view


def _column(rows: Tensor, like: Tensor) -> Tensor:
    return rows.view(-1, *[1] * (like.dim() - 1)).to(like.dtype)


class NativePrecision:
    """How a network runs in its own precision: pictures are cast to the dtype of its weights where they enter it, and
    what leaves it is cast to the dtype of the pictures, at least float32.

    Of float16 the gradient is scaled within the network (see `RowScale`). Where it overflows there, the backward pass
    raises `Overflow`; the pass is then repeated with a smaller scale.

    Args:
        network: whose weights they are.
        title: names the network in errors.
    """

    def __init__(self, network: nn.Module, title: str) -> None:
        self.title, self.is_program = title, isinstance(network, ScriptModule)
        self.weights_dtype: torch.dtype | None = None  # the dtype of weights that were widened
        self.dtype = native_dtype(network)
        self.largest = LARGEST
        self.scale, self.wide = RowScale(LARGEST), torch.float32  # of the present pass

    @property
    def half(self) -> bool:
        return self.dtype in HALVES

    @property
    def _is_ordinary(self) -> bool:
        return self.dtype is None and not self.is_program

    def enter(self, pictures: Any) -> Any:
        """The pictures, or their tiles, as the network takes them."""
        if self._is_ordinary:
            return pictures
        if isinstance(pictures, Tiles):
            return pictures._replace(pixels=self.enter(pictures.pixels))
        self.wide, self.scale = torch.promote_types(pictures.dtype, torch.float32), RowScale(self.largest)
        if self.dtype == torch.float16:
            scale = self.scale
            pictures = _hook_gradient(pictures.to(self.wide), lambda gradient: self._unscale(scale, gradient))
        return pictures.to(self.dtype or torch.float32)

    def leave(self, features: Tree) -> Tree:
        """What leaves the network, or a layer of it, after `enter`. Integers are left as they are."""
        return features if self._is_ordinary else map_tree(features, self._widen)

    def call(self, network: nn.Module, pictures: Any, **options: Any) -> Any:
        """The answer to what `enter` gave. Raises ValueError where the network refuses the dtype, device or shape."""
        if torch.compiler.is_compiling() or self._is_ordinary:
            return unchecked(network)(pictures, **options)
        try:
            return unchecked(network)(pictures, **options)
        except (RuntimeError, TypeError, IndexError) as error:
            if out_of_memory(error):
                raise
            images = pictures.pixels if isinstance(pictures, Tiles) else pictures
            raise ValueError(self._refusal(error, images)) from error

    def back(self, features: Tensor) -> None:
        """A backward pass from finite features. Raises ValueError where the network lacks one."""
        try:
            features.sum().backward() if features.requires_grad else None
        except Overflow:
            pass
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            raise ValueError(self._refusal(error, features)) from error

    def _widen(self, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        wide = leaf.to(self.wide)
        return _hook_gradient(wide, self.scale.times) if self.dtype == torch.float16 else wide

    def _unscale(self, scale: RowScale, gradient: Tensor) -> Tensor:
        if bool(gradient.isfinite().all()):
            self.largest = LARGEST
        elif scale.largest > SMALLEST:
            self.largest = scale.largest / 16
            raise Overflow(
                f"a gradient overflows in the float16 of {self.title}: repeat the pass, at a smaller scale"
            )
        return scale.divide(gradient)

    def _refusal(self, error: Exception, pictures: Tensor) -> str:
        reason, title, device = _reason(error), self.title, pictures.device
        dtype, shape = _name(pictures.dtype), "x".join(map(str, pictures.shape[1:]))
        if re.search(r"not implemented for '(Half|BFloat16)'|nsupported dtype|Low precision dtypes", reason):
            rule = f"`encoder.precision` must be float32 for {title}: {device.type} lacks an operator in {dtype}"
            fix = "encoder.precision=float32 widens its weights"
        elif re.search(r"same device|NVIDIA|CUDA|cuda|meta|device type", reason):
            rule = f"`engine.device` must be the one device of all tensors of {title}; the pictures are on {device}"
            fix = "choose its device, or save it without a device of its own"
        elif re.search(r"dtype|scalar type|Input type|ScalarType", reason):
            rule = f"`encoder.precision`: {title} must compute in the dtype of its weights; got {dtype} pictures"
            fix = f"try encoder.precision={NATIVE if self.weights_dtype else FLOAT32}, or save it in one dtype"
        else:
            rule = f"`encoder.preprocess.size` must be what {title} was made or traced for, for any number of "
            rule, fix = f"{rule}pictures; got {len(pictures)} of {shape} in {dtype}", "give the size that it takes"
        return f"{rule} ({reason}); {fix}"


def _reason(error: Exception) -> str:
    """The line of an error that says what was wrong: of a TorchScript trace the last error, else the first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    errors = [line for line in lines if "TorchScript" in str(error) and _ERROR.match(line)]
    return _ERROR.sub("", (errors or lines[:1])[-1])[:200]


#: What TorchScript puts before the message of an error.
_ERROR = re.compile(r"(\w+\.)*\w*Error: ")


class InNativePrecision(nn.Module):
    """Any module as an encoder of float32 pictures, in its own precision: (N,3,H,W) in [0,1] -> its features in
    float32. The whole module is the network: preprocessing within it is in half precision too (`with_preprocess`
    keeps it in float32).

    Args:
        encoder: in evaluation mode.
    """

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.randomness = encoder, encoder_randomness(encoder)
        self.training = encoder.training
        self.native = NativePrecision(encoder, type(encoder).__name__)
        adopt(self, encoder)

    def forward(self, images: Tensor, **options: Any) -> Tree:
        """Raises ValueError where the module refuses the pictures, or its answer is no embedding."""
        answer: Any = self.native.call(self.encoder, self.native.enter(images), **options)
        return self.native.leave(embeddings(answer, f"the answer of encoder {self.native.title}", len(images)))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "InNativePrecision":
        super()._apply(fn, recurse)
        self.native.dtype = native_dtype(self.encoder)
        return self

    def __repr__(self) -> str:
        return repr(self.encoder)


def native_dtype(network: nn.Module) -> torch.dtype | None:
    """The dtype of a network's first weight, where it begins; None for float32, or without weights."""
    first = next((weight.dtype for weight in network.parameters() if weight.is_floating_point()), torch.float32)
    return None if first == torch.float32 else first


def native_precisions(encoder: nn.Module) -> Iterator[tuple[nn.Module, NativePrecision]]:
    """The modules within an encoder that run in a precision of their own."""
    for module in encoder.modules():
        native = optional(module, "native")
        if isinstance(native, NativePrecision):
            yield module, native


def innermost_precision(encoder: nn.Module, layer: nn.Module) -> NativePrecision | None:
    """The innermost of these around a layer."""
    around = [native for module, native in native_precisions(encoder) if any(p is layer for p in module.modules())]
    return around[-1] if around else None


def in_native_precision(encoder: Any) -> Any:
    """A module in half precision, or a TorchScript program, as an encoder of float32 pictures; any other encoder
    itself."""
    if not isinstance(encoder, nn.Module):
        return encoder
    if not isinstance(encoder, ScriptModule) and native_dtype(encoder) not in HALVES:
        return encoder
    return encoder if any(native_precisions(encoder)) else InNativePrecision(encoder)


def run_in(encoder: nn.Module, precision: str = NATIVE) -> nn.Module:
    """An encoder in the `precision` of a configuration: "own", or "float32", which widens its weights in place.

    Raises ValueError: another one.
    """
    if precision not in (NATIVE, FLOAT32):
        raise ValueError(f"`precision` must be {NATIVE} or {FLOAT32}; got {precision!r}")
    encoder = in_native_precision(encoder)
    halves = [(native, native.dtype) for _, native in native_precisions(encoder) if native.half]
    if precision == FLOAT32 and halves:
        encoder = encoder.float()
        texts = optional(encoder, "texts")
        for part in () if texts is None else vars(texts).values():  # a text tower is no module of the encoder
            if isinstance(part, nn.Module):
                part.float()
        for native, dtype in halves:
            native.weights_dtype = dtype
    return encoder


def is_half(encoder: object) -> str | None:
    """The half precision that an encoder runs in by itself, by its name; None for another."""
    encoder = in_native_precision(encoder)
    precisions = native_precisions(encoder) if isinstance(encoder, nn.Module) else ()
    return next((_name(native.dtype) for _, native in precisions if native.half), None)


def precision_text(encoder: nn.Module) -> str:
    """The precision that an encoder runs in, in words: float32, float16, "float32, widened from float16"."""
    for _, native in native_precisions(encoder):
        if native.weights_dtype is not None:
            return f"float32, widened from {_name(native.weights_dtype)}"
        if native.dtype is not None:
            return _name(native.dtype)
    return FLOAT32


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
