"""An engine changes how an encoder runs, not what it computes; its precision, and the memory that a pass needs."""

import json

import pytest
import torch
from torch import nn

from attacks import load_encoder
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.engine.memory import free_memory, watch
from attacks.encoders.engine.precision import allow_tf32
from tests.helpers.decoration import resnet, with_gradient


def test_decision_round_trip():
    decision = Decision("channels_last", "bfloat16", fold=True, chunk=8)
    assert Decision.from_dict(json.loads(json.dumps(decision.to_dict()))) == decision
    settings = dict(text.removeprefix("engine.").split("=") for text in decision.settings())
    texts = {"layout": "channels_last", "precision": "bfloat16", "fold": "true", "chunk": "8"}
    assert settings == texts


WRONG = [("layout", "NHWC"), ("precision", "float16"), ("fold", 1), ("fold", "no"), ("chunk", 0), ("chunk", True)]


@pytest.mark.parametrize(("name", "value"), [*WRONG, ("compile", False)])
def test_decision_refuses_invalid_values(name, value):
    with pytest.raises(ValueError, match=f"`{name}` (must be|is no setting)"):
        Decision.from_dict({name: value})


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_given_encoder_is_never_changed(precision):
    encoder = resnet()
    encoder.conv1.weight.requires_grad_()
    original = {name: t.clone() for name, t in encoder.state_dict().items()}
    kinds = [type(m) for m in encoder.modules()]
    assert prepare(encoder, Decision(chunk=3)) is encoder
    with_gradient(prepare(encoder, Decision("channels_last", precision, fold=True)), torch.rand(1, 3, 32, 32))
    state = encoder.state_dict()
    assert original.keys() == state.keys()
    for name, tensor in original.items():
        assert torch.equal(tensor, state[name])
        assert tensor.dtype == state[name].dtype
        assert tensor.stride() == state[name].stride()
    assert [type(m) for m in encoder.modules()] == kinds
    assert not any(m.training or m._forward_pre_hooks for m in encoder.modules())
    assert encoder.conv1.weight.requires_grad
    assert not torch.is_autocast_enabled("cpu")


def test_the_preprocessing_is_not_rounded():
    dtypes = []

    class Dtypes(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            x = torch.ones(4, 4) @ x  # autocast would round a product
            dtypes.append(x.dtype)
            x = self.head(x)
            dtypes.append(x.dtype)
            dtypes.append((torch.ones(4, 4) @ x).dtype)
            return x.flatten(1)

    prepare(Dtypes().eval(), Decision(precision="bfloat16"))(torch.rand(1, 3, 4, 4))
    assert dtypes == [torch.float32, torch.bfloat16, torch.bfloat16]


UNSUPPORTED = {
    "fold": (lambda images: images, Decision(fold=True), "engine.fold=true.* needs an encoder that is an nn.Module"),
    "no layer": (nn.Flatten().eval(), Decision(precision="bfloat16"), "needs a layer of nn"),
    "half": (nn.Linear(2, 2).half().eval(), Decision(precision="bfloat16"), "must be float32 .*in float16"),
    "training": (nn.Linear(2, 2), Decision(fold=True), "training mode"),
}


@pytest.mark.parametrize(("encoder", "decision", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported_decisions_are_refused(encoder, decision, message):
    with pytest.raises(ValueError, match=message):
        prepare(encoder, decision)


#: How far features and gradients may be from float32, relatively: a ReLU that flips in the forward pass is an error
#: of the whole size of its gradient.
ERRORS = {"layout": (Decision("channels_last"), 1e-5, 1e-3), "bfloat16": (Decision(precision="bfloat16"), 0.02, 0.15)}


@pytest.mark.parametrize("name", ERRORS)
def test_the_error_of_a_decision_has_a_bound_and_no_other_dtype(name):
    encoder, images = load_encoder(), torch.rand(4, 3, 128, 128)
    decision, *limits = ERRORS[name]
    for result, exact, limit in zip(
        with_gradient(prepare(encoder, decision), images), with_gradient(encoder, images), limits, strict=True
    ):
        assert result.dtype == torch.float32 and (result - exact).norm() <= limit * exact.norm()
        assert name == "layout" or not torch.equal(result, exact)
    wide = encoder.double() if name != "bfloat16" else encoder
    results = with_gradient(prepare(wide, decision), images.double())
    assert {result.dtype for result in results} == {torch.float64}
    weight = torch.rand(2, 12)
    linear = prepare(lambda pictures: pictures.flatten(1) @ weight.T, decision)  # a plain callable too
    features = linear(images[..., :2, :2])
    torch.testing.assert_close(features, images[..., :2, :2].flatten(1) @ weight.T, rtol=0.02, atol=0.02)


def on():
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


class Switches(torch.autograd.Function):
    """The identity, which notes the switches; its backward pass may run out of memory."""

    @staticmethod
    def forward(ctx, x, notes, fails):
        ctx.notes, ctx.fails = notes, fails
        notes.append(("forward", on()))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.notes.append(("backward", on()))
        if ctx.fails:
            raise torch.OutOfMemoryError("out of memory")
        return grad, None, None


class Network(nn.Module):
    def __init__(self, fails=False):
        super().__init__()
        self.body, self.notes, self.fails = nn.Linear(12, 5), [], fails

    def forward(self, x):
        layer = Switches.apply(self.body(x.flatten(1)), self.notes, self.fails)
        return {"embedding": layer.tanh(), "layers": (layer, layer.square())}


@pytest.fixture(autouse=True)
def switched_off():
    switches = on()
    allow_tf32(False)
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = switches


def slope(encoder, outside, images):
    leaf = images.clone().requires_grad_()
    tree = encoder(Switches.apply(leaf * 2, outside, False))
    loss = tree["embedding"].sum() + tree["layers"][1].prod(1).sum()  # not of every feature
    return torch.autograd.grad(loss, leaf)[0]


def test_it_is_on_in_both_passes_of_the_encoder_alone_and_the_gradient_is_the_network_s():
    network, images, outside = Network().eval(), torch.rand(3, 3, 2, 2), []
    expected = slope(network, [], images)
    network.notes.clear()
    encoder = prepare(network, Decision(precision="tf32"))
    assert torch.equal(slope(encoder, outside, images), expected)
    assert encoder.run.notes == [("forward", (True, True)), ("backward", (True, True))]
    assert outside == [("forward", (False, False)), ("backward", (False, False))]
    with torch.no_grad():
        assert torch.equal(encoder(images)["embedding"], network(images)["embedding"])
    assert encoder.run.notes[-1] == ("forward", (True, True))
    assert network.notes == [("forward", (False, False))]
    assert on() == (False, False)


def test_it_is_off_after_a_pass_that_ran_out_of_memory():
    encoder = prepare(Network(fails=True).eval(), Decision(precision="tf32"))
    with pytest.raises(torch.OutOfMemoryError):
        slope(encoder, [], torch.rand(1, 3, 2, 2))
    assert on() == (False, False)


def test_free_memory_is_the_least_of_machine_and_cgroups(tmp_path):
    cpu = torch.device("cpu")
    assert free_memory(cpu, tmp_path) is None
    files = {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n",
        "proc/self/cgroup": "0::/outer/inner\n",
        "sys/fs/cgroup/outer/inner/memory.max": "max\n",
        "sys/fs/cgroup/outer/inner/memory.current": "1000\n",
        "sys/fs/cgroup/outer/inner/memory.stat": "inactive_file 0\n",
        "sys/fs/cgroup/outer/memory.max": "5000000\n",
        "sys/fs/cgroup/outer/memory.current": "3000000\n",
        "sys/fs/cgroup/outer/memory.stat": "anon 1\ninactive_file 400000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert free_memory(cpu, tmp_path) == 2_400_000
    (tmp_path / "proc/self/cgroup").write_text("3:cpu:/x\n")
    assert free_memory(cpu, tmp_path) == 8000 * 1024
    assert free_memory(torch.device("meta")) is None


def test_saved_bytes_count_each_storage_once_and_no_weights():
    layer, x = nn.Linear(10, 10), torch.rand(4, 10, requires_grad=True)
    with watch(torch.device("cpu")) as memory:
        memory.begin()
        y = layer(x).exp()  # saves x for the weights and the result of exp
        _ = y * y  # saves y twice
        assert memory.largest == 2 * x.nbytes
        memory.begin()
        _ = layer(x).exp().exp()
        assert memory.largest == 3 * x.nbytes
        memory.begin()
        _ = layer(x)
    assert memory.largest == 3 * x.nbytes  # of the largest pass
