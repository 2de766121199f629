"""A deployed preprocessing of 8-bit pictures, beside an antialiased resize of what it shows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from attacks.resizers.black_box import measure_values, open_box
from attacks.resizers.platforms import library_call
from attacks.resizers.probes import ProbeLine, Prober, fit_line

#: How the record of a run begins the name of a function, which no directory holds.
GIVEN = "given in Python: "


@dataclass(frozen=True)
class Pipeline:
    """A preprocessing of 8-bit pictures (H,W,3) of one size.

    Attributes:
        name: of a kernel; of a function, `function_name`.
        function: a picture -> what the pipeline makes of it, 8-bit (h,w,3).
        size: (h, w).
        window: rows and columns of the result that depend on the picture; the others are padding.
        box: left, top, right and bottom of the part of the picture that the window shows, in pixels.
    """

    name: str
    function: Callable[[np.ndarray], np.ndarray]
    size: tuple[int, int]
    window: tuple[slice, slice]
    box: tuple[float, float, float, float]

    def views(self, picture: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What it makes of a picture, and the same with Pillow's Lanczos in place of its resize."""
        view = self.function(picture)
        reference, (rows, columns) = view.copy(), self.window
        size = (columns.stop - columns.start, rows.stop - rows.start)
        reference[self.window] = Image.fromarray(picture).resize(size, Image.Resampling.LANCZOS, box=self.box)
        return view, reference


def kernel_pipeline(kernel: str, source: tuple[int, int], size: tuple[int, int]) -> Pipeline:
    """The library's own resize of pictures of (height, width) `source` to `size`, by the name of its kernel. Raises
    ValueError where the library is not installed."""
    window, call = (slice(0, size[0]), slice(0, size[1])), library_call(kernel)
    return Pipeline(kernel, lambda picture: call(picture, size), size, window, (0, 0, source[1], source[0]))


def function_name(function: Callable[[Any], Any]) -> str:
    """The name of a function for the record of a run."""
    kind = type(function)
    source = function if hasattr(function, "__qualname__") else kind
    return f"{GIVEN}{source.__module__}.{source.__qualname__}"


def function_pipeline(function: Callable[[Any], Any], source: tuple[int, int]) -> Pipeline:
    """A function as `viewproof audit --resizers --callable` takes it, on pictures of (height, width) `source`.

    Its values are undone to levels, and what it crops or pads is measured, by some 30 calls. Raises ValueError, in
    one line, where it takes or returns something else, is random, or fails.
    """
    box = open_box(function, source, "pipeline")
    values = measure_values(box, source)
    whole = replace(values, window=(slice(None), slice(None)))

    def to_levels(picture: np.ndarray) -> np.ndarray:
        levels = whole.levels(box(picture)).clip(0, 255)
        return np.broadcast_to(np.rint(levels), (*levels.shape[:2], 3)).astype(np.uint8)

    prober = Prober(box, values, source)
    ends = [_visible_part(fit_line(prober, axis), source[axis], values.window[axis]) for axis in (0, 1)]
    (top, bottom), (left, right) = ends
    height, width = to_levels(np.zeros((*source, 3), np.uint8)).shape[:2]
    return Pipeline(function_name(function), to_levels, (height, width), values.window, (left, top, right, bottom))


def _visible_part(line: ProbeLine, length: int, window: slice) -> tuple[float, float]:
    """The part of an axis that a window shows; the whole where less than an output pixel is missing at each end."""
    low, high = line.shift, float(line.shift + line.scale * (window.stop - window.start))
    if line.scale <= 0 or (low < line.scale and high > length - line.scale):
        return 0.0, float(length)
    return max(0.0, low), min(float(length), high)
