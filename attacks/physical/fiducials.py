"""The black and white modules of a fiducial."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import MODULES, TAGS, Box, Tag
from attacks.runtime.extras import extra


def modules(number: int) -> NDArray[np.bool_]:
    """Tag `number` of AprilTag 36h11 as (8, 8), True where it is black: 6 x 6 of code in a black border."""
    if not 0 <= number < TAGS:
        raise ValueError(f"`number` of a tag must lie in 0..{TAGS - 1}; got {number}")
    aruco = extra("cv2").aruco
    family = aruco.getPredefinedDictionary(aruco.DICT_APRILTAG_36h11)
    return np.asarray(aruco.generateImageMarker(family, number, MODULES, borderBits=1) == 0)


def black(tag: Tag) -> tuple[Box, ...]:
    """The black parts of a tag as boxes that do not overlap: one for each run of black modules in a row."""
    side = tag.box.width / MODULES
    found = []
    for row, line in enumerate(modules(tag.number)):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], line, [False])).astype(np.int8)))
        for start, stop in edges.reshape(-1, 2).tolist():
            found.append(Box(tag.box.x + start * side, tag.box.y + row * side, (stop - start) * side, side))
    return tuple(found)
