"""Broken and unusual picture files: one line and exit code 1, or the picture that Pillow decodes."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from attacks.data.pictures import read_files
from attacks.run import compose
from attacks.study.data import data
from tests.helpers.sampling import mostly_slow
from tests.helpers.wrong import refused

RGB = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, depth=8, colour=2, rows=None, chunks=()):
    """A PNG with any header; `rows` are its filtered lines."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    body = zlib.compress(b"\0" * 64 if rows is None else rows)
    parts = [chunk(b"IHDR", head), *chunks, chunk(b"IDAT", body), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def encoded(kind, array=RGB, **options):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **options)
    return buffer.getvalue()


def tiff(width, height, body=b"\0", bits=8, photometric=1, compression=1):
    """A little-endian TIFF of one strip, `body`, with any header."""
    tags = {256: width, 257: height, 258: bits, 259: compression, 262: photometric, 273: 8, 277: 1}
    tags |= {278: height, 279: len(body)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return struct.pack("<2sHI", b"II", 42, 8 + len(body)) + body + struct.pack("<H", len(tags)) + entries + bytes(4)


def gif(width, height):
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\0\0\0," + struct.pack("<HHHHB", 0, 0, width, height, 0)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(mark) (w) file closefile\n"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
LARGE, UNREADABLE, SLENDER = "pixels; reduce it", "is the file whole, and a picture?", "too slender .* crop it"
#: File name -> (content, or what makes it; the error).
CONTENTS = {
    "bomb.png": (png(60_000, 60_000), LARGE),
    "bomb.gif": (gif(65_535, 65_535) + b"\x02\x02\x44\x01\x00;", LARGE),
    "bomb.tif": (tiff(2**31 - 1, 2**31 - 1), LARGE),
    "bomb.bmp": (encoded("BMP")[:18] + struct.pack("<ii", 2**30, 2**30) + encoded("BMP")[26:], LARGE),
    "just-under.png": (png(8192, 8192), UNREADABLE),
    "words.png": (lambda: png(32, 24, chunks=[chunk(b"zTXt", b"k\0\0" + zlib.compress(b"\0" * 2**27))]), UNREADABLE),
    "nothing-high.gif": (gif(8, 0) + b"\x02\x02\x44\x01\x00;", UNREADABLE),
    "wide.png": (encoded("PNG", np.zeros((2, 30_000, 3), np.uint8)), SLENDER),
    "text.png": (b"this is no picture\n" * 40, UNREADABLE),
    "drawing.png": (SVG, UNREADABLE),
    "program.png": (EPS, UNREADABLE),
    "not-a-number.tif": (encoded("TIFF", np.full((8, 8), np.nan, np.float32)), "8 or 16 bits"),
    "list-of-strange.txt": (b"../../etc/passwd\n", "etc/passwd` does not exist"),
    "a\nerror: all is well.png": (b"", r"a%0Aerror: all is well\.png` cannot be read"),
    "\x1b[2J\x1b]0;owned\x07.png": (b"", r"%1B\[2J%1B\]0;owned%07\.png` cannot be read"),
    os.fsdecode(b"\xff\xfe.png"): (b"", r"%FF%FE\.png` cannot be read"),
    "\u202egnp.exe.png": (b"", "%E2%80%AEgnp.exe.png` cannot be read"),
    f"{'a' * 251}.png": (b"", "a.png` cannot be read"),
}


@pytest.mark.parametrize("name", mostly_slow(CONTENTS, 10), ids=ascii)
def test_a_bad_picture_file_gives_a_one_line_error(tmp_path, name):
    content, reason = CONTENTS[name]
    (tmp_path / name).write_bytes(content() if callable(content) else content)
    refused(reason, read_files, tmp_path / name, 64)


#: What is at a path instead of a picture -> how it is made, its name, and the error.
PLACES = {
    "a folder of folders of nothing": (lambda p: (p / "a" / "b").mkdir(parents=True), "deep", "holds no picture"),
    "nothing": (lambda p: None, "none.png", "does not exist"),
    "nothing, below a file": (lambda p: p.write_bytes(b""), "x.png/y.png", "does not exist"),
    "a link to nothing": (lambda p: p.symlink_to("nothing"), "x.png", "does not exist"),
    "a folder with a link to nothing": (lambda p: (p.mkdir(), (p / "x.png").symlink_to("no")), "f", "does not exist"),
    "a pipe": (os.mkfifo, "x.png", "not a plain file"),
    "a pipe of paths": (os.mkfifo, "x.txt", "not a plain file"),
    "a folder with a pipe": (lambda p: (p.mkdir(), os.mkfifo(p / "x.png")), "f", "not a plain file"),
    "a device without an end": (lambda p: p.symlink_to("/dev/zero"), "x.png", "not a plain file"),
    "a name that is too long": (lambda p: None, f"{'a' * 300}.png", "does not exist"),
}


@pytest.mark.parametrize("place", mostly_slow(PLACES, 10))
def test_a_path_that_is_no_file_gives_a_one_line_error(tmp_path, place):
    make, name, reason = PLACES[place]
    make(tmp_path / name.partition("/")[0])
    refused(reason, read_files, tmp_path / name, 64)


def test_more_pictures_than_a_folder_holds_are_refused_with_its_number(tmp_path):
    (tmp_path / "a.gif").write_bytes(encoded("GIF"))
    run = compose("smoke", ["data=folder", f"data.path={tmp_path}"])
    refused("`data.count` must lie in 1..1, for there is 1 picture; got 2: set data.count=1", data, run.data)
