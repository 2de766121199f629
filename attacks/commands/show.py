"""A contact sheet: a picture under drawn views, each with its physical values.

    viewproof show --transforms camera --out sheet.png
    viewproof show --stage '{affine: {degrees: 30}}' --image mine.png --draws 8 --columns 3

`--transforms` names a preset of `configs/transforms`, or a YAML file like them; `--stage` is a mapping as a preset's
`stages`. Below each view are the values of the coordinates that vary.
"""

import argparse
import math
from itertools import compress
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from yaml import YAMLError

from attacks.data.gallery import PHOTOS
from attacks.data.images import load_image, to_bytes
from attacks.experiment.build.pipeline import preset, stages
from attacks.runtime.command_line import print_notes
from attacks.runtime.files import atomic
from attacks.schema.presets import refuse_marks
from attacks.schema.validate import refuse_code
from transforms import Compose, Draws, Grid, Sobol, Uniform, resize

PHOTO = PHOTOS / "astronaut.png"
SAMPLERS: dict[str, Draws] = {"sobol": Sobol(), "uniform": Uniform(), "grid": Grid()}
FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}

#: In pixels: between things, the height of a letter, the least width of a view, the widest name of a coordinate.
GAP, FONT, NARROWEST, LONGEST = 6, 12, 56, 320
LEADING = FONT + 3


def labels(pipeline: Compose, u: Tensor, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """The names of the coordinates that vary over the cube, and for each row of `u` (N,dims) their values.

    A pipeline of one stage leaves that stage's name out: "angle (deg)", not "affine angle (deg)". If there are more
    than `most`, the last line says how many are left out.
    """
    probe = pipeline.values(Sobol()(64, pipeline.dims, seed=0))
    varies = (probe != probe[:1]).any(0).tolist()
    names = list(compress(pipeline.stages[0].names if len(pipeline.stages) == 1 else pipeline.names, varies))
    rows = [[f"{value:.3g}" for value in compress(view, varies)] for view in pipeline.values(u).tolist()]
    if most is not None and len(names) > most:
        more = len(names) - most + 1
        return [*names[: most - 1], f"and {more} more"], [[*row[: most - 1], ""] for row in rows]
    return names, rows


def wrapped(text: str, width: float, font: Any) -> list[str]:
    """The text in lines of at most `width` pixels, broken between words, later lines indented."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) > width:
            lines.append(f"  {word}")
        else:
            lines[-1:] = [longer]
    return lines


def sheet(
    original: Tensor, views: list[Tensor], names: list[str], values: list[list[str]], columns: int
) -> Image.Image:
    """Views (3,h,w) of any sizes in rows of `columns`, each centred in its cell with its values below; left of each
    row the names of the values, and left of the first the original."""
    font: Any = ImageFont.load_default(size=FONT)
    blocks = [wrapped(name, LONGEST, font) for name in names]
    wide = max(NARROWEST, *(view.shape[2] for view in views))
    high = max(picture.shape[1] for picture in (original, *views))
    lines = [line for block in blocks for line in block]
    head = max(original.shape[2], *(math.ceil(font.getlength(line)) for line in ["original", *lines]))
    columns = min(columns, len(views))
    row_height = high + GAP + LEADING * (1 + len(lines)) + GAP
    start = GAP + head + 2 * GAP  # of the views
    size = (start + (wide + GAP) * columns, GAP + row_height * math.ceil(len(views) / columns))
    canvas = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(canvas)

    def cell(picture: Tensor | None, left: int, top: int, width: int, title: str, below: list[list[str]]) -> None:
        if picture is not None:
            shown = Image.fromarray(to_bytes(picture))
            canvas.paste(shown, (left + (width - shown.width) // 2, top + (high - shown.height) // 2))
        top += high + GAP
        draw.text((left, top), title, fill="dimgrey", font=font)
        for i, line in enumerate(line for block in below for line in block):
            draw.text((left, top + LEADING * (1 + i)), line, fill="black", font=font)

    for i, (view, numbers) in enumerate(zip(views, values, strict=True)):
        row, column = divmod(i, columns)
        top = GAP + row * row_height
        if column == 0:
            cell(None if row else original, GAP, top, original.shape[2], "" if row else "original", blocks)
        beside = [[number, *[""] * (len(block) - 1)] for number, block in zip(numbers, blocks, strict=True)]
        cell(view, start + column * (wide + GAP), top, wide, f"view {i + 1}", beside)
    return canvas


@torch.no_grad()
def show(pipeline: Compose, image: Tensor, u: Tensor, columns: int, most: int | None = None) -> Image.Image:
    """The sheet of `image` (3,H,W) and of its views at the rows of `u` (N,dims); `most` as in `labels`."""
    return sheet(image, list(pipeline(image[None], u)), *labels(pipeline, u, most), columns)


def save(picture: Image.Image, path: Path, **options: Any) -> None:
    """Write PNG or JPEG by the suffix, whole or not at all. Raises ValueError on another suffix."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"`--out` must end in {', '.join(FORMATS)}; got {str(path)!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic(path) as temporary:
        picture.save(temporary, format=FORMATS[path.suffix.lower()], **options)


def written(text: str) -> Compose:
    """The pipeline of a `--stage`. Raises ValueError in one line."""
    try:
        refuse_marks(text, "`--stage`")
        node: Any = OmegaConf.create(text)
        refuse_code(OmegaConf.to_container(node, resolve=False), "`--stage`")
        return Compose(stages(OmegaConf.to_container(node, resolve=True), "--stage"))
    except (YAMLError, OmegaConfBaseException) as error:
        raise ValueError(f"`--stage` is not valid YAML: {error}") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
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


def run(options: argparse.Namespace) -> None:
    """Write the sheet."""
    for name in ("draws", "columns"):
        if getattr(options, name) < 1:
            raise ValueError(f"`--{name}` must be at least 1; got {getattr(options, name)}")
    image, notes = load_image(options.image)
    print_notes(notes)
    image = resize(image[None], options.side, "pil_bicubic")[0].clamp(0, 1)
    pipeline = written(options.stage) if options.stage is not None else preset(options.transforms)
    u = SAMPLERS[options.sampler](options.draws, pipeline.dims, seed=options.seed)
    save(show(pipeline, image, u, options.columns), options.out)
    print(options.out)
