"""Picture files of every kind, whole and damaged, against the values that were written and second decoders."""

import io
import itertools
import re
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import png
import pytest
import skimage.color
import skimage.data
import tifffile
from PIL import Image, ImageCms, ImageFile

import attacks
from attacks.data.images import over_white
from attacks.runtime import decoding
from attacks.runtime.decoding import decoded
from tests.helpers.wrong import refused
from tests.run.test_bad_pictures import chunk, gif, tiff
from tests.run.test_bad_pictures import png as png_of

H, W = 13, 21
PHOTO = skimage.data.astronaut()[100 : 100 + H, 200 : 200 + W]
RANDOM = np.random.default_rng(0)


def stream(write, *array, **options):
    file = io.BytesIO()
    write(file, *array, **options)
    return file.getvalue()


def white(values, high, alpha=None, is_premultiplied=False):
    """Values (H,W) or (H,W,3) of 0..most over white -> (H,W,3) of 0..255."""
    colour = np.broadcast_to(values[..., None] if values.ndim == 2 else values, (H, W, 3)) / high * 255.0
    share = np.ones((H, W, 1)) if alpha is None else alpha[..., None] / high
    return (colour if is_premultiplied else share * colour) + (1 - share) * 255


def pngs():
    """Every depth x colour type x interlace x key, as pypng writes them."""
    for (colour, depths), adam7 in itertools.product(
        {"L": (1, 2, 4, 8, 16), "RGB": (8, 16), "P": (1, 2, 4, 8), "LA": (8, 16), "RGBA": (8, 16)}.items(),
        (False, True),
    ):
        for depth, key in itertools.product(depths, (False, True) if colour in ("L", "RGB", "P") else (False,)):
            high, bands = 2**depth - 1, len(colour)
            values = RANDOM.integers(0, high + 1, (H, W, bands))
            options = {"bitdepth": depth, "greyscale": "L" in colour, "alpha": "A" in colour, "interlace": adam7}
            if colour == "P":
                palette = RANDOM.integers(0, 256, (high + 1, 3 + key))
                visible = palette[values[..., 0]]
                reference = white(visible[..., :3], 255, visible[..., 3] if key else None)
                options = {"bitdepth": depth, "palette": palette.tolist(), "interlace": adam7}
            else:
                hole = (values == values[0, 0]).all(-1)
                alpha = values[..., -1] if "A" in colour else np.where(hole, 0, high) if key else None
                reference = white(values[..., 0] if "L" in colour else values[..., :3], high, alpha)
                options["transparent"] = tuple(values[0, 0].tolist()) if key else None
                if key and bands == 1:
                    options["transparent"] = options["transparent"][0]
            content = stream(png.Writer(W, H, **options).write, values.reshape(H, -1).tolist())
            yield f"png {colour} {depth}{' key' * key}{' interlaced' * adam7}", content, reference


def tiffs():
    """Types x orders of bytes x planes x layouts, as tifffile writes them."""
    types = ("u1", "u2", "u4", "i1", "i2", "i4", "f2", "f4", "f8")
    layouts = ({}, {"rowsperstrip": 4}, {"tile": (16, 16)}, {"compression": "zlib"}, {"compression": "lzma"})
    layouts = (*layouts, {"compression": "zlib", "predictor": True, "rowsperstrip": 5}, {"bigtiff": True})
    kinds = {"minisblack": 1, "miniswhite": 1, "rgb": 3, "rgba": 4, "premultiplied": 4, "separate": 3}
    for kind, dtype, order, layout in itertools.product(kinds, types, "<>", layouts):
        if (np.dtype(dtype).kind == "f" and "predictor" in layout) or (kind != "rgb" and dtype[1] not in "12"):
            continue
        info = np.iinfo if dtype[0] != "f" else None
        high = info(dtype).max if info else 1
        values = (RANDOM.random((H, W, kinds[kind])) * high).astype(dtype)
        alpha, colour = (values[..., 3], values[..., :3]) if kinds[kind] == 4 else (None, values)
        if kind == "premultiplied":
            values[..., :3] = colour = np.minimum(colour, alpha[..., None])
        shown = high - values[..., 0] if kind == "miniswhite" else colour
        reference = white(shown, high, alpha, kind == "premultiplied")
        extra = {"rgba": "unassalpha", "premultiplied": "assocalpha"}
        options = {"extrasamples": extra[kind]} if alpha is not None else {}
        name = kind if "minis" in kind else "rgb"
        planes = {"planarconfig": "separate"} if kind == "separate" else {}
        array = np.moveaxis(values, 2, 0) if planes else values[..., 0] if "minis" in kind else values
        content = stream(tifffile.imwrite, array, photometric=name, byteorder=order, **planes, **options, **layout)
        yield f"tiff {kind} {dtype} {order} {layout}", content, reference


def encode(picture, kind, **options):
    return stream(picture.save, kind, **options)


def by_opencv(content):
    return cv2.cvtColor(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def formats():
    """The other formats, and what Pillow alone writes, with OpenCV's or the written values."""
    rgb = Image.fromarray(PHOTO)
    jpegs = {"": {}, "progressive": {"progressive": True}, "4:4:4": {"subsampling": 0}, "4:2:2": {"subsampling": 1}}
    jpegs |= {"restarts": {"restart_marker_blocks": 1}, "optimised": {"optimize": True}, "rgb": {"keep_rgb": True}}
    jpegs |= {"progressive restarts": {"progressive": True, "restart_marker_blocks": 2}, "worst": {"quality": 5}}
    for (name, options), mode in itertools.product(jpegs.items(), ("RGB", "L", "CMYK")):
        if mode == "RGB" or name != "rgb":
            content = encode(rgb.convert(mode), "JPEG", **options)
            yield f"jpeg {mode} {name}", content, by_opencv(content)
    for compression in ("raw", "packbits", "tiff_lzw", "tiff_deflate", "zstd", "lzma", "jpeg"):
        for mode in ("L", "RGB", "CMYK", "YCbCr")[: 2 if compression == "jpeg" else 4]:
            content = encode(rgb.convert(mode), "TIFF", compression=compression)
            reference = by_opencv(content) if compression == "jpeg" else np.asarray(rgb.convert(mode).convert("RGB"))
            yield f"tiff {mode} {compression}", content, reference
    bits = Image.fromarray(PHOTO[..., 0] > 127)
    for compression in ("raw", "packbits", "group3", "group4", "tiff_ccitt"):
        content = encode(bits, "TIFF", compression=compression)
        yield f"tiff 1 {compression}", content, np.asarray(bits.convert("RGB"))
    light, to_d50 = PHOTO // 2 + 64, [[0.4361, 0.3851, 0.1431], [0.2225, 0.7169, 0.0606], [0.0139, 0.0971, 0.7142]]
    linear = np.where(light < 11, light / 3294.6, ((light / 255 + 0.055) / 1.055) ** 2.4)
    lab = skimage.color.xyz2lab(linear @ np.transpose(to_d50), illuminant="D50") * [2.55, 1, 1]
    yield "tiff LAB", stream(tifffile.imwrite, lab.round().astype(int).astype(np.uint8), photometric="cielab"), light
    for lossless, mode in itertools.product((False, True), ("RGB", "RGBA")):
        content = encode(rgb.convert(mode), "WEBP", lossless=lossless)
        yield f"webp {mode} {lossless}", content, by_opencv(content)
    for interlace, hole in itertools.product((0, 1), (None, 7)):
        palette = rgb.quantize(64)
        reference = np.asarray(palette.convert("RGB")).copy()
        reference[np.asarray(palette) == hole] = 255
        options = {} if hole is None else {"transparency": hole}
        yield f"gif {interlace} {hole}", encode(palette, "GIF", interlace=interlace, **options), reference
    for mode in ("1", "L", "P", "RGB", "RGBA"):
        picture = rgb.quantize(16) if mode == "P" else rgb.convert(mode)
        yield f"bmp {mode}", encode(picture, "BMP"), np.asarray(picture.convert("RGB"))


def damages(kind, content):
    """A file cut at every twentieth, with and without a valid end, and with something behind its end."""
    shares = range(1, 20)
    yield from ((f"cut {share}/20", content[: len(content) * share // 20]) for share in shares)
    for byte in range(1, 8):
        yield f"cut by {byte} bytes", content[:-byte]
    if kind == "png":
        at = content.index(b"IDAT") - 4
        stream = content[at + 8 : at + 8 + int.from_bytes(content[at : at + 4], "big")]
        rows = zlib.decompress(stream)
        for share in shares:
            body = zlib.compress(rows[: len(rows) * share // 20])
            yield f"rows {share}/20", content[:at] + chunk(b"IDAT", body) + chunk(b"IEND", b"")
            part = chunk(b"IDAT", stream[: len(stream) * share // 20])
            yield f"data {share}/20", content[:at] + part + content[-12:]
        yield "more rows", content[:at] + chunk(b"IDAT", zlib.compress(rows + rows)) + chunk(b"IEND", b"")
        yield "two parts", content[:at] + chunk(b"IDAT", stream[:9]) + chunk(b"IDAT", stream[9:]) + content[-12:]
        yield "check sum", content[: at + 9] + b"\1" + content[at + 10 :]
    if kind == "jpeg":
        data = content.index(b"\xff\xda") + 10
        ends = {data + (len(content) - 2 - data) * share // 20 for share in shares}
        ends |= {len(content) - k for k in range(3, 9)}
        ends |= {at for at in range(len(content) - 2) if content[at] == 255 and content[at + 1] not in (0, 255)}
        yield from ((f"ended at {end}", content[:end] + b"\xff\xd9") for end in sorted(ends))
    if kind == "gif":
        at = content.index(b",\0\0\0\0") + 11  # the length of the first part of its data
        for size in range(1, content[at], 9):
            yield f"part of {size}", content[:at] + bytes([size]) + content[at + 1 : at + 1 + size] + b"\0;"
    if kind == "tiff":
        for match in re.finditer(
            rb"\x17\x01[\x03\x04]\0\x01\0\0\0|\x01\x17\0[\x03\x04]\0\0\0\x01", content
        ):  # one strip's length
            for share in range(0, 20, 3):  # of less than a strip
                order, at = ("little" if match[0][0] == 0x17 else "big"), match.end()
                size = 2 if 3 in match[0][2:4] else 4
                length = int.from_bytes(content[at : at + size], order) * share // 20
                yield f"strip {share}/20", content[:at] + length.to_bytes(size, order) + content[at + size :]
    yield "behind its end", content + b"garbage"
    yield "twice", content + content


def levels(path, content, reference, block=0):
    """How many levels of 255 a file's picture is apart from what is meant; the refusal of one that is not read.
    Of the last `block` x `block` pixels, in the lower right corner of a grid, nothing is asked."""
    path.write_bytes(content)
    try:
        picture = over_white(decoded(path)[0])
    except ValueError as error:
        assert str(path) in str(error) and "\n" not in str(error)
        return str(error)
    if picture.size != (W, H):
        return 255.0
    difference = np.abs(np.asarray(picture, float) - reference)
    if block:
        difference[(H - 1) // block * block :, (W - 1) // block * block :] = 0
    return float(difference.max())


#: Whole files that are refused, and the reason: Pillow has no mode for them, misreads them, or would guess the range.
REFUSAL_PATTERN = "tiff [a-z]+ [uif][1-8] .|tiff 1 (group3|tiff_ccitt)|tiff YCbCr (?!raw)|png RGB 16 key"


def test_whole_files_of_every_kind_are_what_was_written_or_refused(tmp_path):
    results = {name: levels(tmp_path / "a", *rest) for name, *rest in itertools.chain(pngs(), tiffs(), formats())}
    refusals = {name for name, result in results.items() if isinstance(result, str)}
    assert not {name: result for name, result in results.items() if name not in refusals and not result <= 2.01}
    assert not [name for name in refusals if not re.match(REFUSAL_PATTERN, name)]
    assert not [name for name in refusals if re.match(r"tiff (minisblack|rgb|rgba) u[12] <|tiff separate u1 <", name)]
    assert len(results) > 500 and len(refusals) < 0.8 * len(results)


@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.slow), 12])
def test_damaged_files_are_the_whole_picture_or_refused(tmp_path, share):
    """Where a JPEG lacks at most its last eight bytes, its last block may differ."""
    wrong, count = {}, itertools.count()
    for name, content, reference in itertools.islice(itertools.chain(pngs(), formats(), tiffs()), 0, None, share):
        kind = name.split()[0]
        if isinstance(levels(tmp_path / "a", content, reference), str):
            continue
        for harm, bad_content in damages(kind, content):
            is_short = kind == "jpeg" and harm.startswith("ended") and len(content) - len(bad_content) <= 8
            result = levels(tmp_path / "a", bad_content, reference, 16 if is_short else 0)
            next(count)
            if not isinstance(result, str) and result > 2.01:
                wrong[f"{name}, {harm}"] = result
    assert not wrong and next(count) > 300


def with_primaries(profile, columns):
    """An RGB profile with other primaries."""
    for tag, xyz in zip((b"rXYZ", b"gXYZ", b"bXYZ"), columns, strict=True):
        at = int.from_bytes(profile[(at := profile.index(tag)) + 4 : at + 8], "big") + 8
        profile = profile[:at] + struct.pack(">3i", *(round(value * 65536) for value in xyz)) + profile[at + 12 :]
    return profile


SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
P3 = with_primaries(SRGB, ((0.5151, 0.2412, -0.0011), (0.292, 0.6922, 0.0419), (0.1571, 0.0666, 0.7841)))
WIDE, NARROW = (
    struct.pack(">8I", 31270, 32900, *rest)
    for rest in ((68000, 32000, 26500, 69000, 15000, 6000), (64000, 33000, 30000, 60000, 15000, 6000))
)
LINEAR, USUAL, CICP = struct.pack(">I", 100_000), struct.pack(">I", 45_455), {b"cICP": bytes([1, 13, 0, 1])}
SRGB_ICC, P3_ICC, NO_ICC = ({b"iCCP": b"a\0\0" + zlib.compress(content)} for content in (SRGB, P3, b"?"))
#: Chunks of a PNG that say that its colours are those of sRGB, and that they are not.
TAGS = {True: [{}, {b"sRGB": b"\0"}, {b"gAMA": USUAL}, {b"cHRM": NARROW}, {b"gAMA": LINEAR, b"sRGB": b"\0"}]}
TAGS[True] += [SRGB_ICC, CICP, P3_ICC | CICP, CICP | {b"gAMA": LINEAR}]
TAGS[False] = [{b"gAMA": LINEAR}, {b"cHRM": WIDE}, {b"gAMA": USUAL, b"cHRM": WIDE}, P3_ICC, NO_ICC]
TAGS[False] += [{b"cICP": bytes([12, 13, 0, 1])}, {b"cICP": bytes([9, 16, 0, 1]), b"sRGB": b"\0"}]


def test_colours_other_than_srgb_are_noted(tmp_path):
    content, path = encode(Image.fromarray(PHOTO), "PNG"), tmp_path / "a"
    files = [
        (usual, content[:33] + b"".join(chunk(*item) for item in tags.items()) + content[33:])
        for usual in TAGS
        for tags in TAGS[usual]
    ]
    for kind, usual in itertools.product(("JPEG", "WEBP", "TIFF"), (True, False)):
        files.append((usual, encode(Image.fromarray(PHOTO), kind, icc_profile=SRGB if usual else P3)))
    for space in (1, 65_535):
        exif = Image.Exif()
        exif.get_ifd(0x8769)[0xA001] = space
        files.append((space == 1, encode(Image.fromarray(PHOTO), "JPEG", exif=exif)))
    for number, (usual, content) in enumerate(files):
        path.write_bytes(content)
        notes = decoded(path)[1]
        assert [("not applied: values are taken as sRGB" in note) for note in notes] == [True] * (not usual), number


def test_the_limits_hold_before_anything_is_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(ImageFile.ImageFile, "load_prepare", lambda _: pytest.fail("decoded"))
    width = decoding.MOST_PIXELS // 8192 + 1
    for content in (png_of(width, 8192), gif(width, 8192) + b"\x02\x02\x44\x01\x00;", tiff(width, 8192)):
        (tmp_path / "a").write_bytes(content)
        refused("67,108,864 pixels; reduce it", decoded, tmp_path / "a")
    content = encode(Image.fromarray(PHOTO), "JPEG", progressive=True)
    last = content.rindex(b"\xff\xda")
    (tmp_path / "a").write_bytes(content[:last] + 100 * content[last:-2] + b"\xff\xd9")
    refused("more than 100 scans", decoded, tmp_path / "a")
    with (tmp_path / "a").open("wb") as file:
        file.truncate(decoding.MOST_BYTES + 1)
    refused("more than 536,870,912 bytes", decoded, tmp_path / "a")


def test_picture_files_are_opened_by_one_module():
    """But PNGs that a run wrote, whose digests it has, and pictures in memory."""
    root = Path(attacks.__file__).parent
    opening = {str(file.relative_to(root)) for file in root.rglob("*.py") if "Image.open(" in file.read_text()}
    assert opening == {"runtime/decoding.py", "data/images.py", "resizers/pipeline.py"}
