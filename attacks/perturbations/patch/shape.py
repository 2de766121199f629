"""The shape of a patch: a rectangle, an ellipse, a circle, a polygon, or any picture.

The mask holds the exact share of each texel's area that is covered.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from attacks.runtime.decoding import decoded
from transforms.sampling.outline import Outline, covered_texels

Word = Literal["rectangle", "ellipse", "circle"]
#: A word, corners (x, y) in shares of the texture's width and height, or the path of a picture.
Shape = Word | Sequence[Sequence[float]] | str | Path

#: Largest relative difference of aspect between a picture and the texture: sizes in whole pixels are rounded.
ASPECT = 0.02
#: An outline that encloses less than this share of the texture is degenerate.
FLAT = 1e-6


def shape_alpha(shape: Shape, size: tuple[int, int]) -> Tensor | None:
    """The share of each texel that the shape covers, (1,1,h,w) float32 in [0,1], for a texture of `size` (h, w); None
    for a rectangle, which covers all. An ellipse touches all four edges; a circle is the largest that fits; a polygon
    has corners in shares of width and height; of a picture it is the alpha channel, or the lightness if there is
    none.

    Raises ValueError for an unknown word or file, an invalid outline, a picture of another aspect, or an empty one.
    """
    if isinstance(shape, str | Path) and shape not in get_args(Word):
        return _picture_mask(Path(shape), size)
    outline = shape_outline(shape, size)
    if outline is None or outline == Outline():
        return None
    return covered_texels(outline, size).float()[None, None]


def shape_outline(shape: Shape, size: tuple[int, int]) -> Outline | None:
    """The same shape as a line, for a view that cuts its edges exactly; None for a picture, which has no line."""
    height, width = size
    if isinstance(shape, str | Path):
        if shape == "rectangle":
            return Outline()
        if shape not in get_args(Word):
            return None
        side = (width, height) if shape == "ellipse" else (min(size), min(size))
        far = tuple((1 + part / length) / 2 for part, length in zip(side, (width, height), strict=True))
        return Outline(((1 - far[0], 1 - far[1]), (far[0], far[1])))
    return Outline(tuple((float(x), float(y)) for x, y in _corners(shape)))


def _corners(shape: Sequence[Sequence[float]]) -> np.ndarray:
    """The corners of a polygon (n,2), checked. Raises ValueError unless it is simple."""
    try:
        corners = np.array([[float(value) for value in corner] for corner in shape])
        fits = corners.ndim == 2 and corners.shape[1] == 2 and len(corners) >= 3
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise ValueError(
            f"`perturbation.shape` must be a word, a path, or three or more corners [[x, y], ...]; got {shape!r}"
        )
    if not bool(((corners >= 0) & (corners <= 1)).all()):
        raise ValueError(f"`perturbation.shape` must have corners from 0 to 1, not in pixels; got {corners.tolist()}")
    x, y = corners.T
    if abs(float(x @ np.roll(y, -1) - y @ np.roll(x, -1))) / 2 < FLAT:
        raise ValueError(f"`perturbation.shape` is flat, or crosses itself: it encloses no area: {corners.tolist()}")
    crossing = _crossing(corners)
    if crossing is not None:
        raise ValueError(
            f"`perturbation.shape` must not cross or touch itself: the edges from corners {crossing[0]} and "
            f"{crossing[1]} (counted from 0) do (list the corners in the order in which the outline passes them)"
        )
    return corners


def _crossing(corners: np.ndarray) -> tuple[int, int] | None:
    """Two edges that cross or touch, by the index of their first corner; None if the polygon is simple."""
    ends, following = np.roll(corners, -1, axis=0), np.roll(np.eye(len(corners), dtype=bool), 1, axis=1)
    edges, offsets = ends - corners, corners - corners[:, None]
    side = np.sign(edges[:, None, 0] * offsets[..., 1] - edges[:, None, 1] * offsets[..., 0])  # of edge i, corner j
    separation = side * np.roll(side, -1, axis=1) <= 0  # the ends of edge j do not lie on one side of edge i
    low, high = np.minimum(corners, ends), np.maximum(corners, ends)
    boxes = (np.maximum(low[:, None], low) <= np.minimum(high[:, None], high)).all(-1)
    folds = (np.roll(side, -1, axis=1) == 0) & (edges @ edges.T <= 0)  # adjacent edges share a corner
    meets = np.where(following, folds, boxes & separation & separation.T)
    meets = np.where(following.T, meets.T, meets)
    pairs = np.argwhere(np.triu(meets, 1))
    return (int(pairs[0, 0]), int(pairs[0, 1])) if len(pairs) else None


def _picture_mask(path: Path, size: tuple[int, int]) -> Tensor:
    if not path.is_file():
        raise ValueError(
            f"`perturbation.shape` must be one of {', '.join(get_args(Word))}, a list of corners [[x, y], ...], or "
            f"the path of a picture; there is no picture `{path}` in {Path.cwd()}"
        )
    try:
        picture, _ = decoded(path)
    except (ValueError, OSError) as error:
        raise ValueError(f"`perturbation.shape`: {error}") from None
    values = np.asarray(picture.getchannel("A") if picture.mode == "RGBA" else picture.convert("L"), np.float32) / 255
    (rows, columns), (height, width) = values.shape, size
    if abs(columns * height / (rows * width) - 1) > ASPECT:
        raise ValueError(
            f"`perturbation.shape`: picture `{path}` is {columns} x {rows} pixels and the texture {width} x {height}"
            ": give both the same aspect (`perturbation.size`, or another picture)"
        )
    if (rows, columns) != size:  # the mean over each texel's area, or between the pixels of a smaller picture
        kernel = Image.Resampling.BOX if rows >= height else Image.Resampling.BILINEAR
        values = np.asarray(Image.fromarray(values).resize((width, height), kernel))
    if not values.max() > 0:
        raise ValueError(f"`perturbation.shape`: picture `{path}` is transparent or black all over: it shows nothing")
    return torch.from_numpy(values.copy()).clamp(0, 1)[None, None]
