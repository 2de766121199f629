"""Any bytes as a picture file: a picture, the same each time, or an error of one line that names the file."""

import itertools
import struct
import tempfile
import zlib
from functools import cache
from io import BytesIO
from pathlib import Path

import pytest
import skimage.data
import torch
from hypothesis import strategies as st
from PIL import Image

from attacks.data import images
from attacks.runtime.decoding import FORMATS
from tests.helpers.fuzzing import every_effort, hold, one_line

#: Format -> modes; then name -> (format, mode, options).
MODES = {"PNG": "RGB RGBA L LA P 1 I;16", "JPEG": "RGB L CMYK", "GIF": "P L", "WEBP": "RGB RGBA", "PPM": "RGB L"}
MODES |= {"TIFF": "RGB RGBA L LA P 1 I;16 CMYK F I LAB YCbCr", "BMP": "RGB L P 1 RGBA", "ICO": "RGBA"}
SPECIAL = {
    "png-transparent": ("PNG", "P", {"transparency": 3}),
    "png-key": ("PNG", "RGB", {"transparency": (10, 20, 30)}),
    "png-palette-bits": ("PNG", "P", {"bits": 2}),
    "jpeg-progressive": ("JPEG", "RGB", {"progressive": True, "subsampling": "4:2:0"}),
    "jpeg-restart": ("JPEG", "RGB", {"restart_marker_blocks": 1, "comment": b"of a photograph"}),
    "gif-transparent": ("GIF", "P", {"transparency": 1, "interlace": 1}),
    "webp-lossless": ("WEBP", "RGBA", {"lossless": True}),
    "tiff-group4": ("TIFF", "1", {"compression": "group4"}),
    **{f"tiff-{k}": ("TIFF", "RGB", {"compression": k}) for k in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg")},
}
ANIMATED, NOT_READ = ("PNG", "GIF", "WEBP", "TIFF"), ("ppm-RGB", "ppm-L", "ico-RGBA", "tiff-F", "tiff-I")
#: Extreme values of fields, and tags of a TIFF file.
NUMBERS = (*range(5), 7, 8, 15, 16, 24, 32, *(2**k - j for k in (7, 8, 15, 16, 31, 32) for j in (1, 0)), 4096, 2**24)
TAGS = (*range(254, 300), 317, 320, 322, 323, 324, 325, 338, 339, 34675)
CHUNKS = (b"tRNS", b"PLTE", b"eXIf", b"iCCP", b"zTXt", b"iTXt", b"gAMA", b"acTL", b"fcTL", b"fdAT", b"pHYs")
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def in_mode(photo, mode):
    if mode == "I;16":
        return photo.convert("I").point(lambda value: value * 257).convert("I;16")
    return Image.frombytes("LAB", photo.size, photo.tobytes()) if mode == "LAB" else photo.convert(mode)


def file(picture, kind, **options):
    content = BytesIO()
    picture.save(content, format=kind, **options)
    return content.getvalue()


@cache
def seeds():
    """Name -> a whole file of 24 x 17 pixels."""
    photo = Image.fromarray(skimage.data.astronaut()[100:124, 200:217])
    other = Image.fromarray(skimage.data.chelsea()[100:124, 200:217])
    table = {f"{kind.lower()}-{mode}": (kind, mode, {}) for kind, modes in MODES.items() for mode in modes.split()}
    files = {name: file(in_mode(photo, mode), kind, **o) for name, (kind, mode, o) in {**table, **SPECIAL}.items()}
    for kind in ANIMATED:
        files[f"{kind.lower()}-animated"] = file(photo, kind, save_all=True, append_images=[other], duration=50)
    for orientation in (2, 6, 8):
        exif = Image.Exif()
        exif[0x0112], exif[0x010E] = orientation, "a picture"
        for kind in ("PNG", "JPEG", "WEBP", "TIFF"):
            files[f"{kind.lower()}-turned-{orientation}"] = file(photo, kind, exif=exif)
    return files


def damaged(content, random, other):
    """A file after zero to six changes."""
    for _ in range(random.choice((1, 0, 1, 1, 2, 3, 6))):
        content = random.choice((numbers, numbers, spliced, field))(content, random, other) if content else other
    return content[: 2**16]


def numbers(content, random, _=b""):
    """Replaces some numbers of one, two or four bytes, half of them in the header."""
    for _ in range(random.choice((1, 1, 2, 4, 16))):
        at = random.randrange(min(len(content), random.choice((64, len(content)))))
        content = number(content, random, at, random.choice((1, 2, 4)))
    return content


def number(content, random, at, width, values=NUMBERS):
    value = random.choice((*values, random.getrandbits(32))) % (1 << 8 * width)
    return content[:at] + value.to_bytes(width, random.choice(("little", "big"))) + content[at + width :]


def spliced(content, random, other):
    """Drops or repeats a part, or splices in the end of another file."""
    first, second = sorted(random.randrange(len(content) + 1) for _ in range(2))
    part, end = content[first:second], other[random.randrange(len(other) + 1) :]
    return content[:first] + random.choice((content[second:], 2 * part + content[second:], 20 * part, b"", end))


def field(content, random, other):
    """Changes a field of the format."""
    formats = {SIGNATURE: png_chunk, b"II*\0": tiff_entry, b"MM\0*": tiff_entry, b"\xff\xd8": jpeg_segment}
    change = next((change for start, change in formats.items() if content.startswith(start)), numbers)
    return change(content, random, other)


def png_chunk(content, random, _):
    """Changes, drops, duplicates, moves or adds a chunk, with correct checksums."""
    at, chunks = len(SIGNATURE), []
    while at + 8 <= len(content) and len(chunks) < 64:
        size = int.from_bytes(content[at : at + 4], "big")
        chunks.append((content[at + 4 : at + 8], content[at + 8 : at + 8 + size]))
        at += 12 + size
    if not chunks:
        return content
    i, place = random.randrange(len(chunks)), random.randrange(len(chunks) + 1)
    kind, body = chunks[i]
    match random.randrange(6):
        case 0:
            del chunks[i]
        case 1:
            chunks.insert(place, chunks[i])
        case 2:
            chunks.insert(place, (random.choice(CHUNKS), random.randbytes(random.choice((0, 1, 4, 26)))))
        case 3 if kind == b"IDAT":
            chunks[i] = kind, zlib.compress(random.randbytes(random.randrange(200)))
        case _ if body:
            chunks[i] = kind, numbers(body, random)
    parts = ((len(body), kind + body, zlib.crc32(kind + body)) for kind, body in chunks)
    return SIGNATURE + b"".join(struct.pack(f">I{4 + size}sI", size, part, check) for size, part, check in parts)


def tiff_entry(content, random, _):
    """Changes the tag, type, count or value of an entry of the first directory."""
    order = "little" if content.startswith(b"II") else "big"
    at = int.from_bytes(content[4:8], order)
    entries = int.from_bytes(content[at : at + 2], order)
    offset, width = random.choice(((0, 2), (2, 2), (4, 4), (8, 4), (8, 2)))
    at += 2 + 12 * random.randrange(max(1, min(entries, 64))) + offset
    return number(content, random, at, width, (*NUMBERS, *TAGS)) if at < len(content) else content


def jpeg_segment(content, random, _):
    """Changes a byte of a marker's segment or of its length."""
    markers = [i for i in range(len(content) - 4) if content[i] == 0xFF and content[i + 1] not in (0, 0xFF)]
    return number(content, random, random.choice(markers or [0]) + random.randrange(1, 12), 1)


def read(path):
    try:
        return images.load_image(path)
    except (ValueError, OSError) as error:
        one_line(error, str(path))
        assert "MemoryError" not in str(error)
        return str(error), []


def check(content):
    """The laws of a picture file with any content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.png"  # the suffix does not matter: Pillow detects the format
        path.write_bytes(content)
        (image, notes), (again, other_notes) = read(path), read(path)
    assert notes == other_notes and all(len(note.splitlines()) == 1 for note in notes)
    if isinstance(image, str) or isinstance(again, str):
        assert image == again, "reading twice gives two results"
        return
    assert image.ndim == 3 and image.shape[0] == 3 and image.is_floating_point() and image.numel()
    assert image.shape[1] * image.shape[2] <= (Image.MAX_IMAGE_PIXELS or 2**26)
    assert image.isfinite().all() and image.min() >= 0 and image.max() <= 1
    assert image.equal(again), "reading twice gives two pictures"


@every_effort
def test_the_laws_hold_on_damaged_files(times):
    whole = st.sampled_from([*seeds().values()])
    cases = st.builds(damaged, whole, st.randoms(use_true_random=False), whole)
    hold(check, cases, 60, times, seconds=20, memory=3 * 2**30)  # 89 million pixels of 12 bytes, read twice


def test_whole_files_of_every_format_are_read_and_turned(tmp_path):
    assert {name.split("-")[0].upper() for name in seeds()} >= {*FORMATS, *ANIMATED}
    for name, content in seeds().items():
        check(content)
        (tmp_path / name).write_bytes(content)
        if name in NOT_READ:
            with pytest.raises(ValueError, match="cannot be read"):
                images.load_image(tmp_path / name)
        else:
            turned = "turned" in name and not name.endswith("-2")
            assert images.load_image(tmp_path / name)[0].shape == ((3, 17, 24) if turned else (3, 24, 17)), name


GREY = torch.full((3, 4, 5), 0.5)


#: Violations by a reader: other errors, two different results, or malformed pictures.
BROKEN = [[KeyError("PATH")], [ValueError("no name")], [ValueError("PATH\nin two lines")]]
BROKEN += [[ValueError("PATH MemoryError")]]
BROKEN += [[ValueError("PATH"), (GREY, [])], [(GREY, []), (GREY + 0.1, [])], [(GREY, []), (GREY, ["another note"])]]
BROKEN += [[(GREY, ["two\nlines"])], [(GREY * torch.nan, [])], [(GREY + 1, [])], [(GREY[:1], [])], [(GREY.int(), [])]]
BROKEN += [[(torch.zeros(1).expand(3, 10_000, 10_000), [])]]


@pytest.mark.parametrize("answers", BROKEN)
def test_a_reader_that_breaks_a_law_fails_the_check(answers, monkeypatch):
    left = itertools.chain(answers, itertools.repeat(answers[-1]))

    def load(path):
        answer = next(left)
        if isinstance(answer, Exception):
            raise type(answer)(str(answer.args[0]).replace("PATH", str(path)))
        return answer

    monkeypatch.setattr(images, "load_image", load)
    with pytest.raises((AssertionError, KeyError)):
        check(b"")


@pytest.mark.parametrize(("width", "height"), [(17, 65_536), (17, 4_325_400)])
def test_a_picture_of_extreme_length_is_refused_before_it_is_decoded(width, height, tmp_path):
    content = bytearray(seeds()["webp-animated"])  # a file of 500 bytes took seconds and three gigabytes
    at = content.index(b"VP8X") + 12
    content[at : at + 6] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    (tmp_path / "picture").write_bytes(content)
    with pytest.raises(ValueError, match="65,535 pixels long"):
        images.load_image(tmp_path / "picture")
