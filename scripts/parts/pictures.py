"""The pictures of the parts: a strip of five views for each coordinate of a stage, five drawn views of each preset.

`docs/conf.py` draws them into docs/parts/pictures. The arguments of the stages are those of docs/stages.yaml.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from PIL import Image
from torch import Tensor

from attacks.commands.show import PHOTO
from attacks.data.images import load_image, to_bytes
from attacks.schema.presets import read_preset
from attacks.study.pipeline import preset, stages
from transforms import Compose, Sobol, resize
from transforms.registry import STAGES
from transforms.wrappers import OneOf, Sometimes

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "stages.yaml"
#: The shorter side of the photograph and the gap between two views in pixels, the views of a strip, JPEG's quality.
SIDE, GAP, VIEWS, QUALITY = 112, 4, 5, 70
#: Where the other coordinates are: in the middle, or, where that shows no change, nearer to the upper end.
REST = (0.5, 0.8)


@dataclass(frozen=True)
class Strip:
    """Views side by side: of every pipeline at every row of `u` (n,dims). `file` has no suffix, `label` says what
    changes from view to view, with its unit, and `values` its value in each view."""

    file: str
    label: str
    values: tuple[str, ...]
    pipelines: tuple[Compose, ...]
    u: Tensor


@cache
def examples() -> dict[str, dict[str, Any]]:
    """The arguments that each stage is shown with, by its key."""
    node: Any = OmegaConf.to_container(read_preset(EXAMPLES))
    return node  # type: ignore[no-any-return]


@cache
def stage_strips(name: str) -> tuple[Strip, ...]:
    """A strip for each coordinate of a stage that varies, the others at `REST` of their range; of a stage without
    coordinates one, for the argument whose values docs/stages.yaml lists."""
    arguments = examples()[name]
    if getattr(STAGES[name], "dims", None) == 0:
        ((key, values),) = arguments.items()
        pipelines = tuple(Compose(stages({name: {key: value}}, "stages")) for value in values)
        return (Strip(f"{name}-0", f"`{key}`", tuple(map(str, values)), pipelines, torch.zeros(1, 0)),)
    stage: Any = stages({name: arguments}, "stages")[0]
    strips = []
    for i, label in enumerate(stage.names):
        u = next((u for u in _points(stage, i) if _changes(stage, u)), None)
        if u is not None:
            texts = tuple(f"{round(value, 4) + 0:.3g}" for value in stage.values(u)[:, i].tolist())
            strips.append(Strip(f"{name}-{i}", label, texts, (Compose([stage]),), u))
    return tuple(strips)


def _points(stage: Any, i: int) -> Iterator[Tensor]:
    """Points (VIEWS,dims) along the coordinate `i`."""
    for rest in REST:
        u = torch.full((VIEWS, stage.dims), rest)
        if isinstance(stage, Sometimes | OneOf) and i:
            u[:, 0] = _chooses(stage, i)
        u[:, i] = torch.linspace(0, 1 - 2**-24, VIEWS)
        yield u


def _changes(stage: Any, u: Tensor) -> bool:
    """Whether a picture shows that the middle or the last point is another than the first."""
    views = Compose([stage])(_photo(), u[[0, VIEWS // 2, -1]])
    return float((views - views[:1]).abs().max()) > 0.02


def _chooses(stage: Any, i: int) -> float:
    """The first coordinate at which a choice takes the stage that coordinate `i` belongs to; all are as likely."""
    ends = list(accumulate(part.dims for part in stage.outcomes if part is not None))
    number = next(k for k, end in enumerate(ends) if i <= end)
    return (number + 0.5) / len(stage.outcomes)


def preset_strip(name: str) -> Strip:
    """Views of a preset of `configs/transforms`; of the identity one."""
    pipeline = preset(name)
    u = Sobol()(VIEWS if pipeline.dims else 1, pipeline.dims, seed=0)
    return Strip(f"preset-{name}", "drawn views", (), (pipeline,), u)


@torch.no_grad()
def strip_views(strip: Strip) -> list[Tensor]:
    """The views (3,h,w) of a strip, of one photograph."""
    return [view for pipeline in strip.pipelines for view in pipeline(_photo(), strip.u)]


@cache
def _photo() -> Tensor:
    return resize(load_image(PHOTO)[0][None], SIDE, "pil_bicubic").clamp(0, 1)


def picture(strip: Strip) -> bytes:
    """A strip as a JPEG file; small views are enlarged pixel by pixel, and stand in the middle of their cell."""
    views = strip_views(strip)
    times = [max(1, SIDE // min(view.shape[1:])) for view in views]
    cells = [to_bytes(view).repeat(n, 0).repeat(n, 1) for view, n in zip(views, times, strict=True)]
    high, wide = (max(cell.shape[axis] for cell in cells) for axis in (0, 1))
    canvas = Image.new("RGB", (len(cells) * (wide + GAP) - GAP, high), "white")
    for i, cell in enumerate(cells):
        place = (i * (wide + GAP) + (wide - cell.shape[1]) // 2, (high - cell.shape[0]) // 2)
        canvas.paste(Image.fromarray(cell), place)
    file = BytesIO()
    canvas.save(file, "JPEG", quality=QUALITY)
    return file.getvalue()


def part_pictures() -> Iterator[tuple[str, bytes]]:
    """The name and the content of every file."""
    presets = sorted(path.stem for path in (EXAMPLES.parents[1] / "configs" / "transforms").glob("*.yaml"))
    for strip in [*(strip for name in STAGES for strip in stage_strips(name)), *map(preset_strip, presets)]:
        yield f"{strip.file}.jpg", picture(strip)
