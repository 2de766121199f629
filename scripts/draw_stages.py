"""The pictures of docs/transforms.md: one small sheet for each stage of docs/transforms/stages.yaml.

python scripts/draw_stages.py docs/transforms
"""

import argparse
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from attacks.commands.show import PHOTO, save, show
from attacks.data.images import load_image
from attacks.experiment.build.pipeline import stages
from attacks.schema.presets import read
from transforms import Compose, Draws, Grid, Sobol, resize

STAGES = Path(__file__).resolve().parents[1] / "docs" / "transforms" / "stages.yaml"
#: The sheets are small, for a repository keeps every version.
SIDE, DRAWS, LINES, QUALITY = 128, 5, 6, 58


def draw(folder: Path) -> None:
    """One JPEG a stage of `STAGES` into `folder`; a stage of one coordinate at even steps."""
    image = resize(load_image(PHOTO)[0][None], SIDE, "pil_bicubic")[0].clamp(0, 1)
    node: Any = OmegaConf.to_container(read(STAGES), resolve=True)
    for stage, name in zip(stages(node, "stages"), node, strict=True):
        draws: Draws = Grid() if stage.dims == 1 else Sobol()
        u = draws(DRAWS if stage.dims else 1, stage.dims, seed=0)
        sheet = show(Compose([stage]), image, u, DRAWS, LINES)
        save(sheet, folder / f"{name}.jpg", quality=QUALITY, progressive=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the pictures go")
    draw(parser.parse_args().folder)
