"""The contract of an encoder, at every door: rows independent of one another, and one floating-point tensor."""

import copy
from dataclasses import make_dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attacks.objectives.bits
import attacks.objectives.retrieval  # noqa: F401
from attacks import EOT, PGD, Away, Ensemble, Linf, bank, evaluate, load_encoder, robustness, solve, worst_views
from attacks.encoders import Stochastic, contract, with_preprocess
from attacks.encoders.engine.native_precision import in_native_precision
from attacks.encoders.preprocess import Preprocess
from attacks.eot.bank import judged
from attacks.eot.protocols import Objective
from attacks.objectives import CrossEntropy, Members
from tests.helpers.wrong import refused
from transforms import Affine, Compose

torch.manual_seed(0)
PLAIN = Preprocess(32, "pil_bicubic", (0.5,) * 3, (0.5,) * 3)
CORE = nn.Sequential(nn.Conv2d(3, 6, 5, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(3), nn.Flatten()).eval()
IMAGES, VIEWS = torch.rand(2, 3, 24, 32, generator=torch.Generator().manual_seed(1)), Compose([Affine(degrees=10)])


class Function(nn.Module):
    """A function of pictures as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, images):
        return self.function(images)


def route(x):
    """Tokens of the whole batch compete for the places of two experts, first come first served."""
    tokens = F.unfold(x, 8, stride=8).transpose(1, 2).reshape(-1, 192)
    expert = (tokens.mean(1) > tokens.mean()).long() if len(x) > 8 else (tokens.std(1) > 0.2).long()
    place = F.one_hot(expert, 2).cumsum(0).gather(1, expert[:, None])[:, 0]
    has_place = (place <= 0.6 * len(tokens)).to(x)[:, None]
    return (tokens * has_place).view(len(x), -1, 192).mean(1)


NORM = nn.BatchNorm2d(3, track_running_stats=False).eval()
DEPENDENT = {
    "batch norm": nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), copy.deepcopy(CORE)).eval(),
    "batch norm of rows": nn.Sequential(copy.deepcopy(CORE), nn.BatchNorm1d(54, track_running_stats=False)).eval(),
    "a norm in training mode": nn.Sequential(nn.BatchNorm2d(3), copy.deepcopy(CORE)).eval(),
    "minimum and maximum": Function(lambda x: CORE((x - x.min()) / (x.max() - x.min() + 1e-6))),
    "mean over the batch": Function(lambda x: CORE(x) - CORE(x).mean(0)),
    "softmax over the batch": Function(lambda x: CORE(x).softmax(0)),
    "capacity": Function(route),
    "half of the rows": Function(lambda x: CORE(x) * (CORE(x).sum(1) >= CORE(x).sum(1).median())[:, None]),
    "place": Function(lambda x: CORE(x) + 0.02 * torch.arange(len(x))[:, None]),
    "size of the batch": Function(lambda x: CORE(x) / len(x)),
    "order": Function(lambda x: CORE(x).sort(0).values),
}
DEPENDENT["a norm in training mode"][0].train()
PART = make_dataclass("Answer", ["embedding", "loss"])
FORMS = {
    "dict": (lambda x: {"embedding": CORE(x)}, r"a dict of embedding: .*answer\['embedding'\]"),
    "tuple": (lambda x: (CORE(x), CORE(x)), r"a tuple of 2: .*answer\[0\]"),
    "list": (lambda x: [CORE(x)], r"a list of 1: .*answer\[0\]"),
    "output object": (lambda x: PART(CORE(x), None), r"a Answer: .*answer\.embedding"),
    "map": (lambda x: CORE[0](x), r"it is a map: pool it, answer\.mean\(\(2, 3\)\)"),
    "array": (lambda x: CORE(x).detach().numpy(), "a NumPy ndarray: compute in torch"),
    "bytes": (lambda x: (99 * CORE(x)).to(torch.int8), "torch.int8: return its numbers before"),
    "bits": (lambda x: CORE(x) > 0, "torch.bool: return its numbers before they are rounded or compared"),
    "complex numbers": (lambda x: torch.fft.fft(CORE(x)), r"torch.complex64: .*view_as_real\(answer\).flatten\(1\)"),
    "float8": (lambda x: CORE(x).to(torch.float8_e4m3fn), r"torch.float8_e4m3fn: widen it, answer.float\(\)"),
    "sparse": (lambda x: CORE(x).to_sparse(), r"a sparse or nested one: return answer.to_dense\(\)"),
    "integers": (lambda x: CORE(x).sign().long(), "torch.int64: return its numbers before"),
    "one number": (lambda x: CORE(x)[:, 0], r"no \.squeeze\(\)"),
    "one picture squeezed": (lambda x: CORE(x).squeeze(0), r"\(54,\): .*no \.squeeze\(\)"),
    "one row for all": (lambda x: CORE(x)[:1], "keep one row a picture, on the first axis"),
}


def doors(encoder):
    """Each public way in, with an encoder that has not passed another."""
    views, anchor = bank(VIEWS, 4, seed=0, purpose="evaluate"), torch.ones(2, 54)
    parts = {"objective": Away(), "perturbation": Linf(0.1), "optimiser": PGD(), "eot": EOT(VIEWS, views=2)}
    yield lambda: solve(IMAGES, anchor, encoder=encoder, **parts, steps=1)
    yield lambda: evaluate(IMAGES, anchor, anchor, encoder=encoder, bank=views)
    yield lambda: worst_views(judged(IMAGES, anchor, encoder, Away()), VIEWS, k=2, refine_steps=0)
    several = parts | {"objective": Members(Away())}
    yield lambda: solve(IMAGES, (anchor,) * 2, encoder=Ensemble([CORE, encoder]), **several, steps=1)
    yield lambda: contract.probe(with_preprocess(copy.deepcopy(encoder), PLAIN))  # as `load_encoder` does
    yield lambda: robustness(encoder, IMAGES, preset="smoke", steps=1, **{"data.size": 24, "evaluate.views": 4})


def assert_refused(encoder, message, at_all_doors):
    for door in doors(encoder) if at_all_doors else [*doors(encoder)][:2]:
        refused(message, door)


@pytest.mark.parametrize("name", DEPENDENT)
def test_rows_that_depend_on_the_batch_are_refused(name):
    message, encoder = "depends on the other pictures in its batch", DEPENDENT[name]
    assert_refused(encoder, message, at_all_doors=name == "batch norm")
    assert_refused(
        make_dataclass("Plain", [], namespace={"__call__": lambda _, x: encoder(x)})(), message, at_all_doors=False
    )


@pytest.mark.parametrize("name", FORMS)
def test_what_is_no_embedding_is_refused_with_a_fix(name):
    make, message = FORMS[name]
    assert_refused(Function(make).eval(), message, at_all_doors=name == "map")


@pytest.mark.parametrize("name", ["linear", "convolution", "buffer"])
def test_weights_on_the_meta_device_are_refused(name):
    core = copy.deepcopy(CORE)
    layers = {"linear": nn.Linear(54, 5), "convolution": core[0], "buffer": nn.BatchNorm1d(54)}
    layers[name].to("meta")
    encoder = nn.Sequential(core, layers[name]).eval() if name != "convolution" else core
    assert_refused(encoder, r"is on the meta device, .*load_state_dict\(state, assign=True\)", at_all_doors=True)


def test_a_program_of_torch_export_is_refused_and_passes_as_the_message_says():
    program = torch.export.export(CORE, (IMAGES,), dynamic_shapes=({0: torch.export.Dim("n")},))
    assert_refused(
        program.module(), r"no evaluation mode: pass torch.export.unflatten\(program\)", at_all_doors=False
    )
    for make in (lambda: robustness(program.module(), IMAGES), lambda: with_preprocess(program.module(), PLAIN)):
        refused("no evaluation mode", make)
    encoder = torch.export.unflatten(program).eval()
    contract.check_encoder(encoder, IMAGES)
    assert torch.equal(encoder(IMAGES[:1]), CORE(IMAGES[:1]))


def test_honest_encoders_pass():
    noisy = Stochastic(nn.Sequential(copy.deepcopy(CORE), nn.Dropout(0.5)).eval())
    random = Function(lambda x: CORE(x) + torch.randn(len(x), 54))  # no neighbour is to blame
    for encoder in (CORE, noisy, random, load_encoder("phash"), Function(lambda x: x.flatten(2)), Ensemble([CORE])):
        contract.check_encoder(encoder.eval(), IMAGES, VIEWS)
    encoder, calls = load_encoder("torchvision", "mobilenet_v3_small", weights="random"), []
    encoder.register_forward_hook(lambda *_: calls.append(1))
    contract.check_encoder(encoder, IMAGES, VIEWS)
    assert not calls
    for dtype in (torch.float16, torch.bfloat16):
        half = in_native_precision(copy.deepcopy(CORE).to(dtype))
        contract.refuse_dependent(half, IMAGES)


def objectives(kind=Objective):
    for part in kind.__subclasses__():
        yield from ([part] if part.__module__.startswith("attacks.objectives") else [])
        yield from objectives(part)


LEAVES = [kind for kind in objectives() if kind.__name__ not in ("Each", "Evasion", "Members", "Paired", "Sum")]


@pytest.mark.parametrize("shape", [(2, 4, 8, 8), (2, 3, 4), (2, 4), (2,)], ids=str)
@pytest.mark.parametrize("kind", LEAVES, ids=lambda kind: kind.__name__)
def test_every_objective_gives_one_loss_a_view_or_one_sentence(kind, shape):
    parts = {"Retrieval": (torch.eye(4),), "InfoNCE": (torch.eye(4),), "ByText": (CrossEntropy(), torch.eye(4))}
    objective = kind(*parts.get(kind.__name__, ()))
    features = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    anchors = {"Triplet": {"positive": features, "negative": features + 1}}
    anchors |= dict.fromkeys((*parts, "CrossEntropy", "Margin", "DLR"), torch.tensor([0, 1]))
    anchor = anchors.get(kind.__name__, features)
    try:
        losses = objective(features, anchor)
    except ValueError as error:
        assert len(shape) != 2 and "must be one floating-point tensor" in str(error)
    else:
        assert losses.shape == (2,) and len(shape) in (2, 3)
