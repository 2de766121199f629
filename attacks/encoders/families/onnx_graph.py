"""An ONNX file as a graph that onnx2torch understands: read, and rewritten in memory."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import fx, nn

from attacks.encoders.request import first_line
from attacks.runtime.extras import extra

#: TensorProto's numbers of the dtypes that a gradient can pass: FLOAT, FLOAT16, DOUBLE.
_FLOATING = (1, 10, 11)
#: Operations whose further outputs are for training, or positions of maxima; onnx2torch returns the first.
_ONE_OUTPUT = ("BatchNormalization", "Dropout", "LayerNormalization", "MaxPool")
#: Names that a node must not have: those of torch's attributes and onnx2torch's modules.
_KEYWORDS = frozenset(dir(fx.GraphModule(nn.Module(), fx.Graph()))) | {"initializers"}


@dataclass(frozen=True)
class Graph:
    """A ModelProto with one input and one output, ready for onnx2torch; (height, width) of its pictures, None for any
    size; and the names of all outputs in the file, of which the first is used."""

    model: Any
    size: tuple[int, int] | None
    outputs: tuple[str, ...]


def read_graph(path: Path) -> Graph:
    """The graph of a file, with the weights in files beside it.

    Raises ValueError: no ONNX, not a whole one, data outside its folder, or no network from pictures to features.
    """
    onnx = extra("onnx")
    try:
        model = onnx.load(str(path), format="protobuf")
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
    picture = _picture(model, path)
    names = tuple(output.name for output in model.graph.output)
    try:
        _keep_first_output(model.graph)
        model = extra("onnx.shape_inference").infer_shapes(model)  # while all operations are known
        older(model)
    except Exception as error:  # onnx raises undocumented AssertionErrors
        raise ValueError(
            f"`encoder.model`: {path} of opset {opset(model)} cannot be brought to opset {NEWEST} "
            f"({first_line(error)}): export it with that one"
        ) from None
    _fold_identities(model.graph)
    _rename(model.graph)
    return Graph(model, picture, names)


def free_batch(model: Any) -> None:
    """Let every Reshape to (1, ...) keep its input's batch: exporters write their example's batch of 1 there."""
    numpy_helper = extra("onnx.numpy_helper")
    graph, shapes = model.graph, {}
    constants = constant_tensors(graph)
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[1] in constants:
            shape = numpy_helper.to_array(constants[node.input[1]]).copy()
            if shape.size > 1 and shape[0] == 1:
                shape[0] = 0  # ONNX: as in the input
                node.input[1] = f"{node.input[1]} of any batch"
                shapes[node.input[1]] = numpy_helper.from_array(shape, node.input[1])
    graph.initializer.extend(shapes.values())


def _picture(model: Any, path: Path) -> tuple[int, int] | None:
    """(height, width) of the graph's input."""
    weights = {initializer.name for initializer in model.graph.initializer}  # old files list them as inputs too
    inputs = [value for value in model.graph.input if value.name not in weights]
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs)
        raise ValueError(f"`encoder.model`: {path} must have one input, the picture; it has {len(inputs)} ({names})")
    tensor = inputs[0].type.tensor_type
    dims = [dim.dim_value or None for dim in tensor.shape.dim]
    shape = ",".join(str(n or dim.dim_param or "?") for n, dim in zip(dims, tensor.shape.dim, strict=True))
    if tensor.elem_type not in _FLOATING:
        raise ValueError(
            f"`encoder.model`: the input {inputs[0].name} of {path} must be floating point, for a gradient to reach "
            f"the picture; its type is {extra('onnx').TensorProto.DataType.Name(tensor.elem_type)}"
        )
    if len(dims) != 4 or dims[1] not in (3, None):
        raise ValueError(
            f"`encoder.model`: the input {inputs[0].name} of {path} must be (N,3,H,W); it is ({shape}): export it "
            "with the channels first"
        )
    return (dims[2], dims[3]) if dims[2] and dims[3] else None


def _keep_first_output(graph: Any) -> None:
    """Only the first output, and of the nodes those that it needs."""
    del graph.output[1:]
    names, nodes = {graph.output[0].name}, []
    for node in reversed(graph.node):
        if names & set(node.output):
            while len(node.output) > 1 and node.op_type in _ONE_OUTPUT and node.output[-1] not in names:
                del node.output[-1]
            names |= set(node.input)
            nodes.append(node)
    nodes.reverse()
    if nodes and len(nodes[-1].output) > 1:  # onnx2torch would return all outputs of the last node
        last = graph.output[0].name
        nodes.append(extra("onnx.helper").make_node("Identity", [last], [f"{last} of several"]))
        graph.output[0].name = nodes[-1].output[0]
    _replace_messages(graph.node, nodes)


def _fold_identities(graph: Any) -> None:
    """Remove Identity nodes; their readers then read the nodes' inputs. Exporters share weights through them, and
    onnx2torch looks a weight up by its name (its issue 156)."""
    last, source, nodes = graph.output[0].name, dict[str, str](), []
    for node in graph.node:
        inputs = [source.get(name, name) for name in node.input]
        if node.op_type == "Identity" and node.domain == "" and node.output[0] != last:
            source[node.output[0]] = inputs[0]
            continue
        node.input[:] = inputs
        if node.op_type == "Reshape":  # of lengths of zero only: torch's exporter sets it, onnx2torch refuses it
            _replace_messages(node.attribute, [a for a in node.attribute if a.name != "allowzero"])
        nodes.append(node)
    _replace_messages(graph.node, nodes)


def _rename(graph: Any) -> None:
    """Make the names of nodes plain and unique: torch.fx writes them into Python source that it runs, so a file could
    inject code there."""
    keywords = {*_KEYWORDS, *(value.name for value in (*graph.input, *graph.initializer))}
    names: dict[str, Iterator[str]] = {}  # of each stem, those that were not tried
    for node in graph.node:
        stem = re.sub(r"\W+", "_", node.name or node.op_type, flags=re.ASCII).strip("_") or "node"
        left = names.setdefault(stem, itertools.chain([stem], (f"{stem}_{i}" for i in itertools.count(1))))
        node.name = next(name for name in left if name not in keywords)
        keywords.add(node.name)


#: The newest opset of which onnx2torch knows the operations.
NEWEST = 17


def opset(model: Any) -> int:
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)


def older(model: Any) -> None:
    """Convert a newer model to `NEWEST`, in place.

    Newer versions of most operations only add dtypes, an attribute or an input, which can be left out where unused.
    onnx's own converter refuses some operations that only have new dtypes.

    Raises ValueError where an operation uses a newer attribute or input.
    """
    version, defs = opset(model), extra("onnx.defs")
    if version <= NEWEST:
        return
    constants = constant_tensors(model.graph)
    for node in model.graph.node:
        try:
            new, old = (defs.get_schema(node.op_type, v, node.domain) for v in (version, NEWEST))
        except defs.SchemaError:
            continue  # a newer or custom operation, which `onnx_models` reports
        _axes_inside(node, old, constants)
        if len(node.input) > old.max_input:
            raise ValueError(f"{node.op_type} takes {', '.join(node.input[old.max_input :])}")
        attributes = [attribute for attribute in node.attribute if attribute.name in old.attributes]
        for attribute in node.attribute:
            if attribute.name not in old.attributes and not _idle(attribute, new.attributes[attribute.name]):
                raise ValueError(f"{node.op_type} has {attribute.name}")
        _replace_messages(node.attribute, attributes)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = NEWEST


def constant_tensors(graph: Any) -> dict[str, Any]:
    """Name -> the tensor of a weight, or of a Constant node."""
    constants = [n for n in graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"]
    return {node.output[0]: node.attribute[0].t for node in constants} | {t.name: t for t in graph.initializer}


def _axes_inside(node: Any, old: Any, constants: dict[str, Any]) -> None:
    """Make the axes of a sum or mean an attribute, as they were."""
    while len(node.input) > old.max_input and not node.input[-1]:
        del node.input[-1]
    if "axes" in old.attributes and len(node.input) == 2 and node.input[1] in constants:
        axes = extra("onnx.numpy_helper").to_array(constants[node.input[1]]).tolist()
        if axes:
            node.attribute.append(extra("onnx.helper").make_attribute("axes", axes))
            _replace_messages(node.attribute, [a for a in node.attribute if a.name != "noop_with_empty_axes"])
            del node.input[1]


def _idle(attribute: Any, schema: Any) -> bool:
    """Whether an attribute changes nothing. The number of a Split's outputs follows from the outputs themselves."""
    value = extra("onnx.helper").get_attribute_value
    if attribute.name in ("num_outputs", "round_mode", "saturate"):  # the last two are for 8-bit floats
        return True
    if attribute.name == "dilations":
        return set(value(attribute)) == {1}
    return bool(value(attribute) == value(schema.default_value)) if schema.default_value.name else False


def _replace_messages(field: Any, messages: list[Any]) -> None:
    """Let a field of nodes or attributes hold copies of these, which may be its own."""
    copies = [type(message).FromString(message.SerializeToString()) for message in messages]
    del field[:]
    field.extend(copies)
