"""Files of networks for the tests of ONNX: exported by torch, or made node by node."""

import logging
import warnings

import pytest
import torch

from attacks import load_encoder

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper  # noqa: E402

HALF = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
SIDE = 64


def export_onnx(network, path, dynamo, free=False, side=SIDE, **options):
    """The file that torch's exporter writes, without its warnings."""
    if free:
        options |= {"dynamic_shapes": ({0: "n"},)} if dynamo else {"dynamic_axes": {"input": {0: "n"}}}
    if dynamo:
        options |= {"verbose": False}
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        example = (torch.rand(1, 3, side, side),)
        torch.onnx.export(network.eval(), example, path, dynamo=dynamo, input_names=["input"], **options)
    return path


def by_runtime(path, pictures, output=None):
    """Output of onnxruntime, one picture at a time."""
    session = ort.InferenceSession(path)
    name = session.get_inputs()[0].name
    rows = [session.run(output and [output], {name: p[None].numpy()})[0] for p in pictures.float()]
    return torch.cat([torch.from_numpy(row) for row in rows])


def onnx_encoder(path, **preprocess):
    return load_encoder("onnx", str(path), preprocess={**HALF, **preprocess})


def assert_equals_runtime(path, **preprocess):
    """The encoder of a file gives what onnxruntime gives. Returns it."""
    encoder, pictures = onnx_encoder(path, **preprocess), torch.rand(3, 3, 40, 50)
    expected = by_runtime(path, encoder.preprocess(pictures)).flatten(1)
    near = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(encoder(pictures), expected, rtol=0, atol=near)
    return encoder


def graph(nodes, inputs, outputs, tensors=(), opset=17, **options):
    result = helper.make_graph(nodes, "g", inputs, outputs, list(tensors))
    return helper.make_model(result, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, **options)


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


POOL = [helper.make_node("GlobalAveragePool", ["x"], ["y"])]
PICTURE, FEATURES = [value("x", [1, 3, 8, 8])], [value("y", None)]


def save_graph(tmp_path, nodes=POOL, tensors=(), inputs=PICTURE, outputs=FEATURES, **options):
    path = tmp_path / "made.onnx"
    onnx.save(graph(nodes, inputs, outputs, tensors, **options), path)
    return path
