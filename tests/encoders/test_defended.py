"""Defences before an encoder: their effect, their gradients, and adaptive attacks against them."""

import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from PIL import ImageFilter
from torch import nn
from torchvision.transforms.functional import pil_to_tensor, to_pil_image

from attacks import EOT, PGD, Away, Linf, attack, bank, load_encoder, solve
from attacks.data.gallery import tiles
from attacks.encoders import Bpda, Defended, Stochastic
from attacks.encoders.defended import Defence
from attacks.encoders.description import identity
from attacks.encoders.engine import Choice, Decision
from attacks.encoders.layers import named_layers
from attacks.encoders.randomness import encoder_randomness
from attacks.evaluation.scores import evaluate, signature_method
from attacks.experiment.preparation import engine_choice
from attacks.runtime.distributed import ALONE
from attacks.schema.encoder import ENCODERS, DefenceConfig, PocketConfig
from attacks.schema.groups import CHOICES
from attacks.schema.presets import read_preset
from attacks.schema.validate import validate
from attacks.study.assembly import build
from attacks.study.pipeline import CONFIGS, stages
from tests.helpers import encoder_laws as laws
from tests.helpers.small import small, smooth
from tests.helpers.subjects import encoder_of
from tests.schema.test_configs import composed
from transforms import Compose, Downscale, Jpeg, jpeg, resize
from transforms.camera import GaussianBlur, Quantise, ResizePad, quantise

double = torch.float64
DEFENCES = sorted(path.stem for path in (CONFIGS / "defence").glob("*.yaml"))
#: Those that are a stage of the views (tests/experiment/test_view_defence.py).
AMONG_VIEWS = ("area", "median", "random_phase")
CPU = torch.device("cpu")


def defend(name, encoder):
    """An encoder behind a defence of configs/defence."""
    node = OmegaConf.to_container(read_preset(CONFIGS / "defence" / f"{name}.yaml"))
    return Defended(encoder, stages(node["stages"], "defence.stages"))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DEFENCES if name not in (*AMONG_VIEWS, "plugin")])
def test_every_configured_defence_passes_a_gradient(name):
    run = validate(composed("config=smoke", f"defence={name}"))
    encoder = encoder_of(run.encoder, CPU, run.defence)
    assert isinstance(encoder, Defence) == bool(identity(run.encoder, encoder)["defence"]) == (name != "none")
    assert list(named_layers(encoder)) == list(named_layers(load_encoder()))
    images = torch.rand(2, 3, 90, 110).requires_grad_()
    (encoder(images) ** 2).sum().backward()
    assert (images.grad.flatten(1).norm(dim=1) > 0).all()


@pytest.mark.slow
def test_stochastic_samples_and_reports_the_ranges_of_a_defence():
    run = validate(composed("config=smoke", "defence=resize_pad", "encoder.stochastic=true"))
    parts = build(run)
    names = [name for name in parts.transforms.names if name.startswith("encoder resizepad ")]
    middle = build(validate(composed("config=smoke", "defence=resize_pad"))).transforms
    assert not any("encoder" in name for name in middle.names), "ranges are fixed at their middle"
    assert isinstance(parts.encoder, Stochastic) and len(names) == parts.encoder.randomness.dims == 3
    facts = identity(run.encoder, parts.encoder)
    assert facts["stochastic"] is True and facts["defence"][0].startswith("ResizePad(scale=(1.0, 1.107)")
    assert facts["fingerprint"] == identity(run.encoder, load_encoder())["fingerprint"]


def test_a_stochastic_encoder_without_draws_and_unknown_stages_are_refused():
    assert sorted(CHOICES["defence"]) == DEFENCES
    run = validate(composed("config=smoke", "encoder.stochastic=true", "defence=jpeg"))
    for defence in (None, run.defence):
        with pytest.raises(ValueError, match=r"`encoder\.stochastic=true`"):
            encoder_of(run.encoder, CPU, defence)
    with pytest.raises(ValueError, match=r"`defence\.stages\.jpg` is unknown"):
        encoder_of(PocketConfig(), CPU, DefenceConfig("jpeg", {"jpg": {}}))


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("jpeg", lambda x: jpeg(x, 75)),
        ("bits", lambda x: quantise(x, 4)),
        ("blur", lambda x: GaussianBlur((1, 1))(x, torch.zeros(len(x), 1))),
        ("resize", lambda x: resize(resize(x, 80, "pil_bilinear"), 96, "pil_bilinear").clamp(0, 1)),
    ],
)
def test_without_draws_a_defence_uses_the_middle_of_its_ranges(name, oracle):
    images = torch.rand(2, 3, 96, 120)
    encoder, expected = defend(name, nn.Flatten().eval()), oracle(images).flatten(1)
    torch.testing.assert_close(encoder(images), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "stage", [GaussianBlur((0.5, 1.5)), Downscale((8, 14)), ResizePad((0.7, 1.1))], ids=lambda s: type(s).__name__
)
@pytest.mark.parametrize("alive", [False, True])
def test_gradcheck_through_a_smooth_defence(stage, alive):
    encoder, images = Defended(small().double(), [stage, Downscale((20, 20))]), 0.2 + 0.6 * smooth().double()
    images = F.interpolate(images, (20, 22)).requires_grad_()
    if alive:
        drops = Defended(nn.Sequential(nn.Dropout(0.2), encoder.encoder).eval(), encoder.stages)
        encoder, w = Stochastic(drops), torch.rand(2, 1 + stage.dims)
        laws.assert_slope(lambda x: encoder(x, draws=w), images)
    else:
        laws.assert_slope(encoder, images)


def test_a_continuous_coordinate_has_an_exact_gradient():
    encoder = Stochastic(Defended(small().double(), [GaussianBlur((0.5, 1.5))]))
    images, w = smooth().double(), (0.2 + 0.6 * torch.rand(2, 1, dtype=double)).requires_grad_()
    laws.assert_slope(lambda draws: encoder(images, draws=draws), w)


def through_pillow(images):
    """A median filter: real pixels of 8 bits, and no derivative at all."""
    filtered_pictures = [
        pil_to_tensor(to_pil_image(picture).filter(ImageFilter.MedianFilter(3)))
        for picture in (images * 255).round().to(torch.uint8).cpu()
    ]
    return torch.stack(filtered_pictures) / 255


def attack_parts(ball, eot, steps):
    """The arguments of an attack."""
    return {"objective": Away(), "perturbation": ball, "optimiser": PGD(), "eot": eot, "steps": steps}


class Bare:
    """The same as a stage without a gradient."""

    dims, names = 0, ()

    def values(self, u):
        return u

    def __call__(self, images, u):
        return through_pillow(images.detach())


def test_bpda_attacks_a_stage_without_a_derivative():
    images, net, ball = smooth(), small(), Linf(0.05)
    parts = attack_parts(ball, EOT(Compose(), views=1), 20)
    cut = Defended(net, [Bare()])
    with pytest.raises(ValueError, match="gradient is exactly zero"):
        next(attack(images, cut(images), encoder=cut, **parts))
    encoder = Defended(net, [Bpda(through_pillow)])
    anchor = encoder(images)
    assert torch.equal(anchor, cut(images)), "the forward pass is the exact function"
    delta = solve(images, anchor, encoder=encoder, **parts).delta
    noise = ball.noise(images, torch.Generator().manual_seed(0))
    score = [1 - F.cosine_similarity(encoder((images + d).clamp(0, 1)), anchor) for d in (delta, noise)]
    assert (score[0] > 5 * score[1]).all(), score


def test_bpda_uses_the_gradient_of_its_substitute():
    images = torch.rand(2, 3, 8, 10).requires_grad_()
    stage = Bpda(lambda x: (4 * x).round() / 4, lambda x: x**2)
    weight = torch.randn(2, 3, 8, 10)
    (gradient,) = torch.autograd.grad((stage(images, torch.zeros(2, 0)) * weight).sum(), images)
    torch.testing.assert_close(gradient, 2 * images.detach() * weight)
    with pytest.raises(ValueError, match="`backward` must make pictures as large"):
        Bpda(lambda x: x[..., ::2])(images, torch.zeros(2, 0))


def test_a_defended_encoder_keeps_its_signature():
    encoder = encoder_of(
        ENCODERS["phash"](stochastic=True), CPU, DefenceConfig("blur", {"gaussian_blur": {"sigma": [0.5, 1.5]}})
    )
    plain, features = load_encoder("phash"), torch.randn(3, 64)
    assert torch.equal(signature_method(encoder)(features), plain.signature(features))
    assert signature_method(Defended(small(), [Quantise(4)])) is None and encoder_randomness(small()) is None
    assert "defence    GaussianBlur" in repr(encoder) and "draws      gaussianblur sigma" in repr(encoder)


@pytest.fixture(scope="module")
def pocket():
    """The encoder, four pictures, and the embeddings of a gallery."""
    encoder, everything = load_encoder(), tiles(128)
    images = everything.images[::67][:4]
    with torch.no_grad():
        return encoder, images, encoder(everything.images[:64])


def mean_cosine(images, delta, encoder, gallery, transforms, ball):
    """The mean cosine to the features of the defended encoder, over views unseen by the attack."""
    views = bank(transforms, 64 if transforms.dims else 1, seed=0, purpose="evaluate")
    with torch.no_grad():
        features = encoder(images)
    return float(
        evaluate(images + ball.quantise(delta, images), features, gallery, encoder=encoder, bank=views).cosine.mean()
    )


@pytest.mark.slow
def test_an_attack_through_the_codec_beats_a_blind_attack(pocket):
    encoder, images, gallery = pocket
    safe, ball = Defended(encoder, [Jpeg(30)]), Linf(3 / 255)
    cosines = {}
    for name, target in {"aware": safe, "blind": encoder}.items():
        with torch.no_grad():
            features = target(images)
        delta = solve(images, features, encoder=target, **attack_parts(ball, EOT(views=1), 20)).delta
        cosines[name] = mean_cosine(images, delta, safe, gallery, Compose(), ball)
    assert cosines["aware"] < cosines["blind"] - 0.1, cosines


@pytest.mark.slow
def test_the_engine_is_tuned_with_the_draws_of_the_views(monkeypatch):
    run = validate(composed("config=smoke", "engine=auto", "defence=blur", "encoder.stochastic=true"))
    parts, shapes = build(run), []

    def measure(encoder, trial, settings, **_):
        def spy(images, draws):
            shapes.append(draws.shape)
            return encoder(images, draws=draws)

        trial(spy, 4)
        return Choice(Decision(), ())

    monkeypatch.setattr("attacks.experiment.preparation.choose", measure)
    engine_choice(run.engine, parts, ALONE, None)
    assert shapes and set(shapes) == {(4, 1)}
