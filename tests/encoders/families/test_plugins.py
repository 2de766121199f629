"""Encoders of installed packages, found by their entry points, and modules given in Python."""

import sys
from functools import partial

import pytest
import torch
from torch import nn

from attacks.encoders import ImageEncoder, Preprocess, load_encoder, with_preprocess
from tests.helpers import encoder_laws as laws

refusal = partial(laws.refusal, family="plugin")
SOURCE = """
import torch
from torch import nn
from attacks.encoders import Preprocess, with_preprocess

class Means(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.drop = nn.Dropout(0.5)

    def forward(self, images):
        return self.drop(self.weight * images.mean((2, 3)))

def whole():
    return with_preprocess(Means(), Preprocess(8, "pil_bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)), name="whole")

def none():
    return 3

def broken():
    raise RuntimeError("first line\\nsecond line")
"""
POINTS = """[viewproof.encoders]
means = PACKAGE:Means
whole = PACKAGE:whole
none = PACKAGE:none
broken = PACKAGE:broken
missing = PACKAGE:missing
nowhere = PACKAGE_without:make
"""


def install(folder, monkeypatch, package):
    """A distribution of one module, as installed by pip."""
    (folder / f"{package}.py").write_text(SOURCE)
    about = folder / f"{package}-1.2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
    (about / "entry_points.txt").write_text(POINTS.replace("PACKAGE", package))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, package, raising=False)


@pytest.fixture(autouse=True)
def package(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "tiny_encoders")
    yield
    sys.modules.pop("tiny_encoders", None)


def test_a_plugin_without_preprocessing_loads():
    encoder, pictures = load_encoder("plugin", "means"), torch.rand(2, 3, 9, 7)
    assert not any(m.training for m in encoder.modules()) and not any(p.requires_grad for p in encoder.parameters())
    torch.testing.assert_close(encoder(pictures), torch.tensor([1.0, 2.0, 3.0]) * pictures.mean((2, 3)))


def test_a_plugin_with_given_preprocessing_loads():
    fields = {"size": 8, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.25, 0.5]}
    encoder, pictures = load_encoder("plugin", "means", preprocess=fields), torch.rand(2, 3, 8, 8)
    normalised = (pictures.mean((2, 3)) - 0.5) / torch.tensor([0.5, 0.25, 0.5])
    torch.testing.assert_close(encoder(pictures), torch.tensor([1.0, 2.0, 3.0]) * normalised)
    assert "plugin:means" in repr(encoder) and "tiny_encoders 1.2" in repr(encoder)
    refusal("plugin means says nothing.*`encoder.preprocess.mean`", "means", preprocess={"size": 8})


def test_a_plugin_with_its_own_preprocessing_loads():
    plain, other = load_encoder("plugin", "whole"), load_encoder("plugin", "whole", preprocess={"size": 5})
    assert (plain.preprocess.size, other.preprocess.size) == (8, 5)
    assert isinstance(other.network, type(plain.network)) and not isinstance(other.network, ImageEncoder)


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("other", r"must be the name of a plugin \(broken, means, missing, none, nowhere, whole\); got 'other'"),
        ("none", r"plugin none of tiny_encoders 1\.2 must return an nn.Module; got a int"),
        ("broken", "plugin broken of tiny_encoders 1.2 failed: RuntimeError: first line second line"),
        ("missing", "plugin missing of tiny_encoders 1.2 failed: AttributeError"),
        ("nowhere", "plugin nowhere of tiny_encoders 1.2 failed: ModuleNotFoundError"),
    ],
)
def test_failing_and_unsuitable_plugins_are_refused(name, match):
    refusal(match, name)
    assert name != "other" or "tiny_encoders" not in sys.modules, "nothing of another plugin is imported"


def test_a_name_offered_by_two_packages_is_refused(tmp_path, monkeypatch):
    (tmp_path / "more").mkdir()
    install(tmp_path / "more", monkeypatch, "other_encoders")
    refusal(r"means is offered by more than one package \(other_encoders 1.2, tiny_encoders 1.2\)", "means")


def test_plugins_take_no_weights_and_no_pool():
    refusal("`weights` is not for plugin.*'random'", "means", weights="random")
    refusal("`pool` belongs to transformers; plugin has none, got 'cls'", "means", pool="cls")


def test_with_preprocess_takes_any_module():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Softplus())
    preprocess = Preprocess(10, "pil_bicubic", (0.5, 0.4, 0.3), (0.5, 0.6, 0.7))
    mine = with_preprocess(network, preprocess, name="my network", read=lambda answer: answer.mean((2, 3)))
    assert not network.training and not any(p.requires_grad for p in network.parameters())
    pictures = torch.rand(2, 3, 30, 20)
    assert torch.equal(mine(pictures), network(preprocess(pictures)).mean((2, 3)))
    assert repr(mine).startswith("python:my network\n")
    with pytest.raises(ValueError, match="encoder python:mine must be one floating-point tensor"):
        with_preprocess(network, preprocess)(pictures)
    laws.assert_gradient_is_exact(mine)
