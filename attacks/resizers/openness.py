"""How open a resize is to a hidden picture: its figures, and the rule that makes a verdict of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from attacks.data.gallery import PHOTOS
from attacks.data.images import load_image, to_bytes
from attacks.resizers.separable import (
    NOTHING,
    TOLERANCE,
    Call,
    Separable,
    full_axis,
    hidden_gain,
    hide_picture,
    kernel_matrices,
    psnr,
    rms,
    unread,
)
from transforms import resize
from transforms.resizing.resize import NAMES

#: The antialiased viewer: a person who sees the picture in the encoder's size.
VIEWER = "pil_lanczos"
#: Share of the target that the viewer sees of the attack: at most the first is open, at least the second is closed,
#: and between them it is hard. In the table the shares lie below 6 %, from 17 to 24 %, or above 64 %.
OPEN, CLOSED = 0.1, 0.5
#: Height and width of the encoder's picture in the table; the figures depend on the ratio alone.
SIDE = 64
RATIOS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


@dataclass(frozen=True)
class Openness:
    """The figures of one resize; None: it is not one of rows and columns, so they were not measured.

    Attributes:
        unread: share of the source pixels that it never reads (see `separable.unread`).
        gain: the largest energy that it can be given unseen, a visible shift having 1 (see `separable.hidden_gain`).
        psnr: in dB, at full size, of the smallest change that makes it show the target.
        seen: the energy of the attack after an antialiased resize to the encoder's size over that of the target
            shown outright. 1: as visible as the target itself.
        succeeds: whether the attacked 8-bit picture was resized to the target within `TOLERANCE`.
    """

    unread: float | None
    gain: float | None
    psnr: float | None
    seen: float
    succeeds: bool

    @property
    def verdict(self) -> Literal["open", "hard", "closed"]:
        if self.seen >= CLOSED:
            return "closed"
        return "open" if self.seen <= OPEN and self.succeeds else "hard"


@dataclass(frozen=True)
class VisibleExample:
    """8-bit pictures (h,w,C): the attacked one, an antialiased view of it, and what the resizer gives the encoder."""

    attacked: np.ndarray
    viewed: np.ndarray
    resized: np.ndarray


@dataclass(frozen=True)
class Row:
    """A row of the table: a kernel at a ratio."""

    kernel: str
    ratio: float
    figures: Openness
    example: VisibleExample


def measure(
    picture: np.ndarray,
    target: np.ndarray,
    resizer: Separable,
    viewer: Separable,
    call: Call,
    *,
    window: tuple[slice, slice] = (slice(None), slice(None)),
    threshold: float = NOTHING,
) -> tuple[Openness, VisibleExample]:
    """Attack `picture` (C,H,W) toward `target` (C,h,w), both in [0,1], and measure how open `resizer` is.

    Args:
        viewer: an antialiased resize to the same size and place.
        call: the resize as it is really done (see `hide_picture`).
        window: the rectangle of the source that is resized; `unread` and `gain` are of it alone.
        threshold: a smaller weight of `resizer` counts as unread.

    Raises ValueError where the picture is the target already.
    """
    clean_view = viewer(picture)
    if rms(target - clean_view) <= TOLERANCE:
        raise ValueError(
            "`--image` must differ from the target, the bundled photograph of a cat; name another picture"
        )
    changed_picture, resized = hide_picture(picture, target, resizer, call)
    attacked_view = viewer(changed_picture)
    inner = resizer.crop(window)
    figures = Openness(
        unread=unread(inner, threshold),
        gain=hidden_gain(inner, viewer.crop(window)),
        psnr=psnr(changed_picture - picture),
        seen=float(np.sum((attacked_view - clean_view) ** 2) / np.sum((target - clean_view) ** 2)),
        succeeds=rms(target - resized) <= TOLERANCE,
    )
    return figures, VisibleExample(*map(to_bytes, map(torch.from_numpy, (changed_picture, attacked_view, resized))))


def openness_table(image: Tensor, ratios: Sequence[float] = RATIOS) -> list[Row]:
    """A row for each kernel and ratio, in 8 bits: `image` (3,H,W) in [0,1] is to be resized to the bundled photograph
    of a cat. Raises ValueError for a ratio that is not above 1 and at most 16, or where `image` is that
    photograph."""
    target = target_picture((SIDE, SIDE))
    rows = []
    for ratio in ratios:
        if not 1 < ratio <= 16:
            raise ValueError(f"`--ratios` must be above 1 and at most 16 source pixels per pixel; got {ratio:g}")
        size = (round(SIDE * ratio),) * 2
        picture = crop_to(image, size)
        axis = (full_axis(size[0], SIDE), full_axis(size[1], SIDE))
        viewer = kernel_matrices(VIEWER, axis, size)
        for kernel in NAMES:

            def call(pixels: np.ndarray, kernel: str = kernel) -> np.ndarray:
                return resize(torch.from_numpy(pixels)[None], (SIDE, SIDE), kernel, eight_bit=True)[0].numpy()

            rows.append(
                Row(kernel, ratio, *measure(picture, target, kernel_matrices(kernel, axis, size), viewer, call))
            )
    return rows


def target_picture(size: tuple[int, int]) -> np.ndarray:
    """The picture that the encoder is to see, (3,h,w): the bundled photograph of a cat."""
    return crop_to(load_image(PHOTOS / "chelsea.png")[0], size)


def crop_to(image: Tensor, size: tuple[int, int]) -> np.ndarray:
    """The middle of `image` (3,H,W) in [0,1] with the aspect of `size`, antialiased to it; float64, whole 255ths."""
    scale = min(image.shape[1] / size[0], image.shape[2] / size[1])
    height, width = (max(1, round(scale * side)) for side in size)
    top, left = (image.shape[1] - height) // 2, (image.shape[2] - width) // 2
    crop = image[None, :, top : top + height, left : left + width].double()
    return resize(crop, size, VIEWER, eight_bit=True)[0].numpy()
