"""Convert an ONNX graph to an older opset."""

from typing import Any

from attacks.runtime.extras import extra

#: The newest opset of which onnx2torch knows the operations.
NEWEST = 17


def opset(model: Any) -> int:
    """The version of the standard operations."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)


def older(model: Any) -> None:
    """Convert a newer model to `NEWEST`, in place.

    Newer versions of most operations only add dtypes, an attribute or an input, which can be left out where unused.
    onnx's own converter refuses some operations that only have new dtypes.

    Raises ValueError: an operation uses a newer attribute or input.
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
        set_attributes(node, attributes)
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
            set_attributes(node, [a for a in node.attribute if a.name != "noop_with_empty_axes"])
            del node.input[1]


def _idle(attribute: Any, schema: Any) -> bool:
    """Whether an attribute changes nothing. The number of a Split's outputs follows from the outputs themselves."""
    value = extra("onnx.helper").get_attribute_value
    if attribute.name in ("num_outputs", "round_mode", "saturate"):  # the last two are for 8-bit floats
        return True
    if attribute.name == "dilations":
        return set(value(attribute)) == {1}
    return bool(value(attribute) == value(schema.default_value)) if schema.default_value.name else False


def set_attributes(node: Any, attributes: list[Any]) -> None:
    """Replace the attributes of a node."""
    copies = [type(attribute).FromString(attribute.SerializeToString()) for attribute in attributes]
    del node.attribute[:]
    node.attribute.extend(copies)
