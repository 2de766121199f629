"""The laws of every family, on tiny models: what the library itself computes, an exact gradient, one row for each
picture, nothing left behind, the digest of the weights, and errors of one line."""

import hashlib

import pytest
import torch

from tests.helpers import encoder_laws as laws
from tests.helpers.tiny_models import KINDS, MODELS, VAES

#: Their libraries come with the package; all others need the extras.
PLAIN = ("torchvision", "torchscript", "torchscript traced")
#: The gradient of these differs at the kinks of a ReLU; the networks of the others have a derivative everywhere.
KINKED = ("timm test_resnet", "timm test_efficientnet", "timm levit_128s", "timm test_convnext")
KINKED += ("torchvision", "timm test_vit_relpos", "open_clip tiny-resnet", "open_clip tiny-timm")
SMOOTH = [name for name in MODELS if name not in KINKED]
QUICK = (*PLAIN, "onnx", "timm test_vit", "open_clip tiny", "diffusers plain", "transformers clip")
QUICK += ("transformers llava",)


def marks(is_plain, is_slow):
    return [pytest.mark.families] * (not is_plain) + [pytest.mark.slow] * is_slow


def each_model(names):
    models = [pytest.param(name, marks=marks(name in PLAIN, name not in QUICK)) for name in names]
    return pytest.mark.parametrize("model", models, indirect=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return {}, tmp_path_factory


@pytest.fixture
def model(cache, request):
    models, folders = cache
    if request.param not in models:
        models[request.param] = MODELS[request.param](folders.mktemp("model"))
    return models[request.param]


@each_model(MODELS)
@torch.no_grad()
def test_features_equal_the_library(model):
    """Of photographs of three aspects, where the resize rounds to 8 bits, as it does by default for transformers."""
    encoder = model.load(**({} if model.family == "transformers" else {"eight_bit": True}))
    for picture in laws.three_pictures().values():
        expected = model.library(laws.as_pil(picture))
        difference = encoder(picture.float()) - expected
        # Untrained networks have small outputs, so the bound is relative.
        assert float(expected.std()) > 0 and float(difference.abs().max()) <= 1e-4 * min(1, float(expected.std()))


@each_model(SMOOTH)
def test_the_gradient_is_exact_and_reaches_every_pixel_of_the_crop(model):
    encoder = model.load(eight_bit=False)
    if encoder.preprocess.tiles is None:
        assert laws.assert_every_pixel_counts(encoder.preprocess) >= 0.5
    laws.assert_gradient_is_exact(encoder, 40, 44)


@each_model(MODELS)
def test_a_row_follows_from_its_picture_alone_and_nothing_is_left_behind(model):
    encoder, pictures = model.load(), laws.levels(3, 3, 40, 60).float()
    state, fingerprint = torch.random.get_rng_state(), encoder.fingerprint()
    features = encoder(pictures.requires_grad_())
    features.square().sum().backward()
    assert features.dtype == torch.float32 and (pictures.grad.flatten(1).norm(dim=1) > 0).all()
    with torch.no_grad():
        single = torch.cat([encoder(picture[None]) for picture in pictures])
    torch.testing.assert_close(features, single, rtol=1e-3, atol=1e-4 * float(single.abs().max()))
    assert not any(part.training for part in encoder.modules())
    assert not any(weight.requires_grad or weight.grad is not None for weight in encoder.parameters())
    assert encoder.fingerprint() == fingerprint and torch.equal(torch.random.get_rng_state(), state)


@each_model(MODELS)
def test_the_digest_is_that_of_the_file_and_random_weights_repeat(model):
    encoder = model.load()
    assert encoder.title == f"{model.family}:{model.name}" and encoder.fingerprint()[:12] in str(encoder)
    assert encoder.origin.digest() == (model.file and hashlib.sha256(model.file.read_bytes()).hexdigest())
    if model.family not in ("torchscript", "onnx"):
        random = laws.assert_random_weights_repeat(model.family, model.name)
        assert (random.fingerprint() == encoder.fingerprint()) == (model.options.get("weights") == "random")


NO_ROW = r"torchvision:.*does not go through.*`encoder\.preprocess`"
TOKENS = r"`encoder.pool`: .*\(llava\) gives tokens for a picture, so take mean, or layers .*; got cls"


def sized(**fields):
    return {"weights": "random", "preprocess": fields}


#: Family, model (or the kind of a tiny one in a folder), options -> the error.
ERRORS = [
    ("torchvision", None, {}, r"`encoder\.model` says which"),
    ("torchvision", "resnet50", {"weights": "V3"}, r"of resnet50 .*IMAGENET1K_V1, IMAGENET1K_V2.*got 'V3'"),
    ("torchvision", "resnet18", {"weights": "gone.pth"}, "do not exist"),
    ("torchvision", "resnet18", sized(std=[0, 1, 1]), r"`encoder\.preprocess\.std` must be positive"),
    ("torchvision", "vit_b_32", sized(size=97, crop=[97, 97]), "preprocess` gives vit_b_32 a size .*indivisible"),
    ("torchvision", "vit_b_32", sized(crop=[64, 32]), NO_ROW),
    ("torchvision", "maxvit_t", sized(size=64, crop=[64, 64]), NO_ROW),
    ("torchvision", "alexnet", sized(size=[1, 1], crop=None, fit="squash"), NO_ROW),
    ("timm", "test_vitt", {}, "one of timm's .*'test_vitt'.*near it: test_vit"),
    ("timm", "test_vit.best", {}, "`encoder.model`: 'best' is no tag .*it has r160_in1k"),
    ("timm", "test_vit", {"weights": "best"}, "`encoder.weights`: 'best' is no tag"),
    ("timm", "test_vit.r160_in1k", {"weights": "best"}, "'best' is not the tag of"),
    ("timm", "test_mambaout", {}, "timm has no weights for test_mambaout"),
    ("timm", "test_vit", {"weights": "gone.safetensors"}, "gone.safetensors. do not exist"),
    ("timm", "local-dir:nowhere", {}, "there is no `nowhere/config.json`"),
    ("timm", "convit_tiny", sized(crop=[96, 96]), "takes 224x224 pixels and no others"),
    ("open_clip", "ViT-B-33", {}, "one of open_clip's .*'ViT-B-33'.*near it: ViT-B-32"),
    ("open_clip", "tiny", {"weights": "best"}, "must be pretrained, random or a file"),
    ("open_clip", "tiny-coca", {}, "open_clip has no weights for tiny-coca"),
    ("open_clip", "tiny", {"weights": "gone.safetensors"}, "gone.safetensors. do not exist"),
    ("open_clip", "local-dir:nowhere", {}, "there is no `nowhere/open_clip_config.json`"),
    ("open_clip", "tiny", sized(crop=[48, 48]), "takes 32x32 pixels and no others"),
    ("transformers", "./nowhere", {}, "is no folder here, and no name on the hub"),
    ("transformers", "/nowhere/at/all", {}, "is no folder here, and no name on the hub"),
    ("transformers", "a/b/c", {}, "is no folder here, and no name on the hub"),
    ("transformers", "vit", {"weights": "laion"}, "weights` must be pretrained, random or a file; got 'laion'"),
    ("transformers", "vit", {"pool": "max"}, "`encoder.pool` must be one of pooled, cls, mean, or null; got 'max'"),
    ("transformers", "siglip", {"pool": "cls"}, "has no class token; take pooled or mean"),
    ("transformers", "llava", {"pool": "cls"}, TOKENS),
    ("transformers", "vit", {"preprocess": {"size": 48}}, r"not take a picture of 48x48 by itself \(Input image"),
    ("diffusers", "./nowhere", {}, "no folder here, and no name on the hub"),
    ("diffusers", "plain", {"pool": "mean"}, "`pool` belongs to transformers"),
    ("diffusers", "plain", {"weights": "ema"}, "must be pretrained, random or a file; got 'ema'"),
    # without a network
    ("timm", "test_vit", {}, "timm's weights of test_vit.* could not be fetched.*encoder.weights=random"),
    ("timm", "test_vit", {"weights": "r160_in1k"}, "timm's weights of test_vit.* could not be fetched"),
    ("transformers", "nobody/nothing", {}, "could not be fetched .*give a local folder .*model=FOLDER"),
    ("diffusers", "nobody/nothing", {}, "nobody/nothing of the hub could not be fetched"),
]


@pytest.mark.parametrize(
    ("family", "name", "options", "message"),
    [pytest.param(*row, marks=marks(row[0] in PLAIN, row[0] in PLAIN and "preprocess" in row[2])) for row in ERRORS],
)
def test_an_error_has_one_line(family, name, options, message, request):
    if family != "torchvision":
        pytest.importorskip(family)
        request.getfixturevalue("offline")
    if family == "open_clip":
        request.getfixturevalue("tiny_clips")
    if name in KINDS or name in VAES:
        name = request.getfixturevalue("tiny_folder")(name)
    laws.refusal(message, name, (ValueError, FileNotFoundError), family=family, **options)
