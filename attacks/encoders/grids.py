"""The size of a picture of any aspect for an encoder that reads whole patches, as (height, width)."""

import math
from collections.abc import Callable


def fit_within(height: int, width: int, box: tuple[int, int], multiple: int) -> tuple[int, int]:
    """A picture larger than the box is shrunk to fit in it; then each side is rounded up to a whole `multiple`."""
    ratio = max(1.0, height / box[0], width / box[1])
    return _sides(height, width, multiple, lambda side: math.ceil(math.floor(side / ratio) / multiple))


def by_area(height: int, width: int, limits: tuple[int, int], multiple: int) -> tuple[int, int]:
    """Each side to the nearest `multiple`; where the number of pixels is then outside the limits (lowest, highest),
    the picture is scaled to the nearer one and its sides are rounded inwards."""
    area = round(height / multiple) * round(width / multiple) * multiple**2
    lowest, highest = limits
    if area > highest:
        ratio = math.sqrt(height * width / highest)
        return _sides(height, width, multiple, lambda side: math.floor(side / ratio / multiple))
    if area < lowest:
        ratio = math.sqrt(lowest / (height * width))
        return _sides(height, width, multiple, lambda side: math.ceil(side * ratio / multiple))
    return _sides(height, width, multiple, lambda side: round(side / multiple))


def by_patches(height: int, width: int, limit: int, multiple: int) -> tuple[int, int]:
    """The largest scale at which the sides, rounded up to whole patches of `multiple` pixels, have at most `limit`
    patches; searched by halving to 1e-5, as SigLIP2's processor does."""

    def sides(scale: float) -> tuple[int, int]:
        return _sides(height, width, multiple, lambda side: math.ceil(side * scale / multiple))

    low, high = 1e-5 / 10, 100.0
    while high - low >= 1e-5:
        middle = (low + high) / 2
        rows, columns = sides(middle)
        low, high = (middle, high) if rows * columns <= limit * multiple**2 else (low, middle)
    return sides(low)


def _sides(height: int, width: int, multiple: int, count: Callable[[int], int]) -> tuple[int, int]:
    """Both sides with `count` of them, at least one, in patches."""
    return max(1, count(height)) * multiple, max(1, count(width)) * multiple
