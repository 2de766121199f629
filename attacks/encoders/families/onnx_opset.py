"""An ONNX graph of a new opset as one of an older."""

from __future__ import annotations

from typing import Any

from attacks.runtime.extras import extra

#: The newest opset of which onnx2torch knows the operations.
NEWEST = 17


def opset(model: Any) -> int:
    """Of the standard operations."""
    return max((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), default=1)


def older(model: Any) -> None:
    """Make it one of `NEWEST`, in place, where it is newer.

    Since then most operations have been given dtypes, and some an attribute or an input, no more; so what an
    operation does not use of them can be left out. onnx's own converter refuses some that only have new dtypes.

    Raises:
        ValueError: an operation uses what has come since.
    """
    version, defs = opset(model), extra("onnx.defs")
    if version <= NEWEST:
        return
    constants = constant_tensors(model.graph)
    for node in model.graph.node:
        try:
            now, then = (defs.get_schema(node.op_type, v, node.domain) for v in (version, NEWEST))
        except defs.SchemaError:
            continue  # a newer operation, or somebody's own: onnx2torch knows it or does not
        _axes_inside(node, then, constants)
        if len(node.input) > then.max_input:
            raise ValueError(f"{node.op_type} takes {', '.join(node.input[then.max_input :])}")
        kept = [attribute for attribute in node.attribute if attribute.name in then.attributes]
        for attribute in node.attribute:
            if attribute.name not in then.attributes and not _idle(attribute, now.attributes[attribute.name]):
                raise ValueError(f"{node.op_type} has {attribute.name}")
        _set_attributes(node, kept)
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = NEWEST


def constant_tensors(graph: Any) -> dict[str, Any]:
    """Name -> the tensor of a weight, or of a Constant node."""
    constants = [n for n in graph.node if n.op_type == "Constant" and n.attribute[0].name == "value"]
    return {node.output[0]: node.attribute[0].t for node in constants} | {t.name: t for t in graph.initializer}


def _axes_inside(node: Any, then: Any, constants: dict[str, Any]) -> None:
    """The axes of a sum or mean were an attribute."""
    while len(node.input) > then.max_input and not node.input[-1]:
        del node.input[-1]
    if "axes" in then.attributes and len(node.input) == 2 and node.input[1] in constants:
        axes = extra("onnx.numpy_helper").to_array(constants[node.input[1]]).tolist()
        if axes:
            node.attribute.append(extra("onnx.helper").make_attribute("axes", axes))
            _set_attributes(node, [a for a in node.attribute if a.name != "noop_with_empty_axes"])
            del node.input[1]


def _idle(attribute: Any, schema: Any) -> bool:
    """Whether an attribute changes nothing. A Split says how many it gives, which its outputs say too."""
    value = extra("onnx.helper").get_attribute_value
    if attribute.name in ("num_outputs", "round_mode", "saturate"):  # the last two are for 8-bit floats
        return True
    if attribute.name == "dilations":
        return set(value(attribute)) == {1}
    return bool(value(attribute) == value(schema.default_value)) if schema.default_value.name else False


def _set_attributes(node: Any, attributes: list[Any]) -> None:
    copies = [type(attribute).FromString(attribute.SerializeToString()) for attribute in attributes]
    del node.attribute[:]
    node.attribute.extend(copies)
