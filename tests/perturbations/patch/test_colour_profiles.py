"""Colour profiles of printers, against Pillow's colour management, and the formulas in NumPy."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

from attacks.data.images import to_bytes
from attacks.perturbations.patch.colour_profiles import read_colour_map
from attacks.perturbations.patch.inks import INKS, generic, neugebauer
from transforms.colour.lut import apply_lut, terms
from transforms.colour.spaces import to_linear, to_srgb

double = torch.float64
#: Where Debian's packages ghostscript and icc-profiles put profiles of presses; none may be shipped here.
PRESSES = [
    *(Path("/usr/share/color/icc") / name for name in ("ghostscript/default_cmyk.icc", "ghostscript/ps_cmyk.icc")),
    *sorted(Path("/usr/share/color/icc").rglob("*FOGRA*.icc")),
]


def lookup(lut, levels):
    """8-bit colours (K,3) through a table, in levels."""
    colours = torch.tensor(levels, dtype=double) / 255
    return apply_lut(colours.T[None, :, None], lut)[0, :, 0].T * 255


def test_ideal_inks_reproduce_every_colour(photo):
    colours = photo[0].flatten(1).T
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=double)] * 3)
    for n in (1.0, 2.0):
        torch.testing.assert_close(neugebauer(colours, corners, n), colours, rtol=0, atol=1e-12)


def test_the_generic_printer_follows_neugebauers_equations():
    colours = np.random.default_rng(0).integers(52, size=(50, 3)) / 51  # every fifth level is a node of the table

    def light(x):
        return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)

    cyan, magenta, yellow = 1 - np.sqrt(light(colours.T))
    total = 0
    inks = dict(zip(itertools.product((0, 1), repeat=3), INKS, strict=True))
    for c, m, y in itertools.product((0, 1), repeat=3):
        area = (cyan if c else 1 - cyan) * (magenta if m else 1 - magenta) * (yellow if y else 1 - yellow)
        total = total + area[:, None] * np.sqrt(light(np.array(inks[1 - c, 1 - m, 1 - y]) / 255))
    target = total**2
    target = np.where(target <= 0.0031308, target * 12.92, 1.055 * target ** (1 / 2.4) - 0.055)
    result = neugebauer(torch.tensor(colours), torch.tensor(INKS, dtype=double) / 255)
    np.testing.assert_allclose(result.numpy(), target, rtol=0, atol=1e-6)  # the knee
    lut_output = lookup(generic(), colours * 255)
    np.testing.assert_allclose(lut_output.numpy(), target * 255, rtol=0, atol=1e-3)


def test_halftones_of_the_generic_printer_match_swop():
    # Cyan and yellow of 50 %, as layout programs show them; what they ask of the printer is their own red, or blue.
    result = lookup(generic(), [[109, 255, 255], [255, 255, 153]])
    np.testing.assert_allclose(result, [[109, 207, 246], [255, 247, 153]], rtol=0, atol=2.5)


FIT = {"schema": 1, "kind": "polynomial", "degree": 1, "coefficients": [[0, 1, 0, 0]] * 3, "light": "srgb"}


@pytest.mark.parametrize(("degree", "light"), [(1, "srgb"), (2, "linear"), (3, "srgb")])
def test_a_fit_evaluates_the_polynomial_of_its_file(tmp_path, degree, light):
    count = {1: 4, 2: 10, 3: 20}[degree]
    weights = 0.3 / count * torch.rand(3, count, dtype=double)
    weights[:, :4] += torch.cat([torch.full((3, 1), 0.1, dtype=double), 0.4 * torch.eye(3, dtype=double)], dim=1)
    path = tmp_path / "fit.json"
    path.write_text(json.dumps(FIT | {"degree": degree, "coefficients": weights.tolist(), "light": light}))
    colours = torch.rand(500, 3, dtype=double)
    target = terms(to_linear(colours) if light == "linear" else colours, degree) @ weights.T
    target = to_srgb(target) if light == "linear" else target
    result = lookup(read_colour_map(str(path)), (colours * 255).tolist()) / 255
    torch.testing.assert_close(result, target, rtol=0, atol=0.1 / 255)


def dull(share):
    """The bytes of an RGB profile whose primaries are sRGB's, mixed with a share of the other two."""
    content = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    starts = range(132, 132 + 12 * int.from_bytes(content[128:132], "big"), 12)  # of the table of tags
    offsets = {bytes(content[at : at + 4]): int.from_bytes(content[at + 4 : at + 8], "big") + 8 for at in starts}
    original = [offsets[tag] for tag in (b"rXYZ", b"gXYZ", b"bXYZ")]
    values = np.array([np.frombuffer(bytes(content[at : at + 12]), ">i4") for at in original])
    blend = np.rint(values * (1 - 2 * share) + (values.sum(0) - values) * share).astype(">i4")
    for row, at in zip(blend, original, strict=True):
        content[at : at + 12] = row.tobytes()
    return bytes(content)


def proof_of(photo, profile, to_printer, back):
    """Pillow's own soft proof of an 8-bit photograph, in levels (H,W,3)."""
    screen = ImageCms.createProfile("sRGB")
    flags = ImageCms.Flags.SOFTPROOFING | ImageCms.Flags.BLACKPOINTCOMPENSATION
    proof = ImageCms.buildProofTransform(screen, screen, profile, "RGB", "RGB", to_printer, back, flags)
    return np.asarray(ImageCms.applyTransform(Image.fromarray(to_bytes(photo[0])), proof)).astype(float)


def levels(lut, photo):
    return apply_lut(photo, lut)[0].permute(1, 2, 0).numpy() * 255


def test_a_profile_equals_the_round_trip_through_pillow(photo, tmp_path):
    path = tmp_path / "dull.icc"
    path.write_bytes(dull(0.08))
    screen, profile = ImageCms.createProfile("sRGB"), ImageCms.getOpenProfile(str(path))
    to_printer, back = (
        ImageCms.buildTransform(*way, "RGB", "RGB", 1) for way in ((screen, profile), (profile, screen))
    )
    device = ImageCms.applyTransform(Image.fromarray(to_bytes(photo[0])), to_printer)
    target = np.asarray(ImageCms.applyTransform(device, back)).astype(float)
    result = levels(read_colour_map(str(path)), photo)
    original = photo[0].permute(1, 2, 0).numpy() * 255
    assert np.abs(target - original).max() > 10  # the profile cannot show all of it
    assert np.abs(result - target).max() <= 2


def test_the_profile_of_srgb_changes_no_colour(photo, tmp_path):
    path = tmp_path / "srgb.icm"
    path.write_bytes(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    for intent in ("relative", "perceptual", "absolute"):
        result = levels(read_colour_map(str(path), intent), photo)
        assert np.abs(result - photo[0].permute(1, 2, 0).numpy() * 255).max() <= 1


@pytest.mark.parametrize(
    ("intent", "to_printer", "back"), [("relative", 1, 1), ("perceptual", 0, 1), ("absolute", 3, 3)]
)
def test_the_profile_of_a_press_equals_pillows_soft_proof(photo, intent, to_printer, back):
    installed = [path for path in PRESSES if path.is_file()]
    if not installed:
        pytest.skip("no profile of a press on this machine (Debian: ghostscript)")
    target = proof_of(photo, ImageCms.getOpenProfile(str(installed[0])), to_printer, back)
    difference = np.abs(levels(read_colour_map(str(installed[0]), intent), photo) - target)
    assert (
        np.quantile(difference, 0.99) <= 2 and difference.max() <= 4
    )  # LittleCMS is up to 4 off itself, by its flags
    white = lookup(read_colour_map(str(installed[0]), intent), [[255, 255, 255]])
    assert (white.min() < 245) == (intent == "absolute")  # the paper's own colour


WRONG = [
    *({"schema": 2}, {"kind": "code"}, {"degree": 2}, {"degree": 9}, {"degree": True}, {"light": "xyz"}),
    {"coefficients": [[0, 1, 0, 0]] * 2},
    *({"coefficients": [[value, 1, 0, 0]] * 3} for value in ("0", float("nan"), 10**400)),
]
FITS = ["", "[1, 2]", "[" * 50_000, *(json.dumps(FIT | change) for change in WRONG), json.dumps(FIT) + " " * 2**16]
#: Name, content and what is refused.
FILES = [
    *(("fit.json", content, r"`printer\.colour`: .*fit\.json") for content in FITS),
    ("empty.icc", b"", "cannot open profile"),
    ("zeros.icc", b"\0" * 4000, "cannot open profile"),
    ("cut.icc", dull(0.1)[:400], "cut.icc is not a .icc that can be used"),
    ("large.icc", b"\0" * (2**24 + 1), "more than 16777216 bytes"),
    ("lab.icm", ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes(), "of a printer or a screen"),
]


@pytest.mark.parametrize(("name", "content", "message"), FILES, ids=[f"{i} {row[0]}" for i, row in enumerate(FILES)])
def test_a_wrong_file_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=message) as error:
        read_colour_map(str(tmp_path / name))
    assert "`printer.colour`" in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (("generick",), ValueError, "`printer.colour` must be ideal, generic, or a file .icc"),
        (("a.png",), ValueError, "`printer.colour` must be"),
        (("missing.icc",), FileNotFoundError, "there is no file 'missing.icc'"),
        (("generic", "saturation"), ValueError, "`printer.intent` must be one of relative, perceptual, absolute"),
        (("generic", "absolute"), ValueError, "is for an ICC profile; 'generic' has no intents"),
        (("missing.icc", "relative", "x.y"), FileNotFoundError, "`x.y`"),
    ],
)
def test_invalid_arguments_are_refused(call, kind, message):
    with pytest.raises(kind, match=message):
        read_colour_map(*call)
