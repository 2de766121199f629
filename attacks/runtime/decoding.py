"""The door of picture files: a picture is read whole and in a range that is certain, or refused by name."""

import io
import itertools
import os
import re
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import numpy as np
from PIL import Image, ImageCms, UnidentifiedImageError

from attacks.runtime.extras import extra

#: Formats that Pillow may take a file for, whatever its name: left to itself it hands PostScript to Ghostscript.
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF", "AVIF")
#: Brands in the head of a HEIF file of HEVC, which a package of its own reads.
_HEVC = re.compile(rb"hei[cmsx]|hev[cmsx]")
#: Those whose frames are a film, and the most frames of one.
FILMS, MOST_FRAMES = ("GIF", "WEBP", "PNG"), 5_000
#: Limits, checked before anything is decoded. A pixel takes at most 20 bytes while it is read: 1.3 GiB a thread.
MOST_PIXELS, MOST_BYTES, MOST_SCANS = 2**26, 2**29, 100
#: The longest side: no format but PNG and TIFF has more, and 500 bytes of a moving WebP can say 17 x 4 million.
MOST_SIDE = 65_535
ORIENTATION = 0x0112  # the EXIF tag
#: What sets a picture upright, by the tag's value; `ImageOps.exif_transpose` fails where another tag is odd.
TURNS = dict(zip(range(2, 9), map(Image.Transpose, (0, 3, 1, 5, 4, 6, 2)), strict=True))
#: Chromaticities of sRGB (white, red, green, blue), and its code points in a cICP chunk.
_SRGB, _SRGB_CODE = (0.3127, 0.329, 0.64, 0.33, 0.3, 0.6, 0.15, 0.06), bytes([1, 13, 0, 1])
#: A marker of a JPEG; and data for restart intervals, unlike the zeros that libjpeg takes for missing data.
_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_ENDS = [
    bytes([first]) + Random(first).randbytes(40).replace(b"\xff", b"")
    for first in (85, 170, 106, 86, 102, 90, 89, 101, 166)
]
#: Backgrounds, of which no more bytes than a pixel has are used.
_INKS = (1, 254, 3, 250), (0, 1, 252, 5)


def decoded(path: str | Path) -> tuple[Image.Image, list[str]]:
    """The picture of a file (of several frames or pages the first), upright, 8 bits a value, RGB or RGBA.

    Returns also what was converted on the way, in words. Raises FileNotFoundError for no plain file, ValueError for
    no picture of `FORMATS`, not whole, of a range that the file does not say, or beyond the limits, in one line."""
    with _content(path := Path(path)) as (content, warning_texts):
        picture, notes = _read(content)
    notes += dict.fromkeys(printable_name(f"Pillow warns: {text}") for text in warning_texts)
    return picture, [f"{printable_name(path.name)}: {note}" for note in notes]


def is_film(path: Path) -> bool:
    """Whether a file is a GIF, WebP or PNG of several frames."""
    # What is no picture, `decoded` refuses; a pipe would be waited for.
    with suppress(Exception), Image.open(path if path.is_file() else "", formats=FILMS) as image:
        return bool(getattr(image, "is_animated", False))
    return False


def decode_film(path: Path, use: Callable[[int, Image.Image], None]) -> int:
    """Hand each frame of a film to `use`, with its number, as `decoded` has the first; the number of frames. Raises
    as `decoded` does, also for more than `MOST_FRAMES`."""
    with _content(path) as (content, _):
        _read(content)
        with Image.open(io.BytesIO(content), formats=FILMS) as film:
            frames = range(bool(film.info.get("default_image")), getattr(film, "n_frames", 1))  # a PNG's is no frame
            if len(frames) > MOST_FRAMES:
                raise ValueError(f"it has {len(frames):,} frames, more than {MOST_FRAMES:,}; cut it")
            if film.format == "GIF" and content.rstrip(b"\0")[-1:] != b";":
                raise ValueError("its end is missing")
            for number, at in enumerate(frames):
                film.seek(at)
                film.load()
                turn, maximum = TURNS.get(film.getexif().get(ORIENTATION, 1)), 65_535 if film.mode[0] == "I" else 255
                use(number, _eight_bits(film.transpose(turn) if turn else film, maximum, False, []))
    return len(frames)


@contextmanager
def _content(path: Path) -> Iterator[tuple[bytes, list[str]]]:
    """The bytes of a picture file, and the warnings while the block reads them; its errors as `decoded` has them."""
    name = printable_name(str(path))
    if not path.is_file():  # a pipe would be waited for, a device has no end
        problem = "is not a plain file" if path.exists() else f"does not exist (paths are relative to {Path.cwd()})"
        raise FileNotFoundError(f"image `{name}` {'is a folder' if path.is_dir() else problem}")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        with collect_warnings() as warning_texts:
            yield path.read_bytes(), warning_texts
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        problem = f"cannot be read: it has more than {MOST_PIXELS:,} pixels; reduce it"
        raise ValueError(f"image `{name}` {problem}") from None
    except Exception as error:  # what a broken file makes Pillow raise has no common ancestor
        problem = f"cannot be read ({_reason(error)}): is the file whole, and a picture?"
        raise ValueError(f"image `{name}` {problem}") from None


def refuse_large(image: Image.Image) -> None:
    """Raise for a picture with a side above `MOST_SIDE` or of more than `MOST_PIXELS`, before it is decoded."""
    if max(image.size) > MOST_SIDE:
        raise ValueError(f"it says that it is more than {MOST_SIDE:,} pixels long")
    if image.width * image.height > MOST_PIXELS:
        raise Image.DecompressionBombError


def printable_name(name: str) -> str:
    """A file's name as reports, tables and a terminal have it: what cannot be printed as %0A is of a line's end. Two
    names stay two, and none can end a line, move a cursor, or fail to be written as UTF-8."""
    odd = r"%(?=[0-9A-Fa-f]{2})|[^ -~]"
    return re.sub(odd, lambda m: m[0] if m[0] != "%" and m[0].isprintable() else quote(os.fsencode(m[0])), name)


def _reason(error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        return f"Pillow does not read it as any of {', '.join(FORMATS)}"
    kind = "" if isinstance(error, OSError | SyntaxError | ValueError) else f"{type(error).__name__}: "
    return printable_name(f"{kind}{' '.join(str(error).split())[:200]}")


def _read(content: bytes) -> tuple[Image.Image, list[str]]:
    notes: list[str] = []
    with Image.open(io.BytesIO(content), formats=_formats(content)) as image:
        refuse_large(image)
        padded, chunks = content, dict(_png_chunks(content)) if image.format == "PNG" else {}
        tags: Any = getattr(image, "tag_v2", None)
        if tags is not None:
            _refuse_tiff(tags, image.width * image.height, content)
        if image.mode in ("I", "F"):
            raise ValueError("pixels of 32 bits have no fixed range; save it with 8 or 16 bits")
        if image.format in ("JPEG", "MPO"):
            padded = _padded(content)
        raw, negative = str([tile.args for tile in image.tile]), tags is not None and tags[262] == 0
        _paint(image, _INKS[0])
        was_turned = image.getexif().get(ORIENTATION) in TURNS
        image.load()
        if image.format not in ("WEBP", "AVIF", "HEIF"):  # their libraries refuse missing data
            _refuse_missing(image, padded)
        turn = TURNS.get(image.getexif().get(ORIENTATION, 1))  # behind a PNG's pixels; TIFFs are upright now
        colours = _colours(image, chunks)
        if image.mode == "P" and len(chunks.get(b"PLTE", range(768))) <= 3 * int(np.asarray(image).max()):
            raise ValueError("some of its pixels have no colour in its palette")
        if image.mode in ("1", "L", "RGB") and b"tRNS" in chunks:
            _scale_key(image.info, chunks[b"IHDR"][8], chunks[b"tRNS"])
        maximum = 4095 if ";12" in raw else 65_535 if ";16" in raw and image.format != "BMP" else 255
        upright = image if turn is None else image.transpose(turn)
        picture = _eight_bits(upright, maximum, negative, notes)
        several = getattr(image, "is_animated", False)  # last, for it looks for a second frame
    notes += [f"{colours} not applied: values are taken as sRGB"] if colours else []
    notes += ["set upright as its EXIF orientation says"] if was_turned or turn is not None else []
    frames = f"the first of several frames is taken{' (all: viewproof table)' * (image.format in FILMS)}"
    notes += [frames] if several else []
    return picture, notes


def _formats(content: bytes) -> tuple[str, ...]:
    if content[4:8] == b"ftyp" and _HEVC.search(content[8 : min(256, int.from_bytes(content[:4], "big"))]):
        extra("pillow_heif").register_heif_opener()
        return ("HEIF",)
    return FORMATS


def _paint(image: Any, colour: tuple[int, ...]) -> None:
    """Give a picture that is about to be decoded a background, which stays where the file has no data. Around the
    first frame of a GIF it is the GIF's own."""
    ink = colour[: len(image.getbands())]

    def load() -> None:
        del image.load_prepare  # a circle, which would keep the pixels for a while; now it is that of the class
        image.load_prepare()
        box = image.tile[0].extents if image.format == "GIF" else (0, 0, *image.im.size)
        image.im.paste(ink if len(ink) > 1 else ink[0], box)

    image.load_prepare = load


def _refuse_missing(image: Image.Image, content: bytes) -> None:
    """Raise ValueError where pixels of a decoded file have no data, which Pillow passes over. It is decoded again, as
    JPEG `_padded`, else with another background: either leaves a whole picture as it is."""
    plain = image.format not in ("JPEG", "MPO") and image.mode in ("RGB", "RGBA")
    if plain and bytes(_INKS[0][: len(image.mode)]) not in image.tobytes():
        return
    with Image.open(io.BytesIO(content), formats=FORMATS) as second:
        _paint(second, _INKS[1])
        second.load()
        if second.tobytes() != image.tobytes():
            raise ValueError("data of some of its pixels are missing")


def _png_chunks(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The chunks of a PNG. Of its pixels and what is behind them Pillow does not compare the check sums."""
    at, kind = 8, b""
    while kind != b"IEND":
        length, kind = struct.unpack_from(">I4s", content, at)
        body = content[at + 8 : at + 8 + length]
        at += 12 + length
        if zlib.crc32(body, zlib.crc32(kind)).to_bytes(4, "big") != content[at - 4 : at]:
            raise ValueError(f"the check sum of its chunk {kind!r} is wrong")
        yield kind, body


def _padded(content: bytes) -> bytes:
    """A JPEG with `_ENDS` behind the data of each restart interval, and more such intervals behind each scan. Raises
    ValueError where scans or the end are missing, and for arithmetic coding, whose data may end anywhere."""
    at, parts, scan, scans, restarts, progressive, left = 2, [content[:2]], False, 0, 0, False, {(0, 0)}
    while (marker := _MARKER.search(content, at)) is not None and (code := marker[1][0]) != 0xD9:
        restart = 0xD0 <= code <= 0xD7
        ends = _ends(restarts, 1 if restart else len(_ENDS)) if scan else ()
        parts += [content[at : marker.start()], *ends]
        restarts, at = restarts + 1 if restart else 0, marker.end()
        if not restart:  # a segment with a length
            at, scan = at + int.from_bytes(content[at : at + 2], "big"), code == 0xDA
        parts.append(content[marker.start() : at])
        head, scans = content[marker.end() + 2 : at], scans + (code == 0xDA)
        if scans > MOST_SCANS or len(parts) > 2**22:
            raise ValueError(f"it has more than {MOST_SCANS} scans, or a million restarts")
        if 0xC9 <= code <= 0xCF and code != 0xCC:
            raise ValueError("its coding is arithmetic: whether it is whole is not certain; save it again")
        if 0xC0 <= code <= 0xC3:  # a frame: the components' numbers, of which scans give the coefficients
            progressive = code == 0xC2
            left = {(part, k) for part in head[6::3] for k in range(64 if progressive else 1)}
        if code == 0xDA and not (progressive and head[-1] & 15):
            end = head[-2] if progressive else 0
            left -= {(part, k) for part in head[1:-3:2] for k in range(head[-3] if progressive else 0, end + 1)}
    if marker is None or left:
        raise ValueError("scans of its data are missing")
    return b"".join([*parts, content[at : marker.start()], *_ends(restarts, len(_ENDS)), content[marker.start() :]])


def _ends(restarts: int, count: int) -> list[bytes]:
    """`_ENDS` behind a number of restarts, and behind each of those that follow."""
    markers = [b"", *(b"\xff" + bytes([0xD0 + (restarts + i) % 8]) for i in range(count - 1))]
    return [part for i, marker in enumerate(markers) for part in (marker, _ENDS[(restarts + i) % len(_ENDS)])]


def _refuse_tiff(tags: Any, pixels: int, content: bytes) -> None:
    """Raise ValueError for a TIFF whose values Pillow misreads, or whose missing data it passes over."""
    bits, compression = tags.get(258, (1,)), tags.get(259, 1)
    if 262 not in tags:
        raise ValueError("it does not say whether 0 is black or white (PhotometricInterpretation)")
    if set(tags.get(339, (1,))) != {1}:
        raise ValueError("values with a sign or a point have no fixed range; save it with 8 or 16 bits")
    if set(bits) != {8} and (tags.get(284, 1) == 2 or 1 in tags.get(338, ())):  # planes; colours times alpha
        raise ValueError("Pillow misreads planes or premultiplied alpha of other than 8 bits; save it without")
    compressions = (1, 7) if tags[262] == 6 else (1, 4, 5, 7, 8, 32_773, 32_946, 34_925, 50_000, 50_001)  # 6: YCbCr
    if compression not in compressions:
        raise ValueError(f"whether data of compression {compression} are whole is not certain; save RGB with LZW")
    lengths = tags.get(279, tags.get(325, ()))
    if compression == 1 and 8 * sum(lengths) < pixels * sum(bits):
        raise ValueError("data of some of its pixels are missing")
    left = max(4 * pixels, 2**20)  # tiles are larger at its edges, and may be one and the same
    for start, length in zip(tags.get(273, tags.get(324, ())), lengths, strict=True):
        strip = content[start : start + length]
        if compression == 4 and "1000000000001" not in f"{int.from_bytes(strip[-4:]):032b}":
            raise ValueError("a strip of its fax has no end")
        if compression == 7:  # abbreviated: the tables are elsewhere
            strip = bytes(tags.get(347, b"\xff\xd8\xff\xd9"))[:-2] + strip[2:]
            with Image.open(io.BytesIO(strip), formats=("JPEG",)) as image:
                left -= image.width * image.height
                if left < 0:
                    raise ValueError("its strips are larger than it is")
                _refuse_missing(image, _padded(strip))


def _scale_key(info: dict[str | tuple[int, int], Any], depth: int, key: bytes) -> None:
    """The transparent colour of a PNG, which Pillow leaves as it is while it scales the pixels to 8 bits."""
    values = [int.from_bytes(key[i : i + 2], "big") for i in range(0, len(key), 2)]
    if max(values) >= 1 << depth:
        raise ValueError(f"its transparent colour {values} is none of {depth} bits")
    if len(values) == 1:
        info["transparency"] = values[0] * 255 // ((1 << depth) - 1)


def _eight_bits(picture: Image.Image, maximum: int, negative: bool, notes: list[str]) -> Image.Image:
    """Of a picture whose values go up to `maximum`. Pillow has inverted a `negative` of 8 bits, but none of 16."""
    if picture.mode.startswith("I"):
        values, hole = np.asarray(picture, dtype=np.float64), picture.info.get("transparency")
        opaque = Image.fromarray(values != hole)
        values = (maximum - values if negative else values) / (maximum / 255)
        picture = Image.fromarray(np.rint(values).clip(0, 255).astype(np.uint8)).convert("RGB")
        if hole is not None:
            picture.putalpha(opaque)
    elif maximum > 255 and "transparency" in picture.info:  # Pillow compares its low bytes with the pixels' high ones
        raise ValueError("Pillow misreads a transparent colour of 16 bits; save it with an alpha channel")
    notes += ["more than 8 bits reduced to 8"] if maximum > 255 else []
    if picture.has_transparency_data:
        notes.append("alpha channel laid over white")
        return picture.convert("RGBA")
    notes += [f"mode {picture.mode} converted to RGB"] if picture.mode != "RGB" else []
    return picture.convert("RGB")


def _colours(image: Image.Image, chunks: dict[bytes, bytes]) -> str:
    """What a file says of its colours, where that is not sRGB; else nothing."""
    info, exif = image.info, image.getexif()
    if (code := chunks.get(b"cICP")) is not None:
        return "" if code == _SRGB_CODE else f"the colours of the code points {tuple(code)} (cICP) are"
    if info.get("icc_profile") or b"iCCP" in chunks:
        return _profile(info.get("icc_profile") or b"")
    gamma, primaries = info.get("gamma", 1 / 2.2), info.get("chromaticity", _SRGB)
    if b"sRGB" not in chunks and abs(gamma * 2.2 - 1) > 0.02:
        return f"the gamma {gamma:g} (gAMA) is"
    if b"sRGB" not in chunks and max(abs(a - b) for a, b in zip(primaries, _SRGB, strict=True)) > 0.005:
        return f"the primaries {primaries} (cHRM) are"
    other = {301, 319} & set(exif) or exif.get_ifd(0x8769).get(0xA001, 1) != 1  # curve, primaries; ColorSpace
    return "the colours, which its tags say are not those of sRGB, are" if other else ""


@lru_cache(maxsize=64)
def _profile(profile: bytes) -> str:
    """A profile, where it moves colours by more than three levels; else nothing."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        mode = {"GRAY": "L", "RGB": "RGB", "CMYK": "CMYK", "Lab": "LAB"}[source.profile.xcolor_space.strip()]
        grid = bytes(itertools.chain(*itertools.product(range(0, 256, 51), repeat=Image.getmodebands(mode))))
        probe = Image.frombytes(mode, (len(grid) // Image.getmodebands(mode), 1), grid)
        srgb = ImageCms.createProfile("sRGB")
        reference = ImageCms.profileToProfile(probe, source, srgb, ImageCms.Intent.RELATIVE_COLORIMETRIC, "RGB")
        gap = np.abs(np.asarray(reference, dtype=int) - np.asarray(probe.convert("RGB"))).max()
        name = " ".join((source.profile.profile_description or "without a name").split())
    except Exception:  # littlecms's errors, and a profile of another kind
        return "a colour profile that cannot be read is"
    return "" if gap <= 3 else printable_name(f"the colour profile `{name[:60]}`, {gap} of 255 levels from sRGB, is")


#: `warnings.catch_warnings` changes what all threads see, so it is entered once for all of them.
_LOCK, _LOCAL = threading.Lock(), threading.local()
_USERS: list[Any] = []  # the catcher, then an entry for each block at work


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """Collect the warnings of this thread while the block runs. Pillow's warning of a bomb is an error meanwhile."""
    texts: list[str] = []
    with _LOCK:
        if not _USERS:
            showwarning = warnings.showwarning
            catcher = warnings.catch_warnings()
            catcher.__enter__()
            warnings.simplefilter("always")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            warnings.showwarning = lambda message, *rest, **options: _take(message, showwarning, *rest, **options)
            _USERS.append(catcher)
        _USERS.append(texts)
    outer, _LOCAL.texts = getattr(_LOCAL, "texts", None), texts
    try:
        yield texts
    finally:
        _LOCAL.texts = outer
        with _LOCK:
            _USERS.pop()
            if len(_USERS) == 1:
                _USERS.pop().__exit__(None, None, None)


def _take(message: Warning | str, showwarning: Any, *rest: Any, **options: Any) -> None:
    texts = getattr(_LOCAL, "texts", None)
    if texts is None:
        showwarning(message, *rest, **options)
    else:
        texts.append(str(message))
