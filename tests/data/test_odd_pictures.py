"""Unusual but valid picture files are read like Pillow."""

import io
import os
import warnings

import cv2
import numpy as np
import pytest
import torch
from PIL import Image, ImageCms, ImageOps

from attacks.data.images import LONGEST_NAME, file_names, load_image, shown
from attacks.data.listing import listed
from tests.run.test_bad_pictures import RGB, chunk, encoded, png

GREY, ALPHA = RGB[:, :, 0], RGB[:, :, 1]
DEEP = np.random.default_rng(1).integers(0, 65536, (24, 32, 3), dtype=np.uint16)
FRAMES = [Image.fromarray(np.roll(RGB, 5 * i, 1)) for i in range(3)]


def saved(kind, picture, **options):
    held = io.BytesIO()
    picture.save(held, kind, **options)
    return held.getvalue()


def animated(kind, **options):
    return saved(kind, FRAMES[0], save_all=True, append_images=FRAMES[1:], **options)


def turned(kind, direction):
    exif = Image.Exif()
    exif[0x0112] = direction
    return saved(kind, Image.fromarray(RGB), exif=exif)


def palette(**options):
    return saved("PNG", Image.fromarray(RGB).quantize(16), **options)


def profiled():
    return saved(
        "PNG", Image.fromarray(RGB), icc_profile=ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    )


#: Name -> the file's bytes. The oracle of all is Pillow: the first frame, set upright, over white, as 8-bit RGB.
PILLOW = {
    "a.gif": animated("GIF"),
    "a.webp": animated("WEBP", lossless=True),
    "apng.png": animated("PNG"),
    "pages.tif": animated("TIFF"),
    "mpo.jpg": animated("MPO", quality=95),
    "cmyk.jpg": saved("JPEG", Image.fromarray(RGB).convert("CMYK"), quality=95),
    "cmyk.tif": saved("TIFF", Image.fromarray(RGB).convert("CMYK")),
    "lab.tif": saved("TIFF", Image.fromarray(RGB).convert("LAB")),
    "palette.png": palette(),
    "palette-hole.png": palette(transparency=3),
    "palette-alpha.png": palette(transparency=bytes(range(0, 256, 16))),
    "hole.png": saved("PNG", Image.fromarray(RGB), transparency=tuple(map(int, RGB[0, 0]))),
    "grey-hole.png": saved("PNG", Image.fromarray(GREY), transparency=int(GREY[0, 0])),
    "grey-alpha.png": saved("PNG", Image.merge("LA", [Image.fromarray(GREY), Image.fromarray(ALPHA)])),
    "one-bit.png": saved("PNG", Image.fromarray(GREY > 127)),
    "one-bit.tif": saved("TIFF", Image.fromarray(GREY > 127), compression="group4"),
    "profile.png": profiled(),
    **{
        f"turned-{direction}.{kind.lower()}": turned(kind, direction)
        for kind in ("JPEG", "PNG", "WEBP", "TIFF")
        for direction in ((2, 3, 5, 6, 8) if kind == "PNG" else (5, 6))
    },
    "text-inside.png": png(
        32, 24, rows=b"".join(b"\0" + row.tobytes() for row in RGB), more=[chunk(b"tEXt", b"k\0<script>")]
    ),
    "no-ending": encoded("PNG"),
    "jpeg-named.png": encoded("JPEG"),
}


def pillow(content):
    """The same picture computed separately, without reading frames, profiles or tags."""
    with Image.open(io.BytesIO(content)) as opened:
        upright = ImageOps.exif_transpose(opened)
        if upright.mode == "LAB":
            return np.asarray(upright.convert("RGB"), dtype=np.float64)
        over = np.asarray(upright.convert("RGBA"), dtype=np.float64)
    share = over[..., 3:] / 255
    return share * over[..., :3] + (1 - share) * 255


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


@pytest.mark.parametrize("kind", ["rgb.png", "rgb.tif", "grey.png", "grey.tif", "alpha.png"])
def test_sixteen_bits_are_scaled_to_the_nearest_of_eight(tmp_path, kind):
    given = {"g": DEEP[..., 0], "r": DEEP[..., ::-1], "a": np.dstack([DEEP[..., ::-1], np.full((24, 32), 65535)])}
    cv2.imwrite(str(tmp_path / kind), given[kind[0]].astype(np.uint16))
    result, _ = load_image(tmp_path / kind)
    expected = torch.tensor(np.broadcast_to(DEEP[..., :1], DEEP.shape) / 257 if kind[0] == "g" else DEEP / 257)
    limit = 0.5 if kind[0] == "g" else 1.0  # Pillow keeps the upper eight bits of colours
    assert (result.double() * 255 - expected.permute(2, 0, 1)).abs().max() <= limit + 1e-4


def test_a_picture_of_one_pixel_is_read(tmp_path):
    (tmp_path / "dot.png").write_bytes(encoded("PNG", RGB[:1, :1]))
    result, notes = load_image(tmp_path / "dot.png")
    assert notes == [] and (result[:, 0, 0] * 255).round().tolist() == RGB[0, 0].tolist()


def test_shown_names_are_unique_and_printable():
    strange = ["a\nb", "a%0Ab", "a%250Ab", "a\\nb", "a\u2028b", os.fsdecode(b"a\xff"), "a\x1b[2J", "\u202eb"]
    strange += ["50%", "ä", "%zz"]
    result = [shown(name) for name in strange]
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
    entries, _ = listed(tmp_path)
    assert {entry.name for entry in entries} == {"<b>.png", "a%0A.png", "b\\c.png", "%FF.png"}
    assert all(entry.name.isprintable() and entry.path.is_file() for entry in entries)


def test_warnings_of_pillow_are_noted(tmp_path, monkeypatch):
    def getexif(_):
        warnings.warn("Corrupt\nEXIF data", stacklevel=1)
        return {}

    monkeypatch.setattr(Image.Image, "getexif", getexif)
    (tmp_path / "odd.png").write_bytes(encoded("PNG"))
    assert load_image(tmp_path / "odd.png")[1] == ["odd.png: Pillow warns: Corrupt%0AEXIF data"]
