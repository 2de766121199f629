"""Whatever takes pictures refuses, in one line with the fix, what are none; every public name is classed here."""

import re
import warnings

import pytest
import torch

import attacks
import transforms
from attacks import APGD, EOT, L2, NES, PGD, Away, Linf, Universal, encoders, evaluation
from attacks.data.images import to_bytes
from attacks.encoders import Preprocess
from attacks.encoders.black_box.asked import BlackBox
from attacks.encoders.rules import ViewMean
from attacks.eot import Adaptive, CVaR
from attacks.eot.bank import judged
from attacks.eot.problem import Options, Problem
from attacks.optimisers import Square
from attacks.perturbations import Grey, Masked
from scripts.api_reference import public_names
from tests.helpers.wrong import refused
from tests.transforms.test_laws import EXAMPLES
from transforms import Affine, Brightness, Compose, camera, colour, compat, wrappers
from transforms.doors import OVERSHOOT
from transforms.draws import Antithetic, Fixed
from transforms.scene import Layer, Scene

HALF = (0.5, 0.5, 0.5)
ENCODER = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten()).eval()
DEFENCE = [Brightness((0.1, 0.1))]
IMAGES = torch.rand(2, 3, 24, 32, generator=torch.Generator().manual_seed(0))
IMAGES[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
ROWS = ENCODER(IMAGES)
CORNERS = torch.tensor([[0.0, 0], [31, 0], [31, 23], [0, 23]])
VIEWS = attacks.bank(Compose(DEFENCE), 2, seed=0, purpose="evaluate")
PARTS = {"encoder": ENCODER, "objective": Away(), "perturbation": Linf(), "optimiser": PGD()}
PARTS |= {"eot": EOT(), "steps": 2}


def scene(images):
    """A picture with the pictures in question above it."""
    base = Layer(torch.zeros(2, 3, 24, 32), None, torch.eye(3)[None])
    return Compose()(Scene((base, Layer(images, None, torch.eye(3)[None])), (24, 32)), torch.zeros(2, 0))


def problem(images):
    return judged(images, ROWS, ENCODER, Away())


#: Public name -> what to do with pictures (N,3,24,32).
TAKES = {
    "resize": lambda x: transforms.resize(x, 12),
    "jpeg": transforms.jpeg,
    "webp": camera.webp,
    "quantise": camera.quantise,
    "audit": lambda x: transforms.audit(Compose(), x[:1], draws=1),
    "affine": lambda x: compat.affine(x, 3, (1, 0), 1.0, 0.0),
    "rotate": lambda x: compat.rotate(x, 3),
    "perspective": lambda x: compat.perspective(x, CORNERS, CORNERS + 1),
    "warp_affine": lambda x: compat.warp_affine(x, torch.eye(3)[:2], (12, 12)),
    "warp_perspective": lambda x: compat.warp_perspective(x, torch.eye(3), (12, 12)),
    "Compose": lambda x: Compose()(x, torch.zeros(2, 0)),
    "Scene": scene,
    "OnLayers": lambda x: wrappers.OnLayers()(x, torch.zeros(2, 0)),
    "attack": lambda x: [*attacks.attack(x, ROWS, **PARTS)],
    "solve": lambda x: attacks.solve(x, ROWS, **PARTS),
    "evaluate": lambda x: attacks.evaluate(x, ROWS, ROWS, encoder=ENCODER, bank=VIEWS),
    "mean_embedding": lambda x: evaluation.mean_embedding(x, ENCODER, VIEWS),
    "layer_drift": lambda x: evaluation.layer_drift(ENCODER, IMAGES, {"eot": x}, VIEWS),
    "layer_shapes": lambda x: encoders.layer_shapes(ENCODER, x),
    "worst_views": lambda x: attacks.worst_views(problem(x), VIEWS.transforms, k=2, refine_steps=0),
    "examine": lambda x: evaluation.examine(
        Problem(x, ROWS, ENCODER, Away(), Linf()), Options(PGD(), EOT(), steps=2)
    ),
    "Defended": lambda x: encoders.Defended(ENCODER, DEFENCE)(x),
    "Panel": lambda x: encoders.Panel(ENCODER, ViewMean(), DEFENCE, 1)(x),
    "Counterattack": lambda x: encoders.Counterattack(ENCODER)(x),
    "Layers": lambda x: encoders.Layers(ENCODER, ["0"])(x),
    "Features": lambda x: encoders.Features(ENCODER, ["1"])(x),
    "ScoreEncoder": lambda x: encoders.ScoreEncoder(ENCODER, 0.5, 0)(x),
    "Stochastic": lambda x: encoders.Stochastic(torch.nn.Sequential(ENCODER, torch.nn.Dropout()).eval())(x),
    "load_encoder": lambda x: attacks.load_encoder("pocket")(x),
    "Pocket": lambda x: encoders.untrained()(x),
    "Phash": encoders.Phash(),
    "Preprocess": Preprocess(16, "pil_bicubic", HALF, HALF),
    "ImageEncoder": lambda x: encoders.with_preprocess(ENCODER, Preprocess(16, "pil_bicubic", HALF, HALF))(x),
    "BlackBox": lambda x: BlackBox(lambda pixels: pixels.mean((1, 2)))(x),
    "to_bytes": lambda x: to_bytes(x[0]),
    "Linf": lambda x: Linf().quantise(torch.zeros(2, 3, 24, 32), x),
    "L2": lambda x: Universal(L2(1.0)).quantise(torch.zeros(1, 3, 24, 32), x),
}
STAGES = {
    f"{name} {i}": lambda x, stage=stage: stage(x, torch.full((2, stage.dims), 0.5))
    for name, examples in EXAMPLES.items()
    for i, stage in enumerate(examples)
}
#: Names that take no pictures themselves: what they are given is checked where it is used.
NO_PICTURES = """
FAMILIES bits
Antithetic Draws Fixed Grid Latin Sobol Uniform stream homography widened Stage Geometry Homography Placement Layer
tiles named_layers randomised Adaptive bank Estimate EOT CVaR Mean
interval rate missable_share smoothed_floor sign_flips least_p fewest_clusters
verify robustness DLR CrossEntropy Each Sum Term Away Paired Toward Ensemble Members Evasion
LPIPS SSIM Penalties TotalVariation InfoNCE Retrieval Triplet Verification APGD PGD SGD Adam NES LabelOnly Square
NESSquare Margin ByText RadiusByRow
Wiener Patch L0 L1 LowFrequency Smoothed Grey Masked Universal Step Best Adversary POCKET_WEIGHTS untrained
with_preprocess Bpda Problem Options Objective Optimiser
"""
#: What is no picture, and what the message says of it.
WRONG = {
    "bytes": (lambda x: (255 * x).byte(), "/ 255"),
    "0 to 255": (lambda x: 255 * x, "divide 8-bit values by 255"),
    "16 bits": (lambda x: 65535 * x.double(), "divide 16-bit values by 65535"),
    "NaN": (lambda x: torch.where(x > 0.9, torch.nan, x), "not finite"),
    "infinite": (lambda x: torch.where(x > 0.9, torch.inf, x), "not finite"),
    "normalised": (lambda x: (x - 0.45) / 0.15, "leave out Normalize"),
}
#: The same of those that take pictures of the one form (N,3,H,W).
FORMS = {
    "one picture": (lambda x: x[0], r"write images\[None\]"),
    "channels last": (lambda x: x.permute(0, 2, 3, 1), r"write images.permute\(0, 3, 1, 2\)"),
    "NumPy": (lambda x: (255 * x[0]).byte().permute(1, 2, 0).numpy(), r"write torch.from_numpy\(images\).permute"),
    "a list": (list, r"write torch.stack\(images\)"),
    "sizes": (lambda x: [x[0], x[1, :, :20]], "2 sizes .*resize them to one"),
}


def test_every_public_name_is_classed():
    names = {name.rpartition(".")[2] for name in public_names()}
    stages = {type(stage).__name__ for examples in EXAMPLES.values() for stage in examples}
    takes, no_pictures = {*TAKES, *stages}, {*NO_PICTURES.split()}
    assert names <= takes | no_pictures, names - takes - no_pictures
    assert not no_pictures & takes and no_pictures <= names


@pytest.mark.parametrize("call", [pytest.param(call, id=name) for name, call in (TAKES | STAGES).items()])
def test_what_is_no_picture_is_refused_with_the_fix(call):
    for name, (wrong, fix) in WRONG.items():
        with pytest.raises(ValueError, match=fix) as record:
            call(wrong(IMAGES))
        assert "\n" not in str(record.value), name
        assert ("Normalize" in str(record.value)) == (name == "normalised")


@pytest.mark.parametrize(
    "name", ["resize", "jpeg", "Compose", "solve", "evaluate", "load_encoder", "Phash", "Defended"]
)
@pytest.mark.parametrize(("wrong", "fix"), FORMS.values(), ids=FORMS)
def test_another_form_is_refused_with_the_fix(name, wrong, fix):
    refused(fix, TAKES[name], wrong(IMAGES))


def test_grey_is_refused_where_three_channels_are_needed():
    refused(r"\(N,3,H,W\).*write images.expand\(-1, 3, -1, -1\)", attacks.load_encoder("pocket"), IMAGES[:, :1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_roundings_and_overshoot_pass(dtype):
    eps = torch.finfo(dtype).eps
    ends = (IMAGES.to(dtype) * (1 + 2 * eps) - eps).to(dtype)
    assert colour.Gamma((1, 1))(ends, torch.zeros(2, 1)).isfinite().all()
    corner = torch.linspace(0, 1, 24) > 0.5  # black and white, where a resize overshoots
    sharp = transforms.resize((corner[:, None] & corner).expand(1, 3, 24, 24).to(dtype), 50, "pil_lanczos")
    assert -OVERSHOOT < sharp.min() < 0 and transforms.resize(sharp, 20).isfinite().all()


def test_a_step_has_no_second_check_of_values(monkeypatch):
    """The check is made at the outer door alone, however many steps and wrappers follow."""
    calls = []
    monkeypatch.setattr(torch.Tensor, "aminmax", lambda x, f=torch.Tensor.aminmax: calls.append(1) or f(x))
    encoder = encoders.Defended(attacks.load_encoder("pocket"), [transforms.Downscale(24)])
    rows, views = encoder(IMAGES).detach(), Compose([Affine(degrees=9), wrappers.Sometimes(Brightness(0.1))])
    counts = []
    for steps in (1, 4):
        calls.clear()
        attacks.solve(IMAGES, rows, **PARTS | {"encoder": encoder, "eot": EOT(views), "steps": steps})
        counts.append(len(calls))
    assert counts == [1, 1]


@pytest.mark.parametrize("kind", [Linf, L2, lambda eps: Grey(Linf(eps)), lambda eps: Universal(Linf(eps))])
@pytest.mark.parametrize("levels", [0.4, 0.9, 1.0, 3.0])
def test_a_perturbation_that_no_file_holds_has_a_warning(kind, levels):
    images, ball = torch.full((2, 3, 8, 8), 102 / 255), kind(levels / 255)
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        has_change = ball.quantise(torch.full((1 if ball.shared else 2, 3, 8, 8), levels / 255), images).any()
    assert bool(has_change) != bool(record)


@pytest.mark.parametrize("name", ["objective", "perturbation", "optimiser", "eot", "encoder", "adaptive"])
def test_a_class_in_place_of_an_object_is_refused(name):
    part = Adaptive if name == "adaptive" else torch.nn.Flatten if name == "encoder" else type(PARTS[name])
    with pytest.raises(ValueError, match=rf"`{name}` must be .*the class {part.__name__}: write {part.__name__}\(\)"):
        attacks.solve(IMAGES, ROWS, **PARTS | {name: part})


#: What writes a part wrongly, and the fix that the message names.
MISTAKEN = {
    "EOT(Compose([Affine(": lambda: attacks.solve(IMAGES, ROWS, **PARTS | {"eot": Affine(degrees=9)}),
    "write EOT(camera)": lambda: attacks.solve(IMAGES, ROWS, **PARTS | {"eot": Compose()}),
    "`perturbation` must be a set": lambda: attacks.solve(IMAGES, ROWS, **PARTS | {"perturbation": PGD()}),
    "`optimiser` must be one such as PGD()": lambda: attacks.solve(IMAGES, ROWS, **PARTS | {"optimiser": Linf()}),
    "write Compose([Affine(...)])": lambda: EOT(Affine),
    "write Compose([Affine(": lambda: EOT(Affine(degrees=9)),
    "got [Affine(": lambda: EOT([Affine()]),
    "write Fixed()": lambda: EOT(draws=Fixed),
    "write Affine()": lambda: Compose([Affine]),
    "`stage` must be an object": lambda: wrappers.Sometimes(Affine),
    "`stages` must be an object": lambda: wrappers.OneOf([Affine]),
    "write Linf()": lambda: Universal(Linf),
    "`inner` must be an object": lambda: Grey(Linf),
    "write Universal(Masked(...))": lambda: Masked(Universal(Linf()), torch.ones(1, 1, 24, 32)),
    "write a dict": lambda: attacks.load_encoder("timm", "a", preprocess=Preprocess(16, "pil_box", HALF, HALF)),
    'write load_encoder("torchvision", "resnet50")': lambda: attacks.load_encoder("resnet50"),
}


@pytest.mark.parametrize("fix", MISTAKEN)
def test_a_mistaken_part_is_refused_with_the_fix(fix):
    refused(re.escape(fix), MISTAKEN[fix])


@pytest.mark.parametrize(
    ("optimiser", "eot", "steps", "views", "adaptive"),
    [
        (PGD(), EOT(Compose(DEFENCE)), 6, 1, False),
        (PGD(), EOT(Compose([Affine(degrees=9)])), 255, 1, False),
        (PGD(), EOT(Compose([Affine(degrees=9)])), 256, 1, True),
        (PGD(), EOT(), 1000, 1, False),
        (PGD(), EOT(views=8), 1000, 8, False),
        (PGD(), EOT(Compose([Affine(degrees=9)]), draws=Fixed()), 1000, 4, False),
        (PGD(), EOT(Compose([Affine(degrees=9)]), draws=Antithetic(), risk=CVaR()), 256, 1, True),
        (APGD(), EOT(Compose([Affine(degrees=9)])), 1000, 4, False),
        (Square(), EOT(Compose([Affine(degrees=9)])), 1000, 4, False),
        (NES(), EOT(), 1000, 20, False),
    ],
)
def test_views_left_open_are_those_of_the_command_line(optimiser, eot, steps, views, adaptive):
    options = Options(optimiser, eot, steps=steps)
    assert options.eot.views == views and (options.adaptive is not None) == adaptive
    assert options.budget == (steps * views if adaptive else None)
