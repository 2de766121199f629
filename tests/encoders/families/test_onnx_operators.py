"""Every operator of the table against ONNX Runtime in every opset that has it; its gradient against differences."""

from collections import defaultdict

import numpy as np
import pytest
import torch

from attacks.encoders.families.onnx_graph import OnnxInput, build_network
from attacks.encoders.families.onnx_operators import OPERATORS, SEVERAL
from tests.helpers.onnx_files import TensorProto, graph, helper, onnx, ort, value

pytestmark = pytest.mark.families
OPSETS = (9, 10, 11, 13, 15, 18, 20, 21, 23, 24)
INDEX, FLAG = np.array([[1, 0], [-1, 1]]), np.array([True, False, True])
MAP, ROWS, HEADS = (2, 4, 5, 6), (2, 3), (1, 4, 3, 8)


def floats(*shape):
    return np.random.default_rng(sum(shape) + 1).uniform(0.5, 2, shape).astype(np.float32)


def integers(*numbers):
    return np.array(numbers, dtype=np.int64)


#: Operator -> cases: shape of the first input (None: the constants alone), further inputs, attributes. A name with a
#: star is an attribute or an input, whichever the opset has.
CASES = defaultdict(list)


def case(kinds, shape=ROWS, *inputs, **arguments):
    for kind in kinds.split():
        CASES[kind].append((shape, inputs, arguments))


UNARY = "Abs Neg Exp Log Sqrt Reciprocal Sigmoid Tanh Erf Sign IsNaN IsInf Relu Sin Cos Tan Asin Acos Atan Sinh Cosh"
case(f"{UNARY} Asinh Acosh Atanh Identity Softplus Softsign Mish HardSwish Gelu Swish Elu Celu Selu LeakyRelu")
case("ThresholdedRelu HardSigmoid Dropout Round Floor Ceil Size Shape Softmax LogSoftmax", (3, 4, 5))
case("Elu Celu Selu LeakyRelu ThresholdedRelu Swish", ROWS, alpha=0.7)
case("HardSigmoid", ROWS, alpha=0.3, beta=0.4)
case("Gelu", ROWS, approximate="tanh")
case("Softmax LogSoftmax", (3, 4, 5), axis=1)
case("Shape", MAP, start=1, end=-1)
case("Add Sub Mul Div Pow PRelu Max Min Sum Mean Equal Greater GreaterOrEqual Less LessOrEqual", ROWS, floats(3))
case("Mod", ROWS, floats(3), fmod=1)
case("Max Min Sum Mean", ROWS, floats(3), floats(2, 1))
case("Div Mod", None, integers(7, -7, 9), integers(2, 2, -4))
case("Not", None, FLAG)
case("And Or", None, FLAG, np.array([True, True, False]))
case("Where", None, FLAG, floats(3), floats(2, 3))
case("Clip", ROWS, min=0.6, max=1.1)
case("Clip", ROWS, None, np.float32(1))
case("Clip", ROWS, np.float32(1))
case("Cast", ROWS, to=TensorProto.INT64)
case("Cast", ROWS, to=TensorProto.DOUBLE)
case("CastLike", ROWS, integers(1))
case("MatMul", (2, 2, 3), floats(3, 4))
case("Gemm", (3, 2), floats(4, 3), floats(4), transA=1, transB=1, alpha=0.5, beta=2.0)
case("Gemm", ROWS, floats(3, 4), floats(2, 1))
case("Gemm", ROWS, floats(4, 3), floats(4), transB=1)
case("Einsum", ROWS, floats(3, 4), equation="ij,jk->ki")
case("Attention", HEADS, floats(1, 2, 5, 8), floats(1, 2, 5, 6))
case("Attention", HEADS, floats(1, 4, 3, 8), floats(1, 4, 3, 8), floats(3, 3), is_causal=1, scale=0.3)
case("Attention", (2, 3, 8), floats(2, 3, 8), floats(2, 3, 8), q_num_heads=2, kv_num_heads=2, is_causal=1)
case("Attention", HEADS, floats(1, 4, 3, 8), floats(1, 4, 3, 8), np.tri(3) > 0)
case("BatchNormalization", MAP, *(floats(4) for _ in range(4)), epsilon=0.1)
case("LayerNormalization", MAP, floats(5, 6), floats(5, 6), axis=2, epsilon=0.1)
case("LayerNormalization RMSNormalization", MAP, floats(6))
case("GroupNormalization", MAP, floats(4), floats(4), num_groups=2)
case("GroupNormalization", MAP, floats(2), floats(2), num_groups=2)
case("InstanceNormalization", MAP, floats(4), floats(4))
case("LpNormalization", MAP, axis=1, p=1)
case("LpNormalization", MAP)
case("LRN", (1, 7, 3, 3), size=3, alpha=0.1)
case("LRN", (1, 7, 3, 3), size=5, beta=0.6)
case("GlobalMaxPool GlobalAveragePool", MAP)
REDUCTIONS = "Sum Mean Max Min Prod L1 L2 SumSquare LogSum LogSumExp"
for reduction in REDUCTIONS.split():
    case(f"Reduce{reduction}", MAP, axes=integers(1, -1), keepdims=0)
    case(f"Reduce{reduction}", MAP)
    case(f"Reduce{reduction}", MAP, noop_with_empty_axes=1)
case("ArgMax ArgMin", MAP, axis=1, keepdims=0)
case("TopK", MAP, integers(2), axis=1, largest=0)
case("TopK", MAP, k=2, axis=1)
case("Reshape", MAP, integers(0, -1, 3))
case("Flatten", MAP, axis=2)
case("Flatten", MAP, axis=0)
case("Squeeze", (1, 2, 1), axes=integers(-1))
case("Squeeze", (1, 2, 1))
case("Unsqueeze", ROWS, axes=integers(0, 3))
case("Transpose", MAP)
case("Transpose", MAP, perm=[0, 2, 3, 1])
case("Split", MAP, split=integers(1, 3), axis=1)
case("Split", MAP, axis=2, num_outputs=2)
case("Split", MAP, axis=1)
for start, end, step in ((1, 6, 2), (5, 1, -2), (-1, -100, -1), (2, 1000, 1)):
    case("Slice", (2, 7), integers(start), integers(end), integers(-1), integers(step))
case("Slice", (5, 7), starts=integers(1, 2), ends=integers(-1, 100))
case("Concat", ROWS, floats(2, 2), axis=1)
case("Expand", (3, 1), integers(2, 1, 4))
case("Tile", ROWS, integers(2, 3))
case("Range", None, np.int64(2), np.int64(9), np.int64(3))
case("ConstantOfShape", None, integers(2, 3), value=helper.make_tensor("v", TensorProto.FLOAT, [1], [3.0]))
case("ConstantOfShape", None, integers(2, 3))
case("CumSum", MAP, np.int64(1))
case("Trilu", MAP, np.int64(1), upper=0)
case("Trilu", MAP)
case("Gather", MAP, INDEX, axis=1)
case("Gather", MAP, np.int64(-1), axis=2)
case("GatherElements", (3, 2), INDEX, axis=0)
case("GatherND", (2, 2, 3), INDEX)
case("ScatterND", (2, 2, 3), INDEX, floats(2, 3))
case("ScatterElements", (3, 2), INDEX, floats(2, 2), axis=0)
case("DepthToSpace", (2, 8, 2, 3), blocksize=2)
case("SpaceToDepth", (2, 3, 4, 6), blocksize=2)
for mode in ("constant", "reflect", "edge", "wrap"):
    case("Pad", MAP, mode=mode, pads=integers(0, 1, 2, 0, 0, 0, 1, 3))
case("Pad", MAP, integers(2, -1), np.float32(0.3), integers(-1))
case("Upsample", MAP, scales=np.array([1, 1, 2, 3], dtype=np.float32))
case("Upsample", MAP, mode="linear", scales=np.array([1, 1, 2, 3], dtype=np.float32))
case("GridSample", (1, 2, 5, 6), floats(1, 3, 4, 2) - 1.2, align_corners=1)
case("GridSample", (1, 2, 5, 6), floats(1, 3, 4, 2) - 1.2, padding_mode="border")
#: Operators of `test_windows` and `test_resizes`, and of the quantised chains.
RANDOM = {"Conv", "MaxPool", "AveragePool", "Resize"}
CHAINS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger"}
RANGES = {"Asin": (-0.9, 0.9), "Acos": (-0.9, 0.9), "Atanh": (-0.9, 0.9), "Acosh": (1.1, 3)}
POSITIVE = {"Log", "Sqrt", "Reciprocal", "Pow", "ReduceLogSum"}


def one_node(kind, opset, shape, inputs, arguments):
    """The model of one node; None where the opset has no such operator, input or attribute."""
    try:
        schema = onnx.defs.get_schema(kind, opset, "")
    except onnx.defs.SchemaError:
        return None
    names, constants, attributes = [formal.name for formal in schema.inputs], [*inputs], {}
    for name, argument in arguments.items():
        if name in schema.attributes:
            attributes[name] = argument.tolist() if isinstance(argument, np.ndarray) else argument
        elif name in names:
            constants += [None] * (names.index(name) - 1 - len(constants)) + [np.asarray(argument)]
        else:
            return None
    if len(constants) + (shape is not None) > schema.max_input:
        return None
    words = [f"c{i}" if c is not None else "" for i, c in enumerate(constants)]
    tensors = [
        onnx.numpy_helper.from_array(c.astype(np.float32) if c.dtype == np.float64 else np.asarray(c), word)
        for c, word in zip(constants, words, strict=True)
        if word
    ]
    first, answers = ["x"] if shape else [], ["a", "b"] if kind in SEVERAL else ["a"]
    nodes = [
        helper.make_node(kind, [*first, *words], answers, name="it", **attributes),
        helper.make_node("Cast", answers[-1:], ["f"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMin", ["x"], ["m"], keepdims=0),  # so that every answer depends on `x`
        helper.make_node("Sub", ["m", "m"], ["z"]),
        helper.make_node("Add", ["f", "z"], ["y"]),
    ]
    return graph(nodes, [value("x", shape or (2,))], [value("y", None)], tensors, opset=opset)


def compare(model, x):
    """The network, its answer, and ONNX Runtime's; None where that refuses the graph."""
    options = ort.SessionOptions()
    options.graph_optimization_level, options.log_severity_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL, 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
        (expected,) = session.run(None, {"x": x.detach().numpy()})
    except Exception:  # a form or a dtype that it does not take in this opset
        return None
    network = build_network(model, OnnxInput("x", None, None, False), "file")
    return network, network(x), torch.from_numpy(expected)


def assert_equal(answer, expected):
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5 * max(float(expected.abs().max()), 1))


def assert_slope(network, x):
    assert torch.autograd.gradcheck(network.double(), (x.double().requires_grad_(),), atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("kind", sorted(OPERATORS.keys() - RANDOM - CHAINS))
def test_operators_equal_onnxruntime_and_have_its_slope(kind):
    assert kind in CASES, "give it a case"
    for shape, inputs, arguments in CASES[kind]:
        low, high = RANGES.get(kind, (0.5, 2) if kind in POSITIVE else (-2, 2))
        x = low + (high - low) * torch.rand(shape or (2,), generator=torch.Generator().manual_seed(1))
        models = [model for o in OPSETS if (model := one_node(kind, o, shape, inputs, arguments)) is not None]
        answers = [answer for model in models if (answer := compare(model, x)) is not None]
        assert answers, f"no opset has {arguments}"
        for _, answer, expected in answers:
            assert_equal(answer, expected)
        if kind not in ("Round", "Floor", "Ceil"):
            assert_slope(answers[-1][0], x)


def choice(seed, **choices):
    """One of the choices for each name; those of None are left out."""
    generator = np.random.default_rng(seed)
    values = {name: options[generator.integers(len(options))] for name, options in choices.items()}
    return {name: option for name, option in values.items() if option is not None}


SIDES = {"strides": ([1, 1], [2, 3], None), "dilations": ([1, 1], [2, 1], None)}
SIDES |= {"auto_pad": ("SAME_UPPER", "SAME_LOWER", "VALID", None, None)}


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", ["Conv", "MaxPool", "AveragePool"])
def test_windows_equal_onnxruntime(kind, seed):
    options = choice(seed, **SIDES, kernel_shape=([3, 2], [2, 3], [3, 3]), pads=([1, 0, 1, 1], [1, 1, 1, 1], None))
    if "auto_pad" in options:
        options.pop("pads", None)
        options["dilations"] = [1, 1]  # ONNX Runtime pads otherwise
    if kind != "Conv":
        options |= choice(seed, ceil_mode=(0, 1))
    if kind == "AveragePool":
        options |= choice(seed, count_include_pad=(0, 1)) | {"dilations": [1, 1]}
    inputs = (floats(4, 2, *options["kernel_shape"]), floats(4)) if kind == "Conv" else ()
    options |= {"group": 2} if kind == "Conv" else {}
    x = torch.randn(2, 4, 9, 11, generator=torch.Generator().manual_seed(seed))
    network, answer, expected = compare(one_node(kind, 22, (2, 4, 9, 11), inputs, options), x)
    assert_equal(answer, expected)
    assert_slope(network, x[:, :, :6, :5])


@pytest.mark.parametrize("seed", range(40))
def test_resizes_equal_onnxruntime(seed):
    modes = "half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"
    options = choice(seed, mode=("nearest", "linear", "cubic"), coordinate_transformation_mode=modes)
    options |= choice(seed, nearest_mode=("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
    shape = choice(seed, scales=([1, 1, 0.5, 2.4], [1, 1, 3, 1.7], None))
    empty = np.zeros(0, np.float32)
    inputs = (empty, np.array(shape["scales"], np.float32)) if shape else (empty, empty, integers(1, 2, 4, 13))
    x = torch.randn(1, 2, 6, 7, generator=torch.Generator().manual_seed(seed))
    for opset in (11, 13, 19):
        network, answer, expected = compare(one_node("Resize", opset, (1, 2, 6, 7), inputs, options), x)
        assert_equal(answer, expected)
    assert_slope(network, x)


@pytest.mark.parametrize("opset", [11, 13, 19, 21, 23])
@pytest.mark.parametrize("axis", [None, 1])
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_quantised_values_equal_onnxruntime_with_a_straight_gradient(opset, axis, kind):
    scale, zero = (
        (np.array([0.02, 0.05], np.float32), np.array([3, 100], kind)) if axis else (np.float32(0.01), kind(90))
    )
    ends = {"axis": axis} if axis and opset >= 13 else {}
    if axis and not ends:
        return
    make = helper.make_node
    nodes = [
        make(name, [a, "s", "z"], [b], **ends)
        for name, a, b in (("QuantizeLinear", "x", "q"), ("DequantizeLinear", "q", "y"))
    ]
    tensors = [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in (("s", scale), ("z", zero))]
    x = (torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(0)) * 3).requires_grad_()
    _, answer, expected = compare(graph(nodes, [value("x", x.shape)], [value("y", None)], tensors, opset=opset), x)
    assert torch.equal(answer, expected)
    (slope,) = torch.autograd.grad(answer.sum(), x)
    steps = torch.tensor(scale).reshape(-1, 1)
    inside = (answer - x).abs() <= 0.5001 * steps
    torch.testing.assert_close(slope, inside.float())


@pytest.mark.parametrize("kind", ["MatMulInteger", "ConvInteger"])
def test_dynamic_quantisation_equals_onnxruntime(kind):
    shape, w = ((2, 6), (6, 5)) if kind == "MatMulInteger" else ((2, 3, 8, 8), (4, 3, 3, 3))
    ends = {"pads": [1, 1, 1, 1]} if kind == "ConvInteger" else {}
    w = np.random.default_rng(0).integers(0, 255, w).astype(np.uint8)
    make = helper.make_node
    nodes = [
        make("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        make(kind, ["q", "w", "z", "v"], ["i"], **ends),
        make("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        make("Mul", ["f", "s"], ["y"]),
    ]
    tensors = [onnx.numpy_helper.from_array(v, name) for name, v in (("w", w), ("v", np.uint8(120)))]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    _, answer, expected = compare(graph(nodes, [value("x", shape)], [value("y", None)], tensors), x)
    assert_equal(answer, expected)
    weights = torch.from_numpy(w).float() - 120
    plain = x @ weights if kind == "MatMulInteger" else torch.conv2d(x, weights, padding=1)
    slopes = [torch.autograd.grad(y.sum(), x)[0] for y in (answer, plain)]
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-2)
