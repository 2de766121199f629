"""Any bytes as a picture file: a picture, the same each time, or an error of one line that names the file."""

import itertools
import struct
import tempfile
import zlib
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import strategies as st
from PIL import Image

from attacks.data import images
from tests.helpers.fuzzing import every_effort, hold, one_line
from tests.runtime.test_decoding import PHOTO, encode, formats, pngs, tiffs

#: Extreme values of fields, and tags of a TIFF file.
NUMBERS = (*range(5), 7, 8, 15, 16, 24, 32, *(2**k - j for k in (7, 8, 15, 16, 31, 32) for j in (1, 0)), 4096, 2**24)
TAGS = (*range(254, 300), 317, 320, 322, 323, 324, 325, 338, 339, 34675)
CHUNKS = (b"tRNS", b"PLTE", b"eXIf", b"iCCP", b"zTXt", b"iTXt", b"gAMA", b"acTL", b"fcTL", b"fdAT", b"pHYs")
SIGNATURE = b"\x89PNG\r\n\x1a\n"


@cache
def seeds():
    """Name -> a whole file: of the corpus, moving, turned, and of formats that are not read."""
    corpus = itertools.chain(pngs(), formats(), itertools.islice(tiffs(), 0, None, 9))
    files = {name: content for name, content, _ in corpus}
    photo, exif = Image.fromarray(PHOTO), Image.Exif()
    for kind in ("PNG", "GIF", "WEBP", "TIFF"):
        files[f"{kind} moving"] = encode(photo, kind, save_all=True, append_images=[photo.rotate(180)], duration=50)
    for exif[0x0112], kind in itertools.product((2, 6, 8), ("PNG", "JPEG", "WEBP", "TIFF")):
        files[f"{kind} turned {exif[0x0112]}"] = encode(photo, kind, exif=exif)
    return files | {kind: encode(photo, kind) for kind in ("PPM", "ICO")}


def damage(content, random, other):
    """A file after zero to six changes."""
    for _ in range(random.choice((1, 0, 1, 1, 2, 3, 6))):
        content = random.choice((numbers, numbers, splice, field))(content, random, other) if content else other
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


def splice(content, random, other):
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
        (image, notes), (repeat, other_notes) = read(path), read(path)
    assert notes == other_notes and all(len(note.splitlines()) == 1 for note in notes)
    if isinstance(image, str) or isinstance(repeat, str):
        assert image == repeat, "reading twice gives two results"
        return
    assert image.ndim == 3 and image.shape[0] == 3 and image.is_floating_point() and image.numel()
    assert image.shape[1] * image.shape[2] <= (Image.MAX_IMAGE_PIXELS or 2**26)
    assert image.isfinite().all() and image.min() >= 0 and image.max() <= 1
    assert image.equal(repeat), "reading twice gives two pictures"


@every_effort
def test_the_laws_hold_on_damaged_files(times):
    files = st.sampled_from([*seeds().values()])
    cases = st.builds(damage, files, st.randoms(use_true_random=False), files)
    hold(check, cases, 60, times, seconds=20, memory=3 * 2**30)  # 89 million pixels of 12 bytes, read twice


GREY = torch.full((3, 4, 5), 0.5)
#: Violations by a reader: other errors, two different results, or malformed pictures.
VIOLATIONS = [[KeyError("PATH")], [ValueError("no name")]]
VIOLATIONS += [[ValueError("PATH\nin two lines")], [ValueError("PATH MemoryError")], [ValueError("PATH"), (GREY, [])]]
VIOLATIONS += [[(GREY, []), (GREY + 0.1, [])], [(GREY, []), (GREY, ["another note"])], [(GREY, ["two\nlines"])]]
MALFORMED = (GREY * torch.nan, GREY + 1, GREY[:1], GREY.int(), torch.zeros(1).expand(3, 10_000, 10_000))
VIOLATIONS += [[(picture, [])] for picture in MALFORMED]


@pytest.mark.parametrize("answers", VIOLATIONS)
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


@pytest.mark.parametrize(("width", "height"), [(21, 65_536), (21, 2_000_000)])
def test_a_picture_of_extreme_length_is_refused_before_it_is_decoded(width, height, tmp_path):
    content = bytearray(seeds()["WEBP moving"])  # a file of 500 bytes took seconds and three gigabytes
    at = content.index(b"VP8X") + 12
    content[at : at + 6] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    (tmp_path / "picture").write_bytes(content)
    with pytest.raises(ValueError, match="65,535 pixels long"):
        images.load_image(tmp_path / "picture")
