"""TensorBoard's event files, in `tensorboard/` of the run directory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attacks.runtime.tracking.protocol import Values, library, named, picture

if TYPE_CHECKING:
    from torch import Tensor


class TensorBoard:
    """Scalars by `arm/name`, and pictures. TensorBoard keeps no files, so of the files only pictures are shown."""

    def __init__(self, out: Path, config: Mapping[str, Any]) -> None:
        library("tensorboard", "tensorboard", "tensorboard")
        self.writer = library("torch.utils.tensorboard", "tensorboard", "tensorboard").SummaryWriter(
            str(out / "tensorboard")
        )
        said = json.dumps(config, indent=2, default=str)
        self.writer.add_text("configuration", "\n".join(f"    {line}" for line in said.splitlines()))

    def log_scalars(self, step: int, values: Values, arm: str = "") -> None:
        for name, value in named(values, arm).items():
            self.writer.add_scalar(name, value, step)

    def log_image(self, name: str, image: Tensor) -> None:
        import numpy as np

        self.writer.add_image(name, np.asarray(picture(image)), dataformats="HWC")

    def log_artifact(self, path: Path) -> None:
        if path.suffix == ".png":
            import numpy as np
            from PIL import Image

            with Image.open(path, formats=["PNG"]) as shown:
                self.writer.add_image(path.stem, np.asarray(shown.convert("RGB")), dataformats="HWC")

    def close(self, failed: bool = False) -> None:  # noqa: ARG002  TensorBoard knows no end of a run
        self.writer.close()
