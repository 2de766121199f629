"""Libraries that optional extras of the package install, imported on first use."""

import importlib
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
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "ray": "ray",
}


def extra(module: str) -> Any:
    """Import a module of `EXTRAS`. Raises ValueError with the command that installs it."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError as error:
        install = f'pip install "viewproof[{EXTRAS[package]}]"'
        raise ValueError(f"{package} cannot be imported ({error}): {install}") from None
