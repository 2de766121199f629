"""A run's patch as a thing: made once from the configuration, written to placement.json, and read by print,
simulation, prediction and score."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attacks.perturbations.patch.card import SIDES, Card, card, card_words

#: The longest side of a run's pictures and of a texture, and their largest aspect ratio.
LONGEST, ASPECT = 2**14, 2**10
#: The largest coordinate of a quad's corner, in shares of its picture.
REACH = 1e3
#: What may show a patch in photographs.
MEDIA = ("paper", "screen", "cloth", "glass")
#: The width of a patch that nobody gave one, in mm.
WIDTH = 100.0


@dataclass(frozen=True)
class PhysicalPatch:
    """What of a run's patch is printed, and where it lies in the run's pictures.

    Args:
        id: on the cards of all arms, with the arm's name.
        pictures: the names of the pictures, files of `pictures/clean`, and `size` their (height, width).
        texture: its (height, width) in texels.
        quads: of each picture the corners of each placement, in shares of its width and height.
        masks: of each placement what may hide it there: see `pack_mask`; None: nothing.
        fixed: whether it lies there, not anywhere.
        shape, grey, gamut: its outline and its colours, as configured.
        width_mm: how wide it is printed; None: nobody said.
        card: whether the attack saw it with its card.
        printer: the configured printer: its colours, its medium, and its stages of wear, light and surface.
        target: what it is to be taken for; None: anything else.
    """

    id: str
    pictures: tuple[str, ...]
    size: tuple[int, int]
    texture: tuple[int, int]
    quads: tuple[tuple[Any, ...], ...]
    masks: tuple[tuple[str | None, ...], ...]
    fixed: bool = True
    shape: Any = "rectangle"
    grey: bool = False
    gamut: Any = None
    width_mm: float | None = None
    card: bool = False
    printer: Mapping[str, Any] | None = None
    target: str | None = None

    @property
    def medium(self) -> str:
        """What shows it, of `MEDIA`."""
        return MEDIA[0] if self.printer is None else str(self.printer["medium"])

    def hiding(self, row: int, place: int) -> NDArray[np.bool_] | None:
        """Which pixels (H,W) of a picture belong to what may hide a placement in it; None: nothing does."""
        bits_text = self.masks[row][place]
        if bits_text is None:
            return None
        bits = np.unpackbits(np.frombuffer(bytes.fromhex(bits_text), np.uint8))
        return np.asarray(bits[: self.size[0] * self.size[1]].reshape(self.size) == 0)

    def printed_card(self, arm: str, width: float | None = None) -> Card:
        """The card of an arm, with a patch of `width` mm, by default the run's. Raises ValueError, see `card`."""
        width = self.width_mm or WIDTH if width is None else width
        return card(width, width * self.texture[0] / self.texture[1], card_words(self.id, arm))


def pack_mask(visible: NDArray[np.bool_]) -> str:
    """Where a patch shows in a picture, (H,W), as hexadecimal text: a bit each pixel, row by row."""
    return np.packbits(visible).tobytes().hex()


def parse_physical_patch(content: Mapping[str, Any]) -> PhysicalPatch:
    """The inverse of `dataclasses.asdict`, for the untrusted `placement.json`. Raises KeyError, TypeError or
    ValueError for an invalid record."""
    values = {field.name: content[field.name] for field in fields(PhysicalPatch)}
    values |= {key: tuple(tuple(entry) for entry in values[key]) for key in ("quads", "masks")}
    values |= {key: _size(values[key]) for key in ("size", "texture")}
    patch = PhysicalPatch(**values | {"pictures": tuple(map(_name, values["pictures"]))})
    counts = [len(entry) for entry in patch.quads]
    if not counts or len(counts) != len(patch.pictures) or not all(counts):
        raise ValueError("it must name a picture or more, and one quad or more for each")
    for quad in (quad for entry in patch.quads for quad in entry):
        _check_quad(quad)
    digits = 2 * ((patch.size[0] * patch.size[1] + 7) // 8)
    valid = all(text is None or re.fullmatch(f"[0-9a-f]{{{digits}}}", text) for row in patch.masks for text in row)
    if [len(entry) for entry in patch.masks] != counts or not valid:
        raise ValueError(f"`masks` must have null or {digits} hexadecimal digits for each quad")
    kinds_by_name = dict.fromkeys(("fixed", "card", "grey"), bool) | {"printer": dict | None, "target": str | None}
    for name, kinds in kinds_by_name.items():
        if not isinstance(getattr(patch, name), kinds):
            raise ValueError(f"`{name}` is of another kind: got {getattr(patch, name)!r:.40}")
    if patch.medium not in MEDIA:
        raise ValueError(f"`printer.medium` must be one of {', '.join(MEDIA)}; got {patch.medium!r:.40}")
    width = patch.width_mm
    if width is not None and not (type(width) in (int, float) and SIDES[0] <= width <= SIDES[1]):
        raise ValueError(f"`width_mm` must lie in {SIDES[0]:g}..{SIDES[1]:g}, or be null; got {width!r:.40}")
    if not isinstance(patch.id, str) or not re.fullmatch("vp-[0-9a-f]{8}", patch.id):
        raise ValueError(f"`id` must be that on the cards, vp- and 8 digits; got {patch.id!r:.40}")
    return patch


def _name(name: Any) -> str:
    """The name of a picture, which must be that of a file: it may not lead to another folder."""
    if not isinstance(name, str) or not name.isprintable() or name in ("", ".", "..") or {"/", "\\"} & set(name):
        raise ValueError(f"a picture's name must be that of a file; got {name!r:.80}")
    return name


def _size(size: Sequence[Any]) -> tuple[int, int]:
    height, width = size
    if not all(type(side) is int and 1 <= side <= LONGEST for side in (height, width)):
        raise ValueError(f"a size must be two whole numbers of 1..{LONGEST}; got {size!r:.80}")
    if max(height, width) > ASPECT * min(height, width):
        raise ValueError(f"a size must have an aspect ratio of at most {ASPECT}; got {size!r:.80}")
    return height, width


def _check_quad(quad: Any) -> None:
    numbers = [value for corner in quad for value in corner]
    if [len(corner) for corner in quad] != [2] * 4 or not all(type(value) in (int, float) for value in numbers):
        raise ValueError(f"a quad must be four corners [x, y]; got {quad!r:.80}")
    if not all(-REACH <= value <= REACH for value in numbers):
        raise ValueError(f"a quad must lie near its picture, in shares of its sides; got {quad!r:.80}")
