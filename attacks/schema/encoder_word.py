"""The one word with which a command names an encoder."""

from pathlib import Path

from attacks.schema.encoder import BLACK_BOXES, ENCODERS
from attacks.schema.suggestions import closest

#: Files by their ending -> the encoder, and the key that names the file.
FILES = {".onnx": ("onnx", "model"), ".pt": ("torchscript", "model"), ".safetensors": ("pocket", "weights")}


def encoder_keys(text: str) -> dict[str, str]:
    """The keys of a run for an ENCODER. Raises ValueError for what names none."""
    path, (name, _, model) = Path(text), text.partition(":")
    if name in BLACK_BOXES:
        raise ValueError(f"`ENCODER` {name} is asked, and a ledger holds every question: use `viewproof gate --run`")
    if name in ENCODERS:
        return {"encoder": name} | ({"encoder.model": model} if model else {})
    if text and path.is_dir():
        return {"encoder": "transformers", "encoder.model": text}
    if path.suffix in FILES:
        name, key = FILES[path.suffix]
        return {"encoder": name, f"encoder.{key}": text}
    rule = f"one of {', '.join(ENCODERS)}, as torchvision:resnet50; a file ({', '.join(FILES)}); or a folder"
    raise ValueError(f"`ENCODER` must be {rule}; got {text}{closest(name, ENCODERS)}")
