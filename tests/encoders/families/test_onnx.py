"""What is particular to ONNX files: exporters, opsets, shapes of the batch, names, functions, hostile files."""

import copy
from functools import partial

import pytest
import torch
import torchvision
from torch import nn

from tests.helpers import encoder_laws as laws
from tests.helpers.onnx_files import (
    FEATURES,
    HALF,
    PICTURE,
    POOL,
    TensorProto,
    assert_equals_runtime,
    by_runtime,
    export_onnx,
    graph,
    helper,
    onnx,
    onnx_encoder,
    ort,
    save_graph,
    value,
)
from tests.helpers.tiny_models import tiny_network

pytestmark = pytest.mark.families
refusal = partial(laws.refusal, family="onnx")
node = helper.make_node
EXPORTERS = pytest.mark.parametrize("dynamo", [True, False], ids=["dynamo", "torchscript"])


def resnet():
    network = torchvision.models.resnet18()
    network.fc = nn.Identity()
    return network.eval()


def test_the_size_of_the_pictures_is_the_graphs(tmp_path):
    path = export_onnx(tiny_network(), tmp_path / "face.onnx", dynamo=False, side=112)
    assert assert_equals_runtime(path, bgr=True, kernel="cv2_linear").preprocess.size == (112, 112)  # as of ArcFace


@EXPORTERS
@pytest.mark.parametrize("free", [True, False], ids=["any batch", "batch of 1"])
def test_resnet_equals_onnxruntime_and_has_the_gradient_of_the_network(tmp_path, dynamo, free):
    network = resnet()
    path = export_onnx(network, tmp_path / "resnet.onnx", dynamo, free)
    encoder = onnx_encoder(path)
    for picture in laws.three_pictures().values():
        assert (encoder(picture.float()) - by_runtime(path, encoder.preprocess(picture))).abs().max() <= 1e-4
    # A batch of three, not a loop; in float64, where a ReLU near zero does not change the gradient.
    assert type(encoder.network).__name__ == "OnnxNetwork"
    pictures = torch.rand(3, 3, 90, 70, dtype=torch.float64, requires_grad=True)
    features = encoder.double()(pictures)
    expected = network.double()(encoder.preprocess(pictures))
    assert (features - expected).abs().max() <= 1e-4 * expected.abs().max()
    weights = torch.randn_like(expected)
    gradients = [torch.autograd.grad((answer * weights).sum(), pictures)[0] for answer in (features, expected)]
    assert (gradients[0] - gradients[1]).norm() <= 1e-4 * gradients[1].norm()


@EXPORTERS
def test_a_transformer_works_for_any_batch(tmp_path, dynamo):
    # The class token is concatenated with a batch of 1, which no change of shapes makes dynamic.
    network = torchvision.models.VisionTransformer(32, 16, 1, 2, 16, 32, representation_size=8).eval()
    nn.init.normal_(network.heads[-1].weight)
    path = export_onnx(network, tmp_path / "vit.onnx", dynamo, side=32)
    encoder, pictures = assert_equals_runtime(path), torch.rand(3, 3, 40, 50)
    wide = copy.deepcopy(encoder).double()(pictures.double())
    assert wide.dtype == torch.float64
    assert (wide - network.double()(encoder.preprocess(pictures.double()))).abs().max() <= 1e-5


def test_all_weights_are_parameters(tmp_path):
    # Those of a bare MatMul too, so that they are counted and move with the module.
    network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 5, bias=False))
    path = export_onnx(network, tmp_path / "linear.onnx", dynamo=False, side=8)
    assert sum(p.numel() for p in onnx_encoder(path).parameters()) == 3 * 8 * 8 * 5


def test_weights_shared_through_identity_nodes_load(tmp_path):
    # torch's exporter writes them where two batch norms have equal weights.
    nodes = [
        node("Identity", ["w"], ["v"]),
        node("Identity", ["v"], ["u"]),
        node("Conv", ["x", "w"], ["a"]),
        node("Conv", ["a", "u"], ["b"]),
        node("GlobalAveragePool", ["b"], ["y"]),
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [3, 3, 1, 1], torch.randn(9).tolist())
    assert_equals_runtime(save_graph(tmp_path, nodes, [weight]))


@pytest.mark.parametrize("first", ["y", "z"])
def test_the_first_of_several_outputs_is_used_and_named(tmp_path, first):
    nodes = [*POOL, node("Split", ["y", "n"], ["z", "rest"], axis=1), node("Strange", ["x"], ["s"])]
    sizes = helper.make_tensor("n", TensorProto.INT64, [2], [2, 1])
    outputs = [value(name, None) for name in (first, "rest", "s")]
    path = save_graph(tmp_path, nodes, [sizes], outputs=outputs)
    encoder, pictures = onnx_encoder(path), torch.rand(3, 3, 8, 8)
    means = encoder.preprocess(pictures).mean((2, 3))
    torch.testing.assert_close(encoder(pictures), means if first == "y" else means[:, :2])
    assert f"output {first} (the first of 3)" in repr(encoder)


@pytest.mark.parametrize("opset", [11, 13, 17, 18, 20, 21, 23])
def test_opsets_old_and_new(tmp_path, opset):
    axes = helper.make_tensor("axes", TensorProto.INT64, [2], [2, 3])
    attributes = {"axes": [2, 3]} if opset < 18 else {}
    mean = node("ReduceMean", ["x"] if attributes else ["x", "axes"], ["y"], keepdims=0, **attributes)
    assert_equals_runtime(save_graph(tmp_path, [mean], [] if attributes else [axes], opset=opset))


@pytest.mark.parametrize("bounds", [(1, 6, 2), (6, 1, -2), (-1, -100, -1), (2, 1000, 1)])
def test_slices_equal_onnxruntime(tmp_path, bounds):
    start, end, step = bounds
    tensors = [
        helper.make_tensor(name, TensorProto.INT64, [1], [number])
        for name, number in {"start": start, "end": end, "axis": -1, "step": step}.items()
    ]
    nodes = [node("Slice", ["x", "start", "end", "axis", "step"], ["y"])]
    assert_equals_runtime(save_graph(tmp_path, nodes, tensors))


def test_half_precision_becomes_float32(tmp_path):
    nodes = [
        node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        node("GlobalAveragePool", ["f"], ["g"]),
        node("Cast", ["g"], ["h"], to=TensorProto.FLOAT16),
        node("Mul", ["h", "w"], ["y"]),
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT16, [1, 3, 1, 1], [0.1, 0.2, 0.3])
    path = save_graph(tmp_path, nodes, [weight], [value("x", [1, 3, 8, 8], TensorProto.FLOAT16)])
    encoder, pictures = onnx_encoder(path), torch.rand(2, 3, 8, 8)
    assert all(p.dtype == torch.float32 for p in encoder.parameters())
    weights = torch.tensor([0.1, 0.2, 0.3]).half()
    expected = encoder.preprocess(pictures.double()).mean((2, 3)) * weights.double()
    torch.testing.assert_close(encoder(pictures).double(), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(encoder.double()(pictures.double()), expected, rtol=0, atol=1e-12)


def test_channels_last_and_a_batch_of_four_equal_onnxruntime(tmp_path):
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),  # as tf2onnx writes a network
        node("Conv", ["t", "w"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2]),
        node("Transpose", ["c"], ["b"], perm=[0, 2, 3, 1]),
        node("Reshape", ["b", "shape"], ["y"]),
    ]
    tensors = [
        helper.make_tensor("w", TensorProto.FLOAT, [2, 3, 3, 3], torch.randn(54).tolist()),
        helper.make_tensor("shape", TensorProto.INT64, [2], [4, 32]),
    ]
    path = save_graph(tmp_path, nodes, tensors, [value("x", [4, 8, 8, 3])])
    encoder, pictures = onnx_encoder(path), torch.rand(5, 3, 30, 20)
    rows = encoder.preprocess(pictures).permute(0, 2, 3, 1)
    rows = torch.cat([rows, rows[:3]]).split(4)
    session = ort.InferenceSession(path)
    expected = torch.cat([torch.from_numpy(session.run(None, {"x": part.numpy()})[0]) for part in rows])[:5]
    torch.testing.assert_close(encoder(pictures), expected, rtol=0, atol=1e-5)


def test_the_weights_line_names_roundings_and_dead_ends(tmp_path):
    tensors = [helper.make_tensor("s", TensorProto.FLOAT, [], [0.1])]
    nodes = [
        node("QuantizeLinear", ["x", "s"], ["q"]),
        node("DequantizeLinear", ["q", "s"], ["d"]),
        node("Cast", ["x"], ["i"], to=TensorProto.INT32, name="whole"),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Add", ["d", "f"], ["y"]),
    ]
    encoder = onnx_encoder(save_graph(tmp_path, nodes, tensors))
    assert "gradient straight through 1 QuantizeLinear; no gradient through Cast (node whole)" in repr(encoder)
    path = save_graph(tmp_path, [*nodes[2:4], node("Identity", ["f"], ["y"])])
    refusal(r"no gradient: it ends at Cast \(node whole\)", path, preprocess=HALF)


# --- unsuitable and malicious files: one-line errors, and no code is run ---


def test_code_in_a_node_name_is_not_run(tmp_path):
    bomb = tmp_path / "bomb"
    relu = node("Relu", ["x"], ["r"], name=f'training"), open("{bomb}", "w"), ("')
    path = save_graph(tmp_path, [relu, node("GlobalAveragePool", ["r"], ["y"])])
    assert onnx_encoder(path)(torch.rand(2, 3, 8, 8)).shape == (2, 3)
    assert not bomb.exists()


def test_an_unknown_operation_gives_a_printable_one_line_error(tmp_path):
    path = save_graph(tmp_path, [node("a\n\x1b[2Jb", ["x"], ["y"])])
    assert refusal("not supported: a", path, preprocess=HALF).isprintable()


@pytest.mark.parametrize("names", [("x", "x"), ("forward", "graph"), ("initializers", "w"), ("a_1", "a"), ("", "1")])
def test_any_node_names_work(tmp_path, names):
    nodes = [
        node("Mul", ["x", "w"], ["m"], name=names[0]),
        node("Relu", ["m"], ["r"], name=names[1]),
        node("GlobalAveragePool", ["r"], ["y"], name=names[1]),
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])
    encoder, pictures = onnx_encoder(save_graph(tmp_path, nodes, [weight])), torch.rand(2, 3, 8, 8)
    expected = (2 * encoder.preprocess(pictures)).relu().mean((2, 3))  # onnxruntime wants names that differ
    torch.testing.assert_close(encoder(pictures), expected)


def refused_graph(tmp_path, match, nodes=POOL, inputs=PICTURE, opset=17, **preprocess):
    path = save_graph(tmp_path, nodes, inputs=inputs, opset=opset)
    assert path.name in refusal(match, path, preprocess=HALF | preprocess)


def test_graphs_of_another_kind_are_refused(tmp_path):
    for inputs, match in (
        ([value("x", [1, 3, 8, 8], TensorProto.UINT8)], "floating point.*UINT8"),
        ([value("x", [1, 3, 8, 8], TensorProto.INT64)], "floating point.*INT64"),
        ([value("x", [1, 1, 8, 8])], r"\(N,3,H,W\) or \(N,H,W,3\); it is \(1,1,8,8\)"),
        ([*PICTURE, value("more", [1])], r"one input.*2 \(x, more\)"),
    ):
        refused_graph(tmp_path, match, inputs=inputs)
    strange = [node("Strange", ["x"], ["s"]), node("Det", ["s"], ["y"])]
    refused_graph(tmp_path, "not supported: Det, Strange: export", strange)
    norm = node("BatchNormalization", ["x", *"abcd"], ["y"], training_mode=1, name="bn")
    refused_graph(tmp_path, r"BatchNormalization \(node bn\): training_mode=1 .*evaluation mode", [norm])
    norm = node("BatchNormalization", ["x", *"abcd"], ["y", *"efgh"], name="bn")
    refused_graph(tmp_path, r"BatchNormalization \(node bn\): export .* evaluation mode", [norm], opset=11)
    custom = node("QLinearAdd", ["x"], ["y"], domain="com.microsoft", name="sum")
    refused_graph(tmp_path, r"com.microsoft.QLinearAdd \(node sum\): quantise it with QuantizeLinear", [custom])
    flow = node("If", ["x"], ["y"], name="branch")
    refused_graph(tmp_path, r"If \(node branch\): export it without control flow", [flow])
    refused_graph(tmp_path, "floating-point features.*int64", [node("ArgMax", ["x"], ["y"], axis=1)])
    resize = node("Resize", ["x", "", "x"], ["y"], antialias=1)
    refused_graph(tmp_path, r"Resize: antialias=1 is not supported", [resize], opset=18)


def test_preprocessing_must_match_the_input_size(tmp_path):
    free = [value("x", ["n", 3, "h", "w"])]
    refused_graph(tmp_path, r"`encoder.preprocess` must make pictures of \(8, 8\)", size=9)
    refused_graph(tmp_path, r"must make pictures of \(8, 8\)", size=8, fit="cover")
    refused_graph(tmp_path, r"give `encoder.preprocess.size`", inputs=free)
    encoder = onnx_encoder(save_graph(tmp_path), size=10, fit="cover", crop=[8, 8])
    assert encoder(torch.rand(1, 3, 30, 20)).shape == (1, 3)
    assert onnx_encoder(save_graph(tmp_path, inputs=free), size=9)(torch.rand(1, 3, 30, 20)).shape == (1, 3)
    refusal("give `encoder.preprocess.mean`", save_graph(tmp_path))


def test_files_of_another_kind_are_refused(tmp_path):
    path = save_graph(tmp_path)
    match = "cannot be read as ONNX|holds no ONNX graph"
    laws.assert_broken_files_are_refused(path, partial(refusal, preprocess=HALF), match)
    refusal("`weights` is not for onnx", path, weights="random", preprocess=HALF)


@pytest.mark.parametrize("location", ["../secret", "../../etc/passwd", "/etc/passwd", "linked", "none", "weights"])
def test_external_weights_must_lie_in_the_folder(tmp_path, location):
    folder = tmp_path / "models"
    folder.mkdir()
    for file in (tmp_path / "secret", folder / "weights"):
        file.write_bytes(torch.ones(3).numpy().tobytes())
    (folder / "linked").symlink_to(tmp_path / "secret")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 3, 1, 1], [1.0, 1.0, 1.0])
    nodes = [node("Mul", ["x", "w"], ["m"]), node("GlobalAveragePool", ["m"], ["y"])]
    model = graph(nodes, PICTURE, FEATURES, [weight])
    (tensor_of_file,) = model.graph.initializer
    del tensor_of_file.float_data[:]
    tensor_of_file.data_location = TensorProto.EXTERNAL
    tensor_of_file.external_data.add(key="location", value=location)
    path = folder / "made.onnx"
    path.write_bytes(model.SerializeToString())
    if location == "weights":
        assert onnx_encoder(path)(torch.rand(2, 3, 8, 8)).shape == (2, 3)
    else:
        refusal("made.onnx cannot be read as ONNX", path, preprocess=HALF)


def test_a_graph_with_functions_is_refused(tmp_path):
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("d", 1)]
    function = helper.make_function("d", "F", ["x0"], ["x1"], [node("Relu", ["x0"], ["x1"])], versions)
    main = helper.make_graph([node("F", ["x"], ["y"], domain="d")], "g", PICTURE, [value("y", [1, 3, 8, 8])])
    onnx.save(helper.make_model(main, functions=[function], opset_imports=versions), tmp_path / "made.onnx")
    refusal("made.onnx has functions of its own: put their nodes in place", tmp_path / "made.onnx", preprocess=HALF)
