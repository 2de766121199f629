"""Networks in ONNX files, run by torch."""

from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.families.onnx_graph import OnnxNetwork, OnnxStep, build_network, picture_of, read_graph
from attacks.encoders.image_encoder import ImageEncoder, Origin
from attacks.encoders.preprocess import preprocess_from
from attacks.encoders.request import Request, first_line, flat, whole_file


def load(request: Request, output: str | None = None) -> ImageEncoder:
    """`model` is a file. Of the preprocessing it holds the size at most; `preprocess` gives the rest.

    The features are the graph's first output, flattened, or its tensor `output`. The network computes in the dtype of
    its weights; half precision is widened to float32. Its layers have the names of the graph's nodes. The gradient of
    a quantised graph goes straight through its roundings, which the origin of the weights says.

    Use: a network that comes as a file, such as ArcFace.
    Not: a graph with control flow, or with operators of another domain than ONNX's.
    Source: onnx.
    Oracle: onnxruntime, tests/encoders/families/test_onnx_operators.py.
    With: encoder.model=arcface.onnx 'encoder.preprocess={size: 112, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}'
    """
    path = whole_file(request)
    model = read_graph(path)
    model.graph.output[0].name = output or model.graph.output[0].name
    picture = picture_of(model, path)
    size = {"size": picture.size} if picture.size else {}
    preprocess = preprocess_from({**size, **request.preprocess}, f"{path}")
    for shape in ((64, 80), (80, 64)) if picture.size else ():
        sides = tuple(preprocess(torch.zeros(1, 3, *shape)).shape[2:])
        if sides != picture.size:
            raise ValueError(
                f"`encoder.preprocess` must make pictures of {picture.size}, as the graph of {path} wants them; one "
                f"of {shape} becomes {sides}: leave `size` out, or give a `crop`"
            )
    names = [output.name for output in model.graph.output]
    first = f", output {names[0]} (the first of {len(names)})" if len(names) > 1 else ""
    network = build_network(model, picture, path).eval()
    pictures = preprocess(torch.rand(3, 3, 64, 80, generator=torch.Generator().manual_seed(0)))
    notes = _gradient_notes(network, pictures[:1].expand(picture.batch or 1, -1, -1, -1).clone(), path)
    origin = Origin(request.family, request.model, f"in the file{first}{notes}", path)
    return ImageEncoder(_for_any_batch(network, pictures), preprocess, origin, read=flat)


#: Operators whose gradient goes straight through, and those whose answer is a place or a decision, which has none.
_ROUNDINGS = ("QuantizeLinear", "DynamicQuantizeLinear", "Round", "Floor", "Ceil")
_DECISIONS = ("Shape", "Size", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "IsNaN", "IsInf")


def _gradient_notes(network: OnnxNetwork, pictures: Tensor, path: Path) -> str:
    """One pass, layer by layer: which roundings the gradient goes straight through, and where it ends.

    Raises ValueError: a node that cannot run, or features that are no floating-point numbers or have no gradient.
    """
    straight, ends, titles = Counter[str](), list[str](), [""]

    def end(step: OnnxStep, inputs: Any, answer: Any) -> None:
        if any(tensor.requires_grad for tensor in inputs):
            several = answer if isinstance(answer, tuple) else (answer,)
            is_end = step.kind == "Sign" or not any(tensor.requires_grad for tensor in several)
            if is_end and step.kind not in _DECISIONS:
                ends.append(step.title)
            straight.update([step.kind] if step.kind in _ROUNDINGS else [])

    handles = []
    for step, layer in network.named_steps():
        handles.append(layer.register_forward_pre_hook(lambda *_, step=step: titles.append(step.title)))
        handles.append(layer.register_forward_hook(lambda _, inputs, answer, step=step: end(step, inputs, answer)))
    try:
        with torch.enable_grad():
            features = network(pictures.requires_grad_())
    except Exception as error:  # any operation of the graph
        raise ValueError(
            f"`encoder.model`: the graph of {path} does not run on a picture of {tuple(pictures.shape[2:])}: "
            f"{titles[-1]}: {first_line(error)} ({type(error).__name__})"
        ) from None
    finally:
        for handle in handles:
            handle.remove()
    if not features.is_floating_point():
        raise ValueError(f"`encoder.model`: {path} must answer with floating-point features; got {features.dtype}")
    if not features.requires_grad:
        raise ValueError(
            f"`encoder.model`: the features of {path} have no gradient: it ends at {', '.join(ends[:3])}"
        )
    notes = [f"gradient straight through {count} {kind}" for kind, count in straight.items()]
    notes += [f"no gradient through {', '.join(ends[:3])}{' ...' if len(ends) > 3 else ''}"] if ends else []
    return "".join(f"; {note}" for note in notes)


class FixedBatch(nn.Module):
    """A network for batches of one size, applied to any number of pictures; the last one fills a batch."""

    def __init__(self, network: nn.Module, batch: int) -> None:
        super().__init__()
        self.network, self.batch = network, batch

    def forward(self, pictures: Tensor) -> Tensor:
        rows = []
        for part in pictures.split(self.batch):
            rest = part[-1:].expand(self.batch - len(part), *part.shape[1:])
            rows.append(self.network(torch.cat([part, rest]))[: len(part)])
        return torch.cat(rows)


@torch.no_grad()
def _for_any_batch(network: OnnxNetwork, pictures: Tensor) -> nn.Module:
    """The network, unchanged or with the batch left free, if three pictures at once give the same as in batches of
    the size that the graph insists on; else `FixedBatch`. A batch of one may be wrong in the file, so it is tried."""
    fixed = FixedBatch(network, network.picture.batch or 1)
    expected = fixed(pictures)
    for candidate in (network, network.with_free_batch()):
        try:
            features: Tensor = candidate(pictures)
        except Exception:  # the shapes of one picture do not fit three
            continue
        near = 1e-4 * float(expected.abs().max())
        same_shape = features.shape == expected.shape
        if same_shape and torch.allclose(features, expected, rtol=1e-3, atol=near, equal_nan=True):
            return candidate
    return fixed
