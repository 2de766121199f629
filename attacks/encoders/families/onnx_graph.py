"""An ONNX file as a module of torch: read, checked, and built with a layer for each node."""

import copy
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from attacks.encoders.families.onnx_operators import FLOATING, GROUPS, IDLE, NUMBERS, OPERATORS, REMEDIES, SEVERAL
from attacks.encoders.request import first_line
from attacks.runtime.extras import extra
from attacks.runtime.untrusted import short_path


@dataclass(frozen=True)
class OnnxInput:
    """The input of a graph: the batch that the file names, (height, width) or None for any, and whether it is
    (N,H,W,3)."""

    name: str
    batch: int | None
    size: tuple[int, int] | None
    is_nhwc: bool


class OnnxStep(NamedTuple):
    """A node: its operator, its name in errors, the tensors that it takes and makes, those not needed after it."""

    kind: str
    title: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    garbage: frozenset[str] = frozenset()


class OnnxLayer(nn.Module):
    """A node. `arguments` has the numbers that it reads, and `Ellipsis` where a tensor stands: the weight `input1` of
    ONNX's input 1, or one that depends on the picture."""

    def __init__(self, kind: str, arguments: list[Any], options: dict[str, Any]) -> None:
        super().__init__()
        self.kind, self.arguments, self.options = kind, tuple(arguments), tuple(options.items())

    def forward(self, *tensors: Tensor) -> Any:
        rest, arguments, function = iter(tensors), list[Any](), OPERATORS[self.kind]
        for i, argument in enumerate(self.arguments):
            value = argument
            if argument is ...:
                weight = getattr(self, f"input{i}", None)
                value = next(rest) if weight is None else weight
                if i in _number_places(function):
                    if value.requires_grad:
                        raise ValueError(f"its input {i} depends on the picture: {REMEDIES['']}")
                    value = value.tolist()
            arguments.append(value)
        return function(*_agree(arguments), **dict(self.options))

    def extra_repr(self) -> str:
        return f"{self.kind}, {self.arguments}, {self.options}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "OnnxLayer":
        # Integers stay where shapes and places are read.
        super()._apply(lambda tensor: fn(tensor) if tensor.is_floating_point() else tensor, recurse)
        return self


def _agree(arguments: list[Any]) -> list[Any]:
    """Tensors on one device, and those of floating point in the widest dtype among them."""
    tensors = [argument for argument in arguments if isinstance(argument, Tensor)]
    floats = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    if len(floats) < 2 and len({tensor.device for tensor in tensors}) < 2:
        return arguments
    device = next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), tensors[0].device)
    dtype = max(floats, key=lambda kind: kind.itemsize, default=torch.float32)
    return [
        value.to(device, dtype if value.is_floating_point() else value.dtype) if isinstance(value, Tensor) else value
        for value in arguments
    ]


@cache
def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(function).parameters)
    except ValueError:  # torch's own functions have none, and take no attributes
        return {}


@cache
def _number_places(function: Callable[..., Any]) -> frozenset[int]:
    return frozenset(
        i
        for i, (name, parameter) in enumerate(_parameters(function).items())
        if name in NUMBERS and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    )


class OnnxNetwork(nn.Module):
    """A graph: pictures -> its first output. Its layers are those of `network`, by the nodes' names."""

    def __init__(
        self, picture: OnnxInput, output: str, steps: Sequence[OnnxStep], layers: dict[str, nn.Module]
    ) -> None:
        super().__init__()
        self.picture, self.output, self.steps = picture, output, tuple(steps)
        self.network = nn.Module()
        for name, layer in layers.items():
            self.network.add_module(name, layer)

    def named_steps(self) -> Iterator[tuple[OnnxStep, nn.Module]]:
        return zip(self.steps, self.network.children(), strict=True)

    def with_free_batch(self) -> "OnnxNetwork":
        """A copy in which a Reshape to (1, ...) keeps its input's batch: exporters write their example's there."""
        network = copy.deepcopy(self, {id(weight): weight for weight in self.parameters()})
        for layer in network.network.children():
            if isinstance(layer, OnnxLayer) and layer.kind == "Reshape":
                shape = layer.arguments[1]
                if isinstance(shape, list) and len(shape) > 1 and shape[0] == 1:
                    shape[0], layer.options = 0, ()  # ONNX: as in the input
        return network

    def forward(self, pictures: Tensor) -> Tensor:
        values = {self.picture.name: pictures.permute(0, 2, 3, 1) if self.picture.is_nhwc else pictures}
        for step, layer in self.named_steps():
            answer = layer(*[values[name] for name in step.inputs])
            values |= zip(step.outputs, answer if isinstance(answer, tuple) else (answer,), strict=False)
            for name in step.garbage:
                values.pop(name, None)
        return values[self.output]


def read_graph(path: Path) -> Any:
    """The ModelProto of a file, with the weights in files beside it.

    Raises ValueError: no ONNX, not a whole one, or data outside its folder.
    """
    try:
        model = extra("onnx").load(str(path), format="protobuf")
    except Exception as error:  # protobuf's, onnx's own, the file system's
        raise ValueError(
            f"`encoder.model`: {path} cannot be read as ONNX ({first_line(error)}): is it whole, and are the "
            "files of its weights, if it has any, in the same folder?"
        ) from None
    if not model.graph.node or not model.graph.output:
        raise ValueError(f"`encoder.model`: {path} holds no ONNX graph: is it another kind of file?")
    if model.functions:
        raise ValueError(
            f"`encoder.model`: {path} has functions of its own: put their nodes in place, onnx.inliner does"
        )
    return model


def picture_of(model: Any, path: Path) -> OnnxInput:
    """The graph's input."""
    weights = {initializer.name for initializer in model.graph.initializer}  # old files list them as inputs too
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise ValueError(f"`encoder.model`: {path} must have one input, the picture; it has {len(inputs)} ({names})")
    name, tensor = inputs[0].name, inputs[0].type.tensor_type
    dims = [dim.dim_value or None for dim in tensor.shape.dim]
    shape = ",".join(str(n or dim.dim_param or "?") for n, dim in zip(dims, tensor.shape.dim, strict=True))
    if tensor.elem_type not in FLOATING:
        raise ValueError(
            f"`encoder.model`: the input {name} of {path} must be floating point, for a gradient to reach the "
            f"picture; its type is {extra('onnx').TensorProto.DataType.Name(tensor.elem_type)}"
        )
    is_nhwc = len(dims) == 4 and dims[1] != 3 and dims[3] == 3
    if len(dims) != 4 or (dims[1] not in (3, None) and not is_nhwc):
        raise ValueError(
            f"`encoder.model`: the input {name} of {path} must be (N,3,H,W) or (N,H,W,3); it is ({shape}): export it "
            "with three channels"
        )
    height, width = dims[1:3] if is_nhwc else dims[2:]
    return OnnxInput(name, dims[0], (height, width) if height and width else None, is_nhwc)


def build_network(model: Any, picture: OnnxInput, path: Path) -> OnnxNetwork:
    """The module of a graph.

    Raises ValueError: operators, attributes or outputs that it cannot have, each with its node and what to do.
    """
    opset = max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)
    output, nodes = model.graph.output[0].name, _needed_nodes(model.graph)
    _check(nodes, output, path)
    parts, steps, layers = _Parts(opset), list[OnnxStep](), dict[str, nn.Module]()
    names = {output, *(name for node in nodes for name in node.input)}
    for node in (*(tensor for tensor in model.graph.initializer if tensor.name in names), *nodes):
        try:
            if not hasattr(node, "op_type") or node.op_type == "Constant":
                parts.add_constant(node)
                continue
            layer = parts.layer(node)
            if inputs := tuple(name for name in node.input if name and name not in parts.constants):
                steps.append(OnnxStep(node.op_type, _title(node), inputs, tuple(node.output)))
                layers[parts.free_name(node)] = layer
                continue
            with torch.no_grad():
                answer = layer()
        except Exception as error:  # torch raises errors of any kind
            raise ValueError(f"`encoder.model`: {path}: {_title(node)}: {first_line(error)}") from None
        parts.constants |= zip(node.output, answer if isinstance(answer, tuple) else (answer,), strict=False)
    if not any(output in step.outputs for step in steps):
        raise ValueError(f"`encoder.model`: the output {output} of {path} does not depend on the picture")
    names = {output}
    for i, step in reversed(list(enumerate(steps))):
        steps[i] = step._replace(garbage=frozenset({*step.inputs, *step.outputs} - names))
        names |= {*step.inputs}
    return OnnxNetwork(picture, output, steps, layers)


def _needed_nodes(graph: Any) -> list[Any]:
    """The nodes that the first output needs."""
    names, nodes = {graph.output[0].name}, list[Any]()
    for node in reversed(graph.node):
        if names & set(node.output):
            names |= set(node.input)
            nodes.append(node)
    return nodes[::-1]


def _domain(node: Any) -> str:
    return "" if node.domain == "ai.onnx" else short_path(node.domain)


def _title(node: Any) -> str:
    """A node, or a tensor, for an error message."""
    if not hasattr(node, "op_type"):
        return f"tensor {short_path(node.name)}"
    kind = f"{_domain(node)}.{short_path(node.op_type)}".lstrip(".")
    return f"{kind} (node {short_path(node.name)})" if node.name else kind


def _remedy(node: Any) -> str:
    return REMEDIES.get(_domain(node) or node.op_type, REMEDIES[""])


def _check(nodes: list[Any], output: str, path: Path) -> None:
    """Raise ValueError for operators that are not in the table, and for outputs that they do not have here."""
    names = {output, *(name for node in nodes for name in node.input)}
    faults = dict[str, dict[str, str]]()  # what to do -> operator -> a node
    for node in nodes:
        has_operator = node.op_type in ("Constant", *OPERATORS) and not _domain(node)
        rest = [name for name in node.output[1:] if name] if node.op_type not in SEVERAL else []
        # Of a batch norm they show, below opset 14, that it is in training mode.
        has_outputs = not rest or (names.isdisjoint(rest) and node.op_type != "BatchNormalization")
        if not has_operator or not has_outputs:
            faults.setdefault(_remedy(node), {}).setdefault(node.op_type, _title(node))
    if faults:
        rows = [(sorted(titles.values()), remedy) for remedy, titles in faults.items()]
        lines = [f"{', '.join(titles[:3])}{' ...' * (len(titles) > 3)}: {remedy}" for titles, remedy in rows]
        raise ValueError(
            f"`encoder.model`: {path} has operators, or second outputs of them, that are not supported: "
            f"{'; '.join(lines)}"
        )


def _tensor(tensor: Any) -> Tensor:
    array = extra("onnx.numpy_helper").to_array(tensor)
    if tensor.data_type in FLOATING:
        return torch.from_numpy(np.array(array, dtype=np.float32))
    try:
        return torch.from_numpy(np.array(array))
    except TypeError:  # texts, 4-bit integers, 8-bit floats
        kind = extra("onnx").TensorProto.DataType.Name(tensor.data_type)
        raise ValueError(f"a tensor of {kind} is not supported: {REMEDIES['']}") from None


def _value(attribute: Any) -> Any:
    """The tensor, text, number or numbers of an attribute."""
    value = extra("onnx.helper").get_attribute_value(attribute)
    if attribute.type == attribute.TENSOR:
        return _tensor(value)
    return value.decode() if isinstance(value, bytes) else value


class _Parts:
    """What layers are built from: the opset, tensors that do not depend on the picture, and weights of several."""

    def __init__(self, opset: int) -> None:
        self.opset, self.constants, self.weights = opset, dict[str, Tensor](), dict[int, nn.Parameter]()
        self.used = {*dir(nn.Module())}  # names that no other layer may have

    def add_constant(self, node: Any) -> None:
        """A tensor, or a node Constant."""
        if not hasattr(node, "op_type"):
            self.constants[node.name] = _tensor(node)
            return
        value = _value(node.attribute[0])
        self.constants[node.output[0]] = value if isinstance(value, Tensor) else torch.tensor(value)

    def layer(self, node: Any) -> nn.Module:
        """A node as a module, with its constant inputs as weights or numbers."""
        kind = "Upsample" if node.op_type == "Resize" and self.opset < 11 else node.op_type
        function = OPERATORS[kind]
        options = self._options(node, _parameters(function))
        arguments, tensors = list[Any](), dict[int, Any]()
        for i, name in enumerate(node.input):
            value = self.constants.get(name)
            if value is not None and i in _number_places(function):
                arguments.append(value.tolist())
                continue
            arguments.append(... if name else None)
            if value is not None:
                tensors[i] = self._weight(value)
        if (plain := _plain_layer(kind, arguments, options, tensors)) is not None:
            return plain
        layer = OnnxLayer(kind, arguments, options)
        for i, tensor in tensors.items():
            register = layer.register_parameter if isinstance(tensor, nn.Parameter) else layer.register_buffer
            register(f"input{i}", tensor)
        return layer

    def _weight(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        return self.weights.setdefault(id(tensor), nn.Parameter(tensor, requires_grad=False))

    def _options(self, node: Any, names: dict[str, Any]) -> dict[str, Any]:
        """The attributes. Raises ValueError for one that the function lacks, unless it changes nothing."""
        schema = extra("onnx.defs").get_schema(node.op_type, self.opset, "")
        counts = {"opset": self.opset, "outputs": len(node.output)}
        options = {name: count for name, count in counts.items() if name in names}
        for attribute in node.attribute:
            name, value = attribute.name, _value(attribute)
            has_attribute = name in schema.attributes
            if has_attribute and (name in names or any(name in GROUPS.get(group, ()) for group in names)):
                options[name] = value
            elif name not in IDLE:
                default = schema.attributes[name].default_value if has_attribute else None
                if default is None or not default.name or _value(default) != value:
                    raise ValueError(f"{name}={value} is not supported: {_remedy(node)}")
        return options

    def free_name(self, node: Any) -> str:
        """A plain name that no other layer has, and no attribute of a module."""
        stem = re.sub(r"\W+", "_", node.name or node.op_type, flags=re.ASCII).strip("_") or "node"
        name = next(name for name in chain([stem], (f"{stem}_{i}" for i in count(1))) if name not in self.used)
        self.used.add(name)
        return name


def _plain_layer(
    kind: str, arguments: list[Any], options: dict[str, Any], tensors: dict[int, Any]
) -> nn.Module | None:
    """A convolution or a product with weights as torch's own layer, for the engine's precision; else None."""
    if not {1} <= tensors.keys() == set(range(1, len(arguments))):
        return None
    weight, bias, get = tensors[1], tensors.get(2), options.get
    pads, unit, groups = get("pads", [0] * 4), (1, 1), get("group", 1)
    if kind == "Conv" and weight.dim() == 4 and pads[:2] == pads[2:] and get("auto_pad", "NOTSET") == "NOTSET":
        sides, settings = tuple(weight.shape[2:]), (get("strides", unit), pads[:2], get("dilations", unit), groups)
        layer: Any = nn.Conv2d(weight.shape[1] * groups, weight.shape[0], sides, *settings, device="meta")
    elif kind in ("MatMul", "Gemm") and weight.dim() == 2 and (bias is None or bias.dim() == 1):
        if get("transA") or {get("alpha", 1.0), get("beta", 1.0)} != {1.0} or (bias is not None and len(bias) == 1):
            return None
        weight = weight if get("transB") else nn.Parameter(weight.T.contiguous(), requires_grad=False)
        layer = nn.Linear(weight.shape[1], weight.shape[0], device="meta")
    else:
        return None
    layer.weight, layer.bias = weight, bias
    return layer  # type: ignore[no-any-return]
