"""Networks in ONNX files, converted by onnx2torch."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.families.onnx_graph import NEWEST, Graph, free_batch, read_graph
from attacks.encoders.image_encoder import ImageEncoder, Origin
from attacks.encoders.preprocess import preprocess_from
from attacks.encoders.request import Request, first_line, flat, whole_file
from attacks.runtime.extras import extra
from attacks.runtime.untrusted import short_path


def load(request: Request) -> ImageEncoder:
    """`model` is a file. Of the preprocessing it holds the size at most; `preprocess` gives the rest.

    The features are the graph's first output, flattened. The network computes in the dtype of its weights; half
    precision is widened to float32. Its layers have the names of the graph's nodes.

    Use: a network that comes as a file, such as ArcFace.
    Not: a graph with operations that onnx2torch does not know.
    Source: onnx2torch.
    Oracle: onnxruntime, tests/encoders/families/test_onnx.py.
    With: encoder.model=arcface.onnx 'encoder.preprocess={size: 112, mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}'
    """
    path = whole_file(request)
    graph = read_graph(path)
    size = {"size": graph.size} if graph.size else {}
    preprocess = preprocess_from({**size, **request.preprocess}, f"{path}")
    for shape in ((64, 80), (80, 64)) if graph.size else ():
        sides = tuple(preprocess(torch.zeros(1, 3, *shape)).shape[2:])
        if sides != graph.size:
            raise ValueError(
                f"`encoder.preprocess` must make pictures of {graph.size}, as the graph of {path} wants them; one of "
                f"{shape} becomes {sides}: leave `size` out, or give a `crop`"
            )
    first = f", output {graph.outputs[0]} (the first of {len(graph.outputs)})" if len(graph.outputs) > 1 else ""
    origin = Origin(request.family, request.model, f"in the file{first}", path)
    pictures = preprocess(torch.rand(3, 3, 64, 80, generator=torch.Generator().manual_seed(0)))
    return ImageEncoder(_for_any_batch(graph, pictures, path), preprocess, origin, read=flat)


def _convert(model: Any, path: Path) -> nn.Module:
    convert = extra("onnx2torch").convert
    _teach()
    missing = _missing_operations(model)
    if missing:
        raise ValueError(
            f"`encoder.model`: {path} has operations that onnx2torch does not know: {short_path(', '.join(missing))}"
        )
    try:
        network: nn.Module = convert(model)
    except Exception as error:  # converters raise errors of any kind
        raise ValueError(
            f"`encoder.model`: onnx2torch cannot turn {path} into torch ({type(error).__name__}: {first_line(error)})"
        ) from None
    for name, module in list(network.named_modules()):
        kind = type(module).__name__
        if kind == "OnnxSlice" or (kind == "OnnxCast" and module.torch_dtype.is_floating_point):
            network.set_submodule(name, _Slice() if kind == "OnnxSlice" else _Cast())
    # The weights of a bare product become parameters too.
    container = getattr(network, "initializers", nn.Module())
    for name, buffer in list(container.named_buffers()):
        if buffer.is_floating_point():
            delattr(container, name)
            container.register_parameter(name, nn.Parameter(buffer))
    return network.float().eval().requires_grad_(False)


def _missing_operations(model: Any) -> list[str]:
    find = extra("onnx2torch.node_converters").get_converter
    versions = {entry.domain: entry.version for entry in model.opset_import}
    missing = []
    for domain, operation in sorted({(node.domain, node.op_type) for node in model.graph.node}):
        try:
            find(domain=domain, operation_type=operation, version=versions.get(domain, 1))
        except NotImplementedError:
            missing.append(f"{domain}.{operation}".lstrip("."))
    return missing


def _teach() -> None:
    """Register Gelu, which is newer than onnx2torch's operations: torch's exporter writes it for transformers."""
    registry = extra("onnx2torch.node_converters.registry")
    common = extra("onnx2torch.utils.common")

    def gelu(node: Any, graph: Any) -> Any:  # noqa: ARG001
        module = nn.GELU(approximate=node.attributes.get("approximate", "none"))
        return common.OperationConverterResult(module, common.onnx_mapping_from_node(node))

    try:
        registry.get_converter("Gelu", NEWEST)
    except NotImplementedError:
        registry.add_converter("Gelu", NEWEST)(gelu)


class _Slice(nn.Module):
    """onnx2torch indexes with a list, whose meaning torch is about to change (it warns)."""

    def forward(
        self, x: Tensor, starts: Tensor, ends: Tensor, axes: Tensor | None = None, steps: Tensor | None = None
    ) -> Tensor:
        dims = list(range(len(starts))) if axes is None else axes.tolist()
        strides = [1] * len(starts) if steps is None else steps.tolist()
        for start, end, axis, step in zip(starts.tolist(), ends.tolist(), dims, strides, strict=True):
            if step < 0:  # torch has no backward slices
                x, start, end, step = x.flip(axis), -start - 1, -end - 1, -step
            x = x[(*(slice(None),) * (axis % x.dim()), slice(start, end, step))]
        return x


class _Cast(nn.Module):
    """A cast to floating point becomes a cast to the module's dtype, so that float64 stays float64."""

    like: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("like", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return x.to(self.like.dtype)


class SinglePictures(nn.Module):
    """A network for one picture, applied to a batch picture by picture."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: Tensor) -> Tensor:
        return torch.cat([self.network(picture[None]) for picture in pictures])


@torch.no_grad()
def _for_any_batch(graph: Graph, pictures: Tensor, path: Path) -> nn.Module:
    """The network, unchanged or after `free_batch`, if three pictures at once give the same as each alone; else
    `SinglePictures`. The batch in the file is ignored, because it may be wrong."""
    network = _convert(graph.model, path)
    single = SinglePictures(network)
    try:
        expected: Tensor = single(pictures)
    except Exception as error:  # any operation of the graph
        raise ValueError(
            f"`encoder.model`: the graph of {path} does not run on a picture of {tuple(pictures.shape[2:])} "
            f"({type(error).__name__}: {first_line(error)})"
        ) from None
    if not expected.is_floating_point():
        raise ValueError(f"`encoder.model`: {path} must answer with floating-point features; got {expected.dtype}")
    if _gives(expected, network, pictures):
        return network
    free_batch(graph.model)
    free = _convert(graph.model, path)
    return free if _gives(expected, free, pictures) else single


def _gives(expected: Tensor, network: nn.Module, pictures: Tensor) -> bool:
    try:
        features: Tensor = network(pictures)
    except Exception:  # the shapes of one picture do not fit three
        return False
    near = 1e-4 * float(expected.abs().max())
    same_shape = features.shape == expected.shape
    return same_shape and torch.allclose(features, expected, rtol=1e-3, atol=near, equal_nan=True)
