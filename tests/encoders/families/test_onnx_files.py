"""ONNX files that are no encoders, or somebody's trap: one line each, and nothing is executed."""

import pickle

import pytest
import torch

from attacks import load_encoder
from tests.helpers.encoder_laws import Bomb
from tests.helpers.onnx_files import (
    FEATURES,
    HALF,
    PICTURE,
    POOL,
    TensorProto,
    encoder_of,
    graph,
    helper,
    saved,
    value,
)

pytestmark = pytest.mark.families


def test_a_name_of_a_node_is_not_code(tmp_path):
    # onnx2torch hands it to torch.fx, which writes it into the source that it runs.
    bomb = tmp_path / "bomb"
    relu = helper.make_node("Relu", ["x"], ["r"], name=f'training"), open("{bomb}", "w"), ("')
    path = saved(tmp_path, [relu, helper.make_node("GlobalAveragePool", ["r"], ["y"])], PICTURE, FEATURES)
    assert encoder_of(path)(torch.rand(2, 3, 8, 8)).shape == (2, 3)
    assert not bomb.exists()


def test_an_operation_has_one_line_whatever_its_name(tmp_path):
    path = saved(tmp_path, [helper.make_node("a\n\x1b[2Jb", ["x"], ["y"])], PICTURE, FEATURES)
    with pytest.raises(ValueError, match="does not know: a") as caught:
        encoder_of(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("names", [("x", "x"), ("forward", "graph"), ("initializers", "w"), ("a_1", "a"), ("", "1")])
def test_any_names_of_nodes_work(tmp_path, names):
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["m"], name=names[0]),
        helper.make_node("Relu", ["m"], ["r"], name=names[1]),
        helper.make_node("GlobalAveragePool", ["r"], ["y"], name=names[1]),
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])
    encoder, pictures = encoder_of(saved(tmp_path, nodes, PICTURE, FEATURES, [weight])), torch.rand(2, 3, 8, 8)
    expected = (2 * encoder.preprocess(pictures)).relu().mean((2, 3))
    torch.testing.assert_close(encoder(pictures), expected)


def refused(path, match, kind=ValueError, **preprocess):
    with pytest.raises(kind, match=match) as caught:
        encoder_of(path, **preprocess)
    assert "\n" not in str(caught.value) and path.name in str(caught.value)


def refused_graph(tmp_path, match, nodes=POOL, inputs=PICTURE, outputs=FEATURES, opset=17, **preprocess):
    refused(saved(tmp_path, nodes, inputs, outputs, opset=opset), match, **preprocess)


def test_graphs_that_are_no_encoders(tmp_path):
    for inputs, match in (
        ([value("x", [1, 3, 8, 8], TensorProto.UINT8)], "floating point.*UINT8"),
        ([value("x", [1, 3, 8, 8], TensorProto.INT64)], "floating point.*INT64"),
        ([value("x", [1, 8, 8, 3])], r"\(N,3,H,W\); it is \(1,8,8,3\)"),
        ([value("x", [1, 1, 8, 8])], r"\(N,3,H,W\); it is \(1,1,8,8\)"),
        ([*PICTURE, value("more", [1])], r"one input.*2 \(x, more\)"),
    ):
        refused_graph(tmp_path, match, inputs=inputs)
    refused_graph(tmp_path, "does not know: Det, Strange", [
        helper.make_node("Strange", ["x"], ["s"]), helper.make_node("Det", ["s"], ["y"])
    ])  # fmt: skip
    refused_graph(tmp_path, "floating-point features.*int64", [helper.make_node("ArgMax", ["x"], ["y"], axis=1)])
    resize = helper.make_node("Resize", ["x", "", "x"], ["y"], antialias=1)
    refused_graph(tmp_path, "opset 18 cannot be brought to opset 17 .*antialias", [resize], opset=18)


def test_sizes(tmp_path):
    fixed, free = PICTURE, [value("x", ["n", 3, "h", "w"])]
    refused_graph(tmp_path, r"`encoder.preprocess` must make pictures of \(8, 8\)", inputs=fixed, size=9)
    refused_graph(tmp_path, r"must make pictures of \(8, 8\)", inputs=fixed, size=8, fit="cover")
    refused_graph(tmp_path, r"give `encoder.preprocess.size`", inputs=free)
    encoder = encoder_of(saved(tmp_path, POOL, fixed, FEATURES), size=10, fit="cover", crop=[8, 8])
    assert encoder(torch.rand(1, 3, 30, 20)).shape == (1, 3)
    assert encoder_of(saved(tmp_path, POOL, free, FEATURES), size=9)(torch.rand(1, 3, 30, 20)).shape == (1, 3)
    with pytest.raises(ValueError, match=r"give `encoder.preprocess.mean`"):
        load_encoder("onnx", str(saved(tmp_path, POOL, fixed, FEATURES)))


def test_files_of_another_kind(tmp_path):
    path = saved(tmp_path, POOL, PICTURE, FEATURES)
    whole = path.read_bytes()
    for content, match in (
        (b"", "is an empty file"),
        (b"only text\n", "cannot be read as ONNX|holds no ONNX graph"),
        (whole[:-20], "cannot be read as ONNX"),
        (pickle.dumps(Bomb()), "cannot be read as ONNX|holds no ONNX graph"),
    ):
        path.write_bytes(content)
        refused(path, match)
    refused(tmp_path, "is a folder", FileNotFoundError)
    refused(tmp_path / "none.onnx", "does not exist", FileNotFoundError)
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=r"`weights` is not for onnx"):
        load_encoder("onnx", str(path), weights="random", preprocess=HALF)


@pytest.mark.parametrize("where", ["../secret", "../../etc/passwd", "/etc/passwd", "linked", "none", "weights"])
def test_weights_in_other_files_stay_in_the_folder(tmp_path, where):
    folder = tmp_path / "models"
    folder.mkdir()
    for file in (tmp_path / "secret", folder / "weights"):
        file.write_bytes(torch.ones(3).numpy().tobytes())
    (folder / "linked").symlink_to(tmp_path / "secret")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1, 3, 1, 1], [1.0, 1.0, 1.0])
    model = graph(
        [helper.make_node("Mul", ["x", "w"], ["m"]), helper.make_node("GlobalAveragePool", ["m"], ["y"])],
        PICTURE,
        FEATURES,
        [weight],
    )
    (stored,) = model.graph.initializer
    del stored.float_data[:]
    stored.data_location = TensorProto.EXTERNAL
    stored.external_data.add(key="location", value=where)
    path = folder / "made.onnx"
    path.write_bytes(model.SerializeToString())
    if where == "weights":
        assert encoder_of(path)(torch.rand(2, 3, 8, 8)).shape == (2, 3)
    else:
        refused(path, "cannot be read as ONNX")
