"""Encoders in half precision: features as the network's own call has them, gradients as the widened network's."""

import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks import EOT, PGD, Away, Linf, attack, load_encoder
from attacks.commands import main
from attacks.encoders import Defended, Features, Layers, Preprocess, Stochastic, randomised, with_preprocess
from attacks.encoders.description import description_rows, identity
from attacks.encoders.engine import Decision, Overflow, prepare
from attacks.encoders.engine.native_precision import in_native_precision, precision_text
from attacks.encoders.layers import unwrap
from attacks.eot.bank import Bank
from attacks.schema.encoder import ModuleConfig
from tests.helpers import encoder_laws as laws
from tests.helpers.runs import call
from tests.helpers.subjects import encoder_of
from tests.helpers.tiny_models import PREPROCESS, save_script
from transforms import Compose

refusal = partial(laws.refusal, family="torchscript", preprocess=PREPROCESS)
DTYPES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
PRE = Preprocess(16, "pil_bilinear", (0.5, 0.4, 0.3), (0.5, 0.6, 0.7))
#: How far a gradient may be from that of the widened network, relatively, in units of the precision.
NEAR = 8


def network(dtype=torch.float32):
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.GELU(), nn.AdaptiveAvgPool2d(4)
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 16)).eval().to(dtype)


def pictures(count=3):
    return torch.rand(count, 3, 30, 20, generator=torch.Generator().manual_seed(1))


def pull(encoder, images, factor=1.0):
    """The features, and the gradient of a random sum of them times `factor`, a number or one for each picture."""
    images = images.clone().requires_grad_()
    features = encoder(images)
    weights = torch.randn(features.shape, generator=torch.Generator().manual_seed(2))
    return features.detach(), torch.autograd.grad((features * weights * factor).sum(), images)[0]


def assert_near(gradient, wide, dtype):
    """Finite, not zero, and for each picture that of the widened network to the rounding."""
    for row, wide_row in zip(gradient.double(), wide.double(), strict=True):
        assert row.isfinite().all() and row.any()
        assert cosine(row, wide_row) > 1 - 4 * torch.finfo(dtype).eps
        assert (row - wide_row).norm() <= NEAR * torch.finfo(dtype).eps * wide_row.norm()


def cosine(first, second):
    return float((first.double() * second.double()).sum() / first.double().norm() / second.double().norm())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["module", "scripted", "traced"])
@DTYPES
def test_an_encoder_equals_its_network_called_by_hand(dtype, kind, tmp_path):
    module, images = network(dtype), pictures()
    by_hand = copy.deepcopy(module)(PRE(images).to(dtype)).float()
    wide = with_preprocess(copy.deepcopy(module).float(), PRE)
    if kind == "module":
        encoder = with_preprocess(module, PRE)
    else:
        trace = torch.rand(1, 3, 16, 16).to(dtype) if kind == "traced" else None
        path = str(save_script(tmp_path / "network.pt", module, trace))
        encoder = load_encoder("torchscript", path, preprocess=PREPROCESS)
        float32 = load_encoder("torchscript", path, preprocess=PREPROCESS, precision="float32")
        torch.testing.assert_close(float32(images), wide(images))
        assert precision_text(float32) == f"float32, widened from {precision_text(encoder)}"
    for _ in range(3):  # TorchScript compiles anew after profiling
        features, gradient = pull(encoder, images)
        assert features.dtype == gradient.dtype == torch.float32 and torch.equal(features, by_hand)
        assert_near(gradient, pull(wide, images)[1], dtype)
    copy_of_encoder = prepare(encoder, Decision("channels_last"))
    torch.testing.assert_close(copy_of_encoder(images), by_hand, rtol=0.05, atol=8 * torch.finfo(dtype).eps)
    assert precision_text(encoder) == str(dtype).removeprefix("torch.")
    assert precision_text(encoder.double()) == "float64" and encoder(images.double()).dtype == torch.float64


@pytest.mark.parametrize("factor", [1e-9, 1e-12, 1e12, [1e-12, 1.0, 1e9]], ids=["1e-9", "1e-12", "1e12", "mixed"])
def test_no_size_of_loss_underflows_or_overflows(factor):
    module, factor = network(torch.float16), torch.tensor(factor).view(-1, 1)
    encoder, wide = (with_preprocess(part, PRE) for part in (module, copy.deepcopy(module).float()))
    gradient = pull(encoder, pictures(), factor)[1]
    assert_near(gradient, pull(wide, pictures(), factor)[1], torch.float16)
    single = pull(encoder, pictures(), factor[:1])[1][0]  # a power of two apart, and independent of other rows
    torch.testing.assert_close(gradient[0], single, rtol=1e-3, atol=1e-3 * float(single.abs().max()))


def test_a_pass_that_overflows_is_repeated_at_a_smaller_scale():
    steep = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4)).eval()
    with torch.no_grad():
        steep[1].weight.copy_(3e4 * torch.eye(4, 768))
    module = copy.deepcopy(steep).half()
    encoder, images = with_preprocess(module, PRE), 0.01 * pictures() + 0.45
    for _ in range(2):  # 2^8 * 3e4, then 2^4 * 3e4
        with pytest.raises(Overflow, match="repeat the pass"):
            pull(encoder, images, 1e-3)
    assert_near(pull(encoder, images, 1e-3)[1], pull(with_preprocess(steep, PRE), images, 1e-3)[1], torch.float16)
    list(attack(images, encoder(images), encoder=encoder, **SETTINGS))


SETTINGS = {"objective": Away(), "perturbation": Linf(8 / 255), "optimiser": PGD(), "steps": 2, "seed": 0}
SETTINGS["eot"] = EOT(Compose([]), views=1)


@DTYPES
def test_any_module_can_be_attacked_and_wrapped(dtype):
    images, module = F.interpolate(pictures(2), (16, 16)), network(dtype)
    features = module(images.to(dtype))
    *_, last = attack(images, features, encoder=module, **SETTINGS)
    assert last.estimate.grad.isfinite().all() and last.delta.any()
    *_, second_step = attack(images, features.float(), encoder=prepare(module, Decision("channels_last")), **SETTINGS)
    assert F.cosine_similarity(last.delta.flatten(1), second_step.delta.flatten(1)).min() > 0.8
    expected = features.float()
    bank = Bank(Compose([]), torch.zeros(1, 0))
    assert torch.equal(bank.features(images, module, 8)[:, 0], expected)
    for encoder in (Defended(module, []), Features(module, ["output"])):
        assert torch.equal(encoder(images), expected) and unwrap(encoder) is module
    random = Stochastic(module)
    views = EOT(randomised(Compose([]), random), views=2)
    *_, last = attack(images, expected, encoder=random, **SETTINGS | {"eot": views})
    assert last.delta.any()


@DTYPES
def test_layers_have_with_gradients_in_float32(dtype):
    module = network(dtype)
    encoder, wide = (with_preprocess(part, PRE) for part in (module, copy.deepcopy(module).float()))
    names = ["0", "6"]
    assert all(layer.dtype == torch.float32 for layer in Layers(encoder, names)(pictures()).values())
    half, full = (pull(Features(part, names), pictures(), 1e-9) for part in (encoder, wide))
    torch.testing.assert_close(half[0], full[0], rtol=0.1, atol=4 * torch.finfo(dtype).eps)
    assert_near(half[1], full[1], dtype)


@DTYPES
def test_the_configured_precision_widens_a_copy_of_a_given_module(dtype):
    module, images, cpu = network(dtype), F.interpolate(pictures(), (16, 16)), torch.device("cpu")
    node = ModuleConfig(precision="float32")
    encoder = encoder_of(node, cpu, module=module)
    assert torch.equal(encoder(images), copy.deepcopy(module).float()(images))
    assert module[0].weight.dtype == dtype
    name = str(dtype).removeprefix("torch.")
    assert dict(description_rows(identity(node, encoder)))["precision"] == f"float32, widened from {name}"
    native = encoder_of(ModuleConfig(), cpu, module=module)
    assert dict(description_rows(identity(node, native)))["precision"] == name
    assert identity(node, native)["model"] == "Sequential"
    assert "precision" not in dict(description_rows(identity(node, encoder_of(node, cpu, module=network()))))
    with pytest.raises(ValueError, match=r"`encoder.precision` must be own or float32; got 'half'"):
        encoder_of(ModuleConfig(precision="half"), cpu, module=module)


class Program(nn.Module):
    """A program with some mistake, after its one layer."""

    def __init__(self, mistake: str):
        super().__init__()
        self.mistake, self.layer = mistake, nn.Linear(768, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mistake == "batch":
            return self.layer(x.reshape(1, 768))
        y = self.layer(x.flatten(1))
        if self.mistake == "dtype":
            y = y @ torch.ones(4, 4, dtype=torch.float64, device=y.device)
        if self.mistake == "device":
            y = y + torch.zeros(4, dtype=y.dtype, device="meta")
        if self.mistake == "operator":
            y = torch.cdist(y, torch.ones(4, 4, dtype=y.dtype))
        if self.mistake == "row":
            y = y.mean(1)
        if self.mistake == "whole":
            y = y.argmax(1, keepdim=True)
        return y


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (
            "batch",
            r"`encoder.preprocess.size` must be what .*any number of pictures; got 8 of 3x16x16 in .*'\[1, 768\]'",
        ),
        ("dtype", r"`encoder.precision`: .*in the dtype of its weights; got .* pictures \(.*double.*save it in one"),
        ("device", r"`engine.device` must be the one device .* pictures are on cpu \(.*meta.*\); choose its device"),
        ("row", r"\(N,D\), a row for each of 8 pictures; got shape \(8,\): keep one row a picture"),
        ("whole", r"must be one floating-point tensor \(N,D\), .*got torch.int64: return its numbers before"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=["float16", "float32"])
def test_a_program_that_is_no_encoder_gives_one_line(tmp_path, mistake, text, dtype):
    refusal(f"(?i){text}", save_script(tmp_path / "program.pt", Program(mistake).to(dtype)))


@DTYPES
def test_a_missing_operator_or_a_wrong_size_gives_one_line(tmp_path, dtype):
    path = str(save_script(tmp_path / "program.pt", Program("operator").to(dtype)))
    refusal(
        r"`encoder.precision` must be float32 for .*cpu lacks .*\"cdist\" .*=float32 widens",
        path,
        preprocess=PREPROCESS,
    )
    assert load_encoder("torchscript", path, preprocess=PREPROCESS, precision="float32")(pictures()).shape == (3, 4)
    plain = save_script(tmp_path / "plain.pt", Program("").to(dtype))
    refusal(
        r"`encoder.preprocess.size` must be .*got 8 of 3x8x8 in .*shapes cannot",
        plain,
        preprocess=PREPROCESS | {"size": 8},
    )
    with pytest.raises(ValueError, match=r"`encoder.preprocess.size` must be what Program .*of 3x30x20"):
        in_native_precision(Program("").to(dtype))(pictures())
    pair = in_native_precision(_Text().to(dtype))
    with pytest.raises(ValueError, match=r"answer of encoder _Text must be one floating-point tensor .*got a str"):
        pair(F.interpolate(pictures(), (16, 16)))


class _Text(nn.Flatten):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, _):
        return "text"


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_a_program_is_attacked_and_verified_by_command_line(dtype, tmp_path, monkeypatch, capsys):
    pocket = load_encoder()
    module = nn.Sequential(pocket.stem, nn.ReLU(), pocket.stages, nn.Flatten(), pocket.head).to(dtype)
    path = str(save_script(tmp_path / "pocket.pt", module, torch.rand(2, 3, 96, 96).to(dtype)))
    out, name = tmp_path / "out", str(dtype).removeprefix("torch.")
    preprocess = "encoder.preprocess={size: 96, mean: [0.5, 0.5, 0.5], std: [0.25, 0.25, 0.25]}"
    keys = "sanity=none", "attack.steps=3", "data.count=2", "data.size=96"
    start = "config=smoke", f"hydra.run.dir={out}", "encoder=torchscript", f"encoder.model={path}", preprocess, *keys
    code = call(monkeypatch, *start)
    assert code == 0, capsys.readouterr().err
    assert f"precision {name}" in capsys.readouterr().out and name in (out / "report.html").read_text()
    assert main(["verify", str(out), "--encoder-code", path, "--sample", "1"]) == 0
    assert "PASS" in capsys.readouterr().out
