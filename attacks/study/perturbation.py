"""The configured perturbation: a ball with its restrictions, or a patch, and its facts for the report."""

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attacks.data.gallery import Pictures
from attacks.data.images import file_names, load_image
from attacks.data.pictures import masks_of
from attacks.data.table import TABLE, column_cells
from attacks.eot.protocols import Perturbation
from attacks.perturbations.ball import L2, Ball, Linf
from attacks.perturbations.patch.card import SIDES, card_words
from attacks.perturbations.patch.card import card as card_of
from attacks.perturbations.patch.card_raster import Surround, surround
from attacks.perturbations.patch.colour_profiles import gamut
from attacks.perturbations.patch.patch import Patch, texture_size
from attacks.perturbations.patch.physical_patch import PhysicalPatch, pack_mask
from attacks.perturbations.patch.placement import Placements
from attacks.perturbations.radii import RadiusByRow
from attacks.perturbations.sparse import L0, L1
from attacks.perturbations.subspace import Grey, LowFrequency, Masked, Smoothed
from attacks.perturbations.universal import Universal
from attacks.schema import validate as schema
from attacks.schema.groups import BallConfig, PatchConfig, PrinterConfig
from attacks.schema.validate import Run
from attacks.study.make import make
from attacks.study.plugin_parts import plugin_part
from attacks.study.printer import PLACE, place_of
from transforms import Compose, resize
from transforms.geometry import Placement
from transforms.scene import Scene
from transforms.wrappers import OnLayers

BALLS: dict[str, type[Ball]] = {"linf": Linf, "l2": L2, "l1": L1, "l0": L0}
#: Keys of `evaluate` whose sections compare several pictures at once.
ONE_SHAPE = ("layers", "deploy", "pipeline", "explain")
#: Key -> the set that it wraps around the ball, from the inside out. A switch has no argument.
WRAPPERS: dict[str, Callable[..., Any]] = {
    "grey": Grey,
    "keep": LowFrequency,
    "mask": Masked,
    "smooth": Smoothed,
    "shared": Universal,
}


def perturb(run: Run, queries: Pictures) -> Perturbation:
    """The configured perturbation for these pictures of one shape. Raises ValueError or FileNotFoundError."""
    node, images = run.perturbation, queries.images
    if isinstance(node, PatchConfig):
        return patch(node, images, patch_id(run), queries.placements)
    if node.name == "plugin":
        return make(plugin_part, node, "perturbation", group="perturbation")  # type: ignore[no-any-return]
    radii = _radii(node, queries) if node.eps == TABLE else None
    eps = radius_of(node.name, node.eps, images) if radii is None else max(radii)
    ball: Any = make(BALLS[node.name], node, "perturbation", eps=eps)
    for key, wrapper in WRAPPERS.items():
        value = getattr(node, key)
        if value is not None and value is not False:
            values = {"mask": _mask(value, queries, run)} if key == "mask" else {}
            ball = make(wrapper, node, "perturbation", inner=ball, **values)
    return ball if radii is None else RadiusByRow(ball, torch.tensor(radii, dtype=torch.float64) / eps)


def _radii(node: BallConfig, queries: Pictures) -> list[float]:
    """The radius of each picture, of its row. Raises ValueError with the line."""
    cells, radii = column_cells(queries.entries, "eps", "perturbation.eps"), list[float]()
    for entry, cell in zip(queries.entries, cells, strict=True):
        try:
            eps = radius_of(node.name, cell, queries.images)
            radii.append(make(BALLS[node.name], node, "perturbation", eps=eps).eps)
        except ValueError as error:
            raise ValueError(f"{entry.where}: {error}") from None
    return radii


def refuse_shapes(run: Run) -> None:
    """Raise ValueError for keys that need pictures of one shape where they keep their own."""
    node = run.perturbation
    is_set = {
        "perturbation=patch": isinstance(node, PatchConfig),
        "perturbation.shared=true": getattr(node, "shared", False),
        "perturbation.mask=FILE": getattr(node, "mask", None) not in (None, TABLE),
        "perturbation.eps in dB": str(getattr(node, "eps", "")).endswith("dB"),
        "attack=radius": run.attack.name == "radius",
        **{f"evaluate.{name}": bool(getattr(run.evaluate, name)) for name in ONE_SHAPE},
    }
    if run.data.size is None and (keys := [key for key, value in is_set.items() if value]):
        raise ValueError(
            f"`data.size=null` keeps the shape of every picture, and {keys[0]} needs pictures of one shape: set "
            f"data.size, or switch off {', '.join(keys)}"
        )


def keyframe_places(keyframes: int | None, queries: Pictures) -> Tensor | None:
    """Where each picture stands (N,) between the key frames of all clips: the first of clip c is c * `keyframes`, and
    those of a clip lie evenly over its rows. None without clips. Raises ValueError."""
    if keyframes is None:
        return None
    clips, lines = queries.clips, dict[str | None, str]()
    if len(clips) == len(queries.entries):
        raise ValueError(
            "`perturbation.keyframes` needs a table in data.path with several rows of one `cluster`; got "
            f"{keyframes} without: write one with `viewproof table --clips`"
        )
    for entry in (queries.entries[clip.start] for clip in clips):
        if entry.cluster in lines and entry.cluster is not None:
            raise ValueError(
                "`cluster`: the rows of a clip must follow one another, as its frames do; "
                f"{entry.where} goes on with the clip of {lines[entry.cluster]}: sort the table"
            )
        lines[entry.cluster] = entry.where
    for clip in clips:
        if len({queries.shapes[row] for row in clip}) > 1:
            raise ValueError(
                "`data.size=null`: the frames of a clip must have one shape; those from "
                f"{queries.names[clip.start]} on have several: set data.size"
            )
    steps = [torch.linspace(0, keyframes - 1, len(clip), dtype=torch.float64) for clip in clips]
    return torch.cat([at * keyframes + step for at, step in enumerate(steps)])


def radius_of(norm: str, text: str, images: Tensor) -> float:
    """The radius of a number; in L2 also of the least PSNR in dB of each picture (N,C,H,W): "28dB" is a mean square
    of 10^-2.8. Raises ValueError."""
    decibels = str(text).removesuffix("dB" if norm == "l2" else "")
    number = schema.fraction(decibels, "perturbation.eps")
    return number if decibels == str(text) else math.sqrt(images.shape[1:].numel()) * 10 ** (-number / 20)


def _mask(path: str, queries: Pictures, run: Run) -> Tensor:
    """1 where the picture at `path` is lighter than mid-grey, else 0: (1,1,H,W); of masks in a table (N,1,H,W)."""
    images = queries.images
    if path == TABLE:
        if run.perturbation.shared:
            raise ValueError(
                "`perturbation.mask=table` has a mask for each picture, and perturbation.shared=true one change for "
                "all: name one picture as the mask, or drop one of the two"
            )
        column_cells(queries.entries, "mask", "perturbation.mask")
        return masks_of(queries.entries, run.data.size)
    if not Path(path).is_file():
        raise FileNotFoundError(f"`perturbation.mask` must be table or a picture; there is none at {path!r}")
    light = load_image(path)[0].mean(0)
    if light.shape != images.shape[2:]:
        raise ValueError(
            f"`perturbation.mask` must be as large as the attacked pictures, {images.shape[3]}x{images.shape[2]}; "
            f"{path} is {light.shape[1]}x{light.shape[0]}"
        )
    return (light > 0.5).to(images)[None, None]


#: Groups of keys that change no texture.
NOT_OF_THE_PATCH: tuple[str, ...] = ("show", "tracker", "checkpoint", "workers", "shard", "overwrite", "engine")
NOT_OF_THE_PATCH += ("require", "evaluate", "sanity")
#: Coordinates at which the size of a random placement is evaluated: smallest, middle and largest.
SIZES = (0.0, 0.5, 1.0)


def patch(node: PatchConfig, images: Tensor, name: str, placements: Placements | None = None) -> Patch:
    """The configured patch for pictures (N,3,H,W), `name` its `patch_id`. Raises ValueError or FileNotFoundError."""
    size = make(texture_size, node, "perturbation")
    place = make(place_of, node, "perturbation")
    if place is not None and placements is not None:
        raise ValueError("`perturbation.place` lays the patch anywhere, and the scenes have places for it: drop one")
    quad: Any = placements if placements is not None else _corners(node.quad)
    if place is not None:
        quad = place.quad((images.shape[2], images.shape[3]))
    shape = node.shape
    with suppress(TypeError, ValueError):  # `Patch` refuses it
        shape = [tuple(map(float, corner)) for corner in shape] if isinstance(shape, list) else shape
    values: dict[str, Any] = {"size": size, "quad": quad, "start_from": _start(node.start_from, size), "shape": shape}
    surround_for = partial(make, surrounding, node, "perturbation", size=size, name=name)
    surroundings = surround_for(arm="eot")
    arms = None if surroundings is None else lambda arm: surround_for(arm=arm)
    values |= {"gamut": gamut(node.gamut), "surround": surroundings, "surround_of": arms}
    return make(Patch, node, "perturbation", **values)


def patch_id(run: Run) -> str:
    """The id of a run's patch, which stands on its cards. It depends on the configuration, because the attack sees
    the card before there is a texture: on all keys but those that may differ on another machine."""
    content = asdict(run)
    for key in NOT_OF_THE_PATCH:
        content.pop(key)
    content["data"].pop("cache", None)
    for group, key in (("data", "fit"), ("attack", "pictures")):  # unset, they change no card that is printed
        if content[group].get(key) is None:
            content[group].pop(key, None)
    return f"vp-{hashlib.sha256(json.dumps(content, default=str).encode(errors='surrogatepass')).hexdigest()[:8]}"


def surrounding(size: tuple[int, int], name: str, arm: str, width_mm: float | None, card: bool) -> Surround | None:
    """The printed card around the texture of an arm, or None. Raises ValueError without a width in millimetres."""
    if width_mm is not None and not SIDES[0] <= width_mm <= SIDES[1]:
        raise ValueError(f"`width_mm` must lie in {SIDES[0]:g}..{SIDES[1]:g} mm; got {width_mm:g}")
    if not card:
        return None
    if width_mm is None:
        raise ValueError("`card` needs `width_mm`: how wide the patch will be printed")
    picture, top, left, times = surround(card_of(width_mm, width_mm * size[0] / size[1], card_words(name, arm)), size)
    return Surround(torch.from_numpy(picture).permute(2, 0, 1)[None].float() / 255, top, left, times)


def _corners(quad: Any) -> Any:
    """One quad, or a list of several."""
    try:
        quads = quad if isinstance(quad[0][0], list | tuple) else [quad]
        nested = [[tuple(map(float, corner)) for corner in corners] for corners in quads]
        if not nested or any(len(corners) != 4 or any(len(corner) != 2 for corner in corners) for corners in nested):
            raise ValueError
    except (TypeError, ValueError, LookupError):
        raise ValueError(f"`perturbation.quad` must be four corners [x, y], or several quads; got {quad!r}") from None
    return nested if len(nested) > 1 else nested[0]


def _start(start: str, size: tuple[int, int]) -> Any:
    """ "grey" or "noise" as it is, or a picture resized to the texture's size."""
    if start in ("grey", "noise"):
        return start
    if not Path(start).is_file():
        raise FileNotFoundError(
            f"`perturbation.start_from` must be grey, noise, or a picture; there is none at {start!r}"
        )
    return resize(load_image(start)[0][None], size, "pil_bicubic").clamp(0, 1)


def physical_patch(
    node: PatchConfig, printer: PrinterConfig, perturbation: Patch, queries: Pictures, name: str, target: str | None
) -> PhysicalPatch:
    """What print, simulation and score read of a run's patch in these pictures, `name` its `patch_id`."""
    quads, mask = perturbation.corners(), perturbation.placements.mask
    masks: list[list[str | None]] = [[None] * len(row) for row in quads]
    if mask is not None:
        visible = [mask[i, : len(row)].numpy() > 0.5 for i, row in enumerate(quads)]
        masks = [[None if part.all() else pack_mask(part) for part in row] for row in visible]
    times = len(queries) if len(quads) == 1 else 1
    return PhysicalPatch(
        id=name,
        pictures=tuple(file.removesuffix(".png") for file in file_names(queries.names)),
        size=queries.shapes[0],
        texture=perturbation.size,
        quads=tuple(map(tuple, quads * times)),
        masks=tuple(map(tuple, masks * times)),
        fixed=not node.place,
        **{key: getattr(node, key) for key in ("shape", "grey", "gamut", "width_mm", "card")},
        printer=asdict(printer),
        target=target,
    )


def facts(node: PatchConfig, patch: PhysicalPatch, perturbation: Perturbation) -> dict[str, Any]:
    """The block `threat.patch` of metrics.json. The areas are shares of a picture: the mean, least and most over the
    pictures. `sheet_area` includes the card."""
    place, ranges = make(place_of, node, "perturbation"), None
    if place is not None:  # of all keys, also of those left at their defaults
        ends = place.values(torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64))
        ranges = dict(zip(PLACE, ends.T.tolist(), strict=True))
    return {
        "texture": list(patch.texture),
        "start": node.start_from,
        **{key: getattr(patch, key) for key in ("shape", "grey", "gamut", "width_mm", "card", "printer", "target")},
        "places": max(map(len, patch.quads)),
        "anywhere": ranges,
        "area": _area(perturbation.footprint(patch.size), place),
        "sheet_area": _area(perturbation.footprint(patch.size, sheet=True), place),
    }


def _area(footprint: Scene | None, place: Placement | None) -> dict[str, float] | None:
    """The share of each picture under a white `footprint`; for a `place` at its smallest, middle and largest."""
    if footprint is None:
        return None
    views, u = Compose(), torch.zeros(len(footprint.layers[0].pixels), 0)
    if place is not None:
        views, u = Compose([OnLayers((), place)]), torch.full((len(SIZES), 4), 0.5)
        u[:, 0] = torch.tensor(SIZES)
    shares = views(footprint, u)[:, 0].mean((1, 2)).double()
    mean = shares[1] if place is not None else shares.mean()
    return {"mean": float(mean), "low": float(shares.min()), "high": float(shares.max())}
