"""A contact sheet: a picture under drawn views, each with its physical values.

    viewproof show --transforms camera --out sheet.png
    viewproof show --stage '{affine: {degrees: 30}}' --image mine.png --draws 8 --columns 3

`--transforms` names a preset of `configs/transforms`, or a YAML file like them; `--stage` is a mapping as a preset's
`stages`. Below each view are the values of the coordinates that vary.
"""

import argparse
from itertools import compress
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor

from attacks.data.gallery import PHOTOS
from attacks.data.images import load_image
from attacks.report.sheets import view_sheet_figure
from attacks.runtime.command_line import print_notes
from attacks.runtime.files import atomic
from attacks.schema.presets import refuse_marks
from attacks.schema.validate import refuse_code
from attacks.study.pipeline import preset, stages
from transforms import Compose, Sobol, resize
from transforms.draws import Draws, Grid, Uniform

PHOTO = PHOTOS / "astronaut.png"
SAMPLERS: dict[str, Draws] = {"sobol": Sobol(), "uniform": Uniform(), "grid": Grid()}
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}


def coordinate_labels(pipeline: Compose, u: Tensor) -> tuple[list[str], list[list[str]]]:
    """The names of the coordinates that vary over the cube, and for each row of `u` (N,dims) their values."""
    probe = pipeline.values(Sobol()(64, pipeline.dims, seed=0))
    varies = (probe != probe[:1]).any(0).tolist()
    names = list(compress(pipeline.stages[0].names if len(pipeline.stages) == 1 else pipeline.names, varies))
    return names, [[f"{value:.3g}" for value in compress(view, varies)] for view in pipeline.values(u).tolist()]


def stages_from_text(text: str) -> Compose:
    """The pipeline of a `--stage`. Raises ValueError in one line."""
    try:
        refuse_marks(text, "`--stage`")
        if not isinstance(content := yaml.safe_load(text), str | dict | list) or not content:
            rule = "must map stages to arguments, such as {affine: {degrees: 30}}"
            raise ValueError(f"`--stage` {rule}; got {text!r}")
        node: Any = OmegaConf.create(text)
        refuse_code(OmegaConf.to_container(node, resolve=False), "`--stage`")
        return Compose(stages(OmegaConf.to_container(node, resolve=True), "--stage"))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"`--stage` is not valid YAML: {error}") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--transforms", metavar="NAME", help="a preset of configs/transforms, or a YAML file")
    source.add_argument("--stage", metavar="YAML", help="stages and their arguments: '{affine: {degrees: 30}}'")
    parser.add_argument("--out", type=Path, default=Path("views.png"), help="PNG or JPEG (default: views.png)")
    parser.add_argument("--image", type=Path, default=PHOTO, help="a picture file (default: a bundled photograph)")
    parser.add_argument("--side", type=int, default=128, help="its shorter side in pixels (default: 128)")
    parser.add_argument("--draws", type=int, default=6, help="number of views (default: 6)")
    parser.add_argument("--columns", type=int, default=6, help="views in a row (default: 6)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sampler", choices=SAMPLERS, default="sobol", help="grid: draws must be k ** coordinates")


@torch.no_grad()
def run(options: argparse.Namespace) -> None:
    for name in ("draws", "columns"):
        if getattr(options, name) < 1:
            raise ValueError(f"`--{name}` must be at least 1; got {getattr(options, name)}")
    image, notes = load_image(options.image)
    print_notes(notes)
    image = resize(image[None], options.side, "pil_bicubic")[0].clamp(0, 1)
    pipeline = stages_from_text(options.stage) if options.stage is not None else preset(options.transforms)
    u = SAMPLERS[options.sampler](options.draws, pipeline.dims, seed=options.seed)
    views = list(pipeline(image[None], u))
    picture = view_sheet_figure(image, views, *coordinate_labels(pipeline, u), options.columns)
    out, suffix = options.out, options.out.suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"`--out` must end in {', '.join(FORMATS)}; got {str(out)!r}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic(out) as temporary:
        picture.save(temporary, format=FORMATS[suffix])
    print(out)
