"""Unusual but valid picture files are read like Pillow."""

import io
import os
import warnings
import zlib

import numpy as np
import pytest
import torch
from PIL import EpsImagePlugin, Image, ImageOps

from attacks.data.images import LONGEST_NAME, file_names, load_image, save_image, to_bytes
from attacks.data.listing import list_entries
from attacks.physical.photos import read_photo
from attacks.runtime.decoding import printable_name
from tests.run.test_bad_pictures import RGB, chunk, encoded, png, tiff

DEEP = np.random.default_rng(1).integers(0, 65536, (24, 32, 3), dtype=np.uint16)
ROWS = b"".join(b"\0" + row.tobytes() for row in RGB)
MOVING = {"save_all": True, "append_images": [Image.fromarray(np.roll(RGB, 5 * i, 1)) for i in (1, 2)]}


def encode_turned(kind, direction):
    exif = Image.Exif()
    exif[0x0112] = direction
    return encoded(kind, exif=exif)


#: Name -> the file's bytes. The oracle of all is Pillow: the first frame, set upright, over white, as 8-bit RGB.
PILLOW = {
    "a.gif": encoded("GIF", **MOVING),
    "a.webp": encoded("WEBP", lossless=True, **MOVING),
    "apng.png": encoded("PNG", **MOVING),
    "pages.tif": encoded("TIFF", **MOVING),
    "mpo.jpg": encoded("MPO", quality=95, **MOVING),
    **{
        f"turned-{direction}.{kind.lower()}": encode_turned(kind, direction)
        for kind in ("JPEG", "PNG", "WEBP", "TIFF")
        for direction in ((2, 3, 5, 6, 8) if kind == "PNG" else (5, 6))
    },
    "text-inside.png": png(32, 24, rows=ROWS, chunks=[chunk(b"tEXt", b"k\0<script>")]),
    "no-ending": encoded("PNG"),
    "jpeg-named.png": encoded("JPEG"),
}


def pillow(content):
    """The same picture computed separately, without reading frames, profiles or tags."""
    with Image.open(io.BytesIO(content)) as picture:
        upright = ImageOps.exif_transpose(picture)
        layer = np.asarray(upright.convert("RGBA"), dtype=np.float64)
    share = layer[..., 3:] / 255
    return share * layer[..., :3] + (1 - share) * 255


@pytest.mark.parametrize("name", PILLOW)
def test_pictures_equal_pillow(tmp_path, name):
    (tmp_path / name).write_bytes(PILLOW[name])
    result, notes = load_image(tmp_path / name)
    expected = torch.tensor(pillow(PILLOW[name])).permute(2, 0, 1)
    assert result.shape == expected.shape and result.dtype == torch.float32
    assert (result.double() * 255 - expected).abs().max() < 1.01
    assert all(note.isprintable() and note.startswith(f"{name}: ") for note in notes)
    frames = any(word in name for word in ("a.", "apng", "pages", "mpo")) and "alpha" not in name
    assert any("first of several" in note for note in notes) == frames
    assert any("EXIF" in note for note in notes) == name.startswith("turned")


#: EXIF orientation -> what sets a picture (3,H,W) upright.
UPRIGHT = {
    2: lambda image: image.flip(2),
    3: lambda image: image.flip(1, 2),
    4: lambda image: image.flip(1),
    5: lambda image: image.mT,
    6: lambda image: image.rot90(-1, (1, 2)),
    7: lambda image: image.flip(1, 2).mT,
    8: lambda image: image.rot90(1, (1, 2)),
}


@pytest.mark.parametrize("compression", [None, "tiff_deflate"])
@pytest.mark.parametrize("mode", ["RGB", "L", "1", "RGBA", "CMYK", "I;16"])
def test_a_tiff_on_its_side_is_the_upright_one_turned(tmp_path, mode, compression):
    source = Image.fromarray(DEEP[..., 0]) if mode == "I;16" else Image.fromarray(RGB).convert(mode)
    for direction in (1, *UPRIGHT):
        exif = Image.Exif()
        exif[0x0112] = direction
        source.save(tmp_path / f"{direction}.tif", exif=exif, **({"compression": compression} if compression else {}))
    plain, _ = load_image(tmp_path / "1.tif")
    for direction, turn in UPRIGHT.items():
        result, notes = load_image(tmp_path / f"{direction}.tif")
        assert torch.equal(result, turn(plain)), direction
        assert f"{direction}.tif: set upright as its EXIF orientation says" in notes
        assert np.array_equal(read_photo(tmp_path / f"{direction}.tif"), to_bytes(result))


def grey_tiff(values, bits, photometric, deflate=False):
    """A little-endian TIFF of grey values (H,W) of 12 bits (two values in three bytes) or 16."""
    body = values.astype("<u2").tobytes()
    if bits == 12:
        first, second = values.reshape(-1, 2).T.astype(int)
        packed = [first >> 4, (first & 15) << 4 | second >> 8, second & 255]
        body = np.stack(packed, -1).astype(np.uint8).tobytes()
    height, width = values.shape
    return tiff(width, height, zlib.compress(body) if deflate else body, bits, photometric, 8 if deflate else 1)


@pytest.mark.parametrize("deflate", [False, True])
def test_twelve_bits_are_scaled_to_the_nearest_of_eight(tmp_path, deflate):
    levels = np.arange(4096).reshape(64, 64)
    (tmp_path / "a.tif").write_bytes(grey_tiff(levels, 12, 1, deflate))
    result, notes = load_image(tmp_path / "a.tif")
    assert ((result[0] * 255).round().numpy() == np.rint(levels * (255 / 4095))).all()
    assert notes == ["a.tif: more than 8 bits reduced to 8"]


@pytest.mark.parametrize("deflate", [False, True])
def test_sixteen_bits_of_which_zero_is_white_are_a_negative(tmp_path, deflate):
    (tmp_path / "a.tif").write_bytes(grey_tiff(65535 - DEEP[..., 0], 16, 0, deflate))
    (tmp_path / "b.tif").write_bytes(grey_tiff(DEEP[..., 0], 16, 1, deflate))
    (result, notes), (expected, _) = (load_image(tmp_path / name) for name in ("a.tif", "b.tif"))
    assert torch.equal(result, expected)
    assert ((expected[0] * 255).round().numpy() == np.rint(DEEP[..., 0] / 257)).all()
    assert notes == ["a.tif: more than 8 bits reduced to 8"]


def test_shown_names_are_unique_and_printable():
    strange = ["a\nb", "a%0Ab", "a%250Ab", "a\\nb", "a\u2028b", os.fsdecode(b"a\xff"), "a\x1b[2J", "\u202eb"]
    strange += ["50%", "ä", "%zz"]
    result = [printable_name(name) for name in strange]
    assert len(set(result)) == len(result)
    assert all(name.isprintable() and name.encode() for name in result)
    assert result[-3:] == strange[-3:]


def test_file_names_are_unique_valid_and_short(tmp_path):
    names = [f"{letter * 251}.png" for letter in "ab"] + ["a/b.png", "a-b.png", "..png", "\\..\\c.png"]
    names += ["=1+1.png", f"{'ü' * 120}.png"]
    names += [f"{'a' * 240}-{i}.png" for i in range(3)]
    result = file_names(tuple(names))
    assert len(set(result)) == len(names)
    for name in result:
        assert len(name.encode()) < LONGEST_NAME + 20 and not {"/", "\\"} & set(name)
        (tmp_path / name).write_bytes(b"")
    assert len(list(tmp_path.iterdir())) == len(names)


def test_strange_file_names_are_listed_as_printable_names(tmp_path):
    for name in (b"a\n.png", b"\xff.png", b"<b>.png", b"b\\c.png"):
        (tmp_path / os.fsdecode(name)).write_bytes(encoded("PNG"))
    entries, _ = list_entries(tmp_path)
    assert {entry.name for entry in entries} == {"<b>.png", "a%0A.png", "b\\c.png", "%FF.png"}
    assert all(entry.name.isprintable() and entry.path.is_file() for entry in entries)


def test_warnings_of_pillow_are_noted(tmp_path, monkeypatch):
    def getexif(_):
        warnings.warn("Corrupt\nEXIF data", stacklevel=1)
        return Image.Exif()

    monkeypatch.setattr(Image.Image, "getexif", getexif)
    (tmp_path / "odd.png").write_bytes(encoded("PNG"))
    assert load_image(tmp_path / "odd.png")[1] == ["odd.png: Pillow warns: Corrupt%0AEXIF data"]


@pytest.mark.parametrize("name", ["a.png", "a.bmp", "a.tif"])
def test_every_level_is_read_bit_for_bit(tmp_path, name):
    image = (torch.arange(256 * 3).reshape(3, 16, 16) % 256).float() / 255
    if name == "a.png":
        save_image(tmp_path / name, image)
    else:
        Image.fromarray(to_bytes(image)).save(tmp_path / name)
    result, notes = load_image(tmp_path / name)
    assert result.dtype == torch.float32 and torch.equal(result, image) and notes == []


@pytest.mark.parametrize("offset", [-0.49, -0.1, 0.1, 0.49])
def test_values_are_rounded_not_truncated(offset):
    levels = torch.arange(1, 255).reshape(1, 2, 127).expand(3, -1, -1)
    assert np.array_equal(to_bytes((levels + offset) / 255), levels.permute(1, 2, 0).numpy())


def test_values_out_of_range_are_clamped():
    assert to_bytes(torch.tensor([-0.3, 1.3, 1.0])[:, None, None]).ravel().tolist() == [0, 255, 255]


def test_a_postscript_program_is_refused_and_not_run(tmp_path, monkeypatch):
    """Pillow would pass it to Ghostscript, whatever the file name."""
    ran = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *source, **more: ran.append(source))
    Image.new("RGB", (8, 8)).save(tmp_path / "x.eps")
    (tmp_path / "x.eps").rename(tmp_path / "x.png")
    with pytest.raises(ValueError, match=r"x\.png` cannot be read"):
        load_image(tmp_path / "x.png")
    assert not ran
