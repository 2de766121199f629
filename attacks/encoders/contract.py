"""Checks of an encoder where it enters: the form of its answer, finite numbers, independent rows."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from attacks.encoders.engine.memory import out_of_memory
from attacks.encoders.engine.native_precision import native_precisions
from attacks.encoders.layers import unwrap
from attacks.encoders.randomness import encoder_randomness
from attacks.encoders.tree import embedding, embeddings, leaves, optional, refuse_unready
from transforms import Compose
from transforms.doors import unchecked

#: Three pictures in one batch, each at several places; and the others' places taken by the first.
BATCH, NEIGHBOURS = [0, 1, 2, 0, 2, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0, 0]
#: The largest difference that is always rounding, as a share of the longest row, and the largest that may be where
#: only the size of the batch differs: kernels are chosen by it (bfloat16 in deep networks: docs/encoder_contract.md).
ROUNDING, LIMIT = 1e-3, 0.1

PLAIN = Compose([])
_honest: dict[bool, WeakSet[Any]] = {True: WeakSet(), False: WeakSet()}


def check_encoder(encoder: Any, images: Tensor, transforms: Compose = PLAIN, *, tree: bool = True) -> None:
    """Refuse an encoder that breaks the contract (see `attacks.eot.protocols`), once, by four passes
    without a gradient; not one that can only be asked, whose questions count.

    Args:
        encoder: pictures -> features, or a tree of them.
        images, transforms: whose views' size, dtype and device the pictures have.
        tree: whether features may be (N,T,D), or several; else they are one tensor (N,D).

    Raises ValueError: with the fix.
    """
    while not isinstance(encoder, nn.Module) and str(optional(encoder, "__module__")).startswith("attacks."):
        encoder = optional(encoder, "__wrapped__") or optional(encoder, "encoder")  # a wrapper only counts or adds
    if encoder is None or optional(unwrap(encoder), "ledger") is not None:
        return
    with suppress(TypeError):  # an object without a hash is checked again
        if encoder in _honest[tree]:
            return
    refuse_unready(encoder)
    try:
        with torch.no_grad():
            like = unchecked(transforms)(images[:1], images.new_full((1, transforms.dims), 0.5))
        refuse_dependent(encoder, like, tree=tree)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    with suppress(TypeError):
        for honest in [_honest[True]] if tree else _honest.values():
            honest.add(encoder)


@torch.no_grad()
def refuse_dependent(encoder: Any, like: Tensor, *, tree: bool = True, fix: str = "") -> None:
    """The checks themselves; `fix` replaces the advice for rows that depend on one another."""
    title, randomness = encoder_title(encoder), encoder_randomness(encoder)
    noise = torch.rand(like[:1].shape, generator=torch.Generator().manual_seed(0)).to(like)
    ramp = torch.linspace(0.25, 0.75, like.shape[-1]).to(like).expand_as(noise)
    pictures = torch.cat([ramp, noise, noise * ramp.flip(-1)])
    generator = torch.Generator().manual_seed(1)
    draws = None if randomness is None else torch.rand(3, randomness.dims, generator=generator).to(like)

    def answer(rows: list[int]) -> list[Tensor]:
        features = unchecked(encoder)(pictures[rows], **({} if draws is None else {"draws": draws[rows]}))
        label = f"the answer of encoder {title}"
        if tree:
            return leaves(embeddings(features, label, len(rows)))
        return [embedding(features, label, len(rows), tokens=False)]

    try:
        rows = answer(BATCH)
        if not all(bool(leaf.isfinite().all()) for leaf in rows):
            return  # the pass of a real view names what is not finite, and where
        single = _single(answer)
        dependent = _dependent(rows, single, answer)
    finally:
        for module in encoder.modules() if isinstance(encoder, nn.Module) else ():
            if type(module).__module__ == "attacks.encoders.features":  # its import would be a longer chain
                optional(module, "forget")()
    if dependent:
        cosine = min((_cosine(*pair) for pair in zip(rows, single, strict=False)), default=torch.nan)
        raise ValueError(
            f"encoder {title}: the embedding of a picture depends on the other pictures in its batch (cosine "
            f"{cosine:.3f} between alone and together): {fix or _advice(encoder)}"
        )


def encoder_title(encoder: Any) -> str:
    """The name of an encoder in errors."""
    name = optional(encoder, "title") or getattr(encoder, "__name__", None)
    return name if isinstance(name, str) else type(encoder).__name__


def _single(answer: Callable[[list[int]], list[Tensor]]) -> list[Tensor]:
    """The rows of the pictures, each from its pass; none where a batch norm refuses a single picture."""
    try:
        return [torch.cat(rows) for rows in zip(*(answer([row]) for row in range(3)), strict=True)]
    except ValueError as error:
        if "more than 1 value per channel" not in str(error):
            raise
        return []


def _dependent(rows: list[Tensor], single: list[Tensor], answer: Callable[[list[int]], list[Tensor]]) -> bool:
    by_place = _difference(rows, [leaf[BATCH] for leaf in rows])
    by_size = _difference(rows, [leaf[BATCH] for leaf in single])
    if max(by_place, by_size) <= ROUNDING or _difference(rows, answer(BATCH)) > ROUNDING:
        return False  # the same batch again: what then differs is random
    if max(by_place / ROUNDING, by_size / LIMIT) > 1:
        return True
    places = [place for place, picture in enumerate(BATCH) if picture == NEIGHBOURS[place]]
    return _difference(*([leaf[places] for leaf in part] for part in (rows, answer(NEIGHBOURS)))) > ROUNDING


def _difference(first: list[Tensor], second: list[Tensor]) -> float:
    """The largest difference of two rows, as a share of the longest row."""
    if [leaf.shape for leaf in first] != [leaf.shape for leaf in second]:
        return torch.inf
    largest = 0.0
    for a, b in zip(first, second, strict=True):
        a, b = a.flatten(1).cpu().double(), b.flatten(1).cpu().double()  # not every device has float64
        longest = max(float(a.norm(dim=1).max()), float(b.norm(dim=1).max()))
        largest = max(largest, float((a - b).norm(dim=1).max()) / longest if longest else 0.0)
    return largest


def _cosine(rows: Tensor, single: Tensor) -> float:
    """The lowest cosine between a picture's features in the batch and alone; NaN where the two differ in length."""
    if rows.shape[1:] != single.shape[1:]:
        return torch.nan
    return float(F.cosine_similarity(rows.flatten(1), single[BATCH].flatten(1)).min())


def _advice(encoder: Any) -> str:
    for name, layer in encoder.named_modules() if isinstance(encoder, nn.Module) else ():
        if isinstance(layer, _BatchNorm) and (layer.training or layer.running_mean is None):
            return f"layer `{name}`, {type(layer).__name__}, has no running statistics or is in training mode"
    return (
        "BatchNorm without running statistics, a minimum or mean over the batch, rows that compete for places? "
        "Compute each row from its own picture"
    )


def grey_input(encoder: nn.Module) -> Tensor:
    """(1,3,64,80) on the device of the encoder, at least in float32."""
    weight = next(encoder.parameters(), torch.empty(0))
    return weight.new_full((1, 3, 64, 80), 0.5, dtype=torch.promote_types(weight.dtype, torch.float32))


def probe(encoder: nn.Module) -> None:
    """Check an encoder that a library or a file has made. Raises ValueError where it breaks the contract, or a small
    picture does not go through, or the gradient not back through a network in half precision."""
    half = next((native for _, native in native_precisions(encoder) if native.half), None)
    like = grey_input(encoder)
    try:
        check_encoder(encoder, like, tree=False)
        with torch.set_grad_enabled(half is not None):
            answer = encoder(like.clone().requires_grad_(half is not None))
        if half is not None:
            half.back(answer)
    except ValueError:
        raise
    except Exception as error:  # networks raise errors of any kind for a wrong size
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ValueError(
            f"encoder {encoder_title(encoder)}: a picture does not go through ({type(error).__name__}: "
            f"{reason[:200]}); does `encoder.preprocess` give what the network takes?"
        ) from error
    if not bool(answer.isfinite().all()):
        fix = "" if half is None else " (encoder.precision=float32 widens them)"
        raise ValueError(
            f"encoder {encoder_title(encoder)}: the features of a grey picture are not finite; are its weights "
            f"whole?{fix}"
        )
