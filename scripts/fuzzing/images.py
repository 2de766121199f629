"""Cases of picture files: small whole ones of every format, and what is left of them after some damage."""

from __future__ import annotations

from pathlib import Path

from hypothesis import strategies as st
from PIL import Image
from torch import Tensor

from attacks.data.images import load_image
from fuzzing.damage import damaged
from fuzzing.seeds import seeds
from fuzzing.target import Broken, Target, one_line, scratch


def check(content: bytes) -> None:
    """A file is read as a picture, the same one each time, or refused in one line that names it."""
    with scratch() as folder:
        path = folder / "case.png"  # the name says nothing: Pillow looks into the file
        path.write_bytes(content)
        first, second = _read(path), _read(path)
    if isinstance(first, str) or isinstance(second, str):
        if first != second:
            raise Broken(f"read twice, it gave {first!r} and {second!r}")
        return
    (image, notes), (again, others) = first, second
    if image.dim() != 3 or image.shape[0] != 3 or not image.is_floating_point() or not image.numel():
        raise Broken(f"a picture of {image.dtype} and shape {tuple(image.shape)}")
    if image.shape[1] * image.shape[2] > (Image.MAX_IMAGE_PIXELS or 2**26):
        raise Broken(f"a picture of {tuple(image.shape)}, beyond the limit of pixels")
    if not bool(image.isfinite().all()) or image.min() < 0 or image.max() > 1:
        raise Broken(f"values from {image.min()} to {image.max()}")
    if not image.equal(again) or notes != others:
        raise Broken("read twice, it gave two pictures")
    if any(len(note.splitlines()) != 1 for note in notes):
        raise Broken(f"a note must be one line; got {notes}")


def _read(path: Path) -> tuple[Tensor, list[str]] | str:
    try:
        return load_image(path)
    except (ValueError, OSError) as error:
        one_line(error, str(path))
        if "MemoryError" in str(error):
            raise Broken(f"too much memory: {error}") from error
        return str(error)


def _case(seed: bytes, other: bytes, number: int) -> bytes:
    return damaged(seed, number, other)


def _seeds() -> list[bytes]:
    return [*seeds().values()]


_whole = st.deferred(lambda: st.sampled_from(_seeds()))
CASES = st.builds(_case, _whole, _whole, st.integers(0, 2**32))

#: The largest picture that is allowed has 89 million pixels of 12 bytes; on the way it is held in 8 bits as well. A
#: case is read twice, so it has twice the time.
MEMORY = 3 * 2**30
TARGET = Target(
    "images", CASES, check, suffix=".bin", mutate=damaged, seeds=_seeds, memory=MEMORY, seconds=20.0, ready=_seeds
)
