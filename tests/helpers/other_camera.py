"""Photographs of a card by a second simulator: another ink, light, lens and sensor than `attacks.physical`
has, on whose photographs the limits of recognition were set.

Ink: Neugebauer's eight primaries, mixed by Yule and Nielsen. Light: a lamp at a distance, with a sheen, a shadow.
Lens: a division model with decentring, and vignetting. Sensor: channels that mix, Bayer cells, an S-shaped tone.
"""

import io
import itertools
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image

from attacks.perturbations.patch.card import card, card_words
from attacks.perturbations.patch.card_raster import card_picture
from scripts.benchmarks.cards import CardPrint
from tests.helpers.photographs import encoded, linear, map_points

PRINT = CardPrint()
#: Pixels of the plane that is photographed, for each of the scene's picture; of a photograph (height, width).
PLANE, SIZE = 1200, (600, 800)
#: The light that solid cyan, magenta and yellow let through, by make: rows are inks, columns red, green, blue.
MAKES = {
    "gloss": ((0.02, 0.93, 0.99), (0.97, 0.02, 0.93), (0.99, 0.97, 0.02)),
    "office": ((0.10, 0.62, 0.85), (0.80, 0.09, 0.42), (0.90, 0.82, 0.10)),
    "newsprint": ((0.25, 0.55, 0.70), (0.68, 0.24, 0.40), (0.78, 0.74, 0.26)),
}


def print_light(raster, make, paper, random):
    """The light of an 8-bit raster in ink: coverage by Demichel's weights, n = 2, a dot that grows."""
    inks = np.array(MAKES[make]) * random.uniform(0.97, 1.03, (3, 3))
    subset = np.array(list(itertools.product((0, 1), repeat=3)))
    solids = np.prod(np.where(subset[:, :, None] == 1, np.clip(inks, 0, 1), 1.0), 1)  # (8,3)
    cover = 1 - np.cbrt(linear(raster / 255)) ** random.uniform(1.6, 2.2)
    weights = np.prod(np.where(subset == 1, cover[..., None, :], 1 - cover[..., None, :]), -1)
    return (paper * (weights @ np.sqrt(solids)) ** 2).astype(np.float32)


@dataclass(frozen=True)
class Take:
    """What is unlike an ordinary photograph: the `card` that is laid into a scene, and its print's `make` (None:
    a screen, whose channels mix by `mix`); a `second` card's quad; a `fold` of so many mm; the `lens`; how much the
    picture is blurred, and the strength of the sheen."""

    card: CardPrint = PRINT
    make: str | None = "office"
    mix: float = 0.0
    second: np.ndarray | None = None
    fold: float = 0.0
    lens: float = 0.03
    blur: float = 0.5
    sheen: float = 0.05


def photograph(case, take, random):
    """The photograph (H,W,3) of the card of a `scripts.benchmarks.cards.CardCase`, as its file holds it."""
    layout = card(100, 100, take.card.words or card_words(case.id, "eot"))
    texture = case.textures["eot"] if take.card.texture is None else take.card.texture
    raster = card_picture(layout, texture, 150)
    paper = np.array([0.88, 0.88, 0.86]) * random.uniform(0.9, 1.0)
    ink = print_light(raster, take.make, paper, random) if take.make else mix_channels(linear(raster / 255), take.mix)
    ink = np.float32(ink if take.card.change is None else take.card.change(ink))
    scene = case.scene if take.card.scene is None else take.card.scene
    plane = linear(cv2.resize(scene, (PLANE, PLANE), interpolation=cv2.INTER_CUBIC) / 255).astype(np.float32)
    tilt = random.uniform(-0.35, 0.35, 2)  # tangents of the camera's angles
    for quad in (case.quad if take.card.quad is None else take.card.quad, take.second):
        if quad is not None:
            plane = lay(plane, ink, layout, np.asarray(quad) * PLANE - 0.5, take.fold * tilt)
    y, x = (np.mgrid[:PLANE, :PLANE] / PLANE - 0.5).astype(np.float32)
    lamp = np.array([*random.uniform(-1, 1, 2), random.uniform(0.9, 1.6)])
    distance = (x - lamp[0]) ** 2 + (y - lamp[1]) ** 2 + lamp[2] ** 2
    light = 0.35 + 0.65 * (lamp[2] / np.sqrt(distance)) ** 3 * lamp[2] ** 2 / distance * 1.3
    light = light * (1 - 0.25 / (1 + np.exp(-12 * (x * random.choice([-1, 1]) + y - random.uniform(-1, 1)))))
    shine = take.sheen * np.exp(-((x - 0.4 * lamp[0]) ** 2 + (y - 0.4 * lamp[1]) ** 2) / 0.02)
    plane = (
        (plane + shine[..., None]) * light[..., None] * np.exp2(random.uniform([-0.2, 0, -0.25], [0.2, 0.01, 0.1]))
    )
    view = project(np.float32(plane * random.uniform(0.9, 1.5)), tilt, take.lens, random)
    view = cv2.GaussianBlur(view, (0, 0), take.blur) if take.blur else view
    return develop(mix_channels(view, random.uniform(0, 0.05)), random)


def mix_channels(light, share):
    """Channels that take a share of the light of the two others."""
    return light @ ((1 - share) * np.eye(3) + share / 2 * (1 - np.eye(3)))


def lay(plane, ink, layout, quad, ridge):
    """The card on a plane (a picture), its patch on a quad; a fold down its middle lies `ridge` mm aside."""
    height, width = ink.shape[:2]
    place = cv2.getPerspectiveTransform(np.float32(layout.patch.corners), np.float32(quad))
    for start, end in ((0, 0.5), (0.5, 1)) if np.any(ridge) else ((0, 1),):
        ends = np.array([[start, 0], [end, 0], [end, 1], [start, 1]])
        height_shift = np.where(ends[:, :1] == 0.5, ridge, 0.0)
        position = map_points(place, ends * [layout.width, layout.height] + height_shift)
        matrix = cv2.getPerspectiveTransform(np.float32(ends * [width, height] - 0.5), np.float32(position))
        part = np.dstack([ink, np.ones((height, width), np.float32)])
        part[:, : round(start * width)] = part[:, round(end * width) :] = 0
        part = cv2.warpPerspective(cv2.blur(part, (2, 2)), matrix, (PLANE, PLANE), flags=cv2.INTER_AREA)
        plane = part[..., :3] + (1 - part[..., 3:]) * plane
    return plane


def project(plane, tilt, lens, random):
    """The plane through a pinhole and a lens: each pixel of the photograph finds its ray, and that the plane."""
    samples = np.array(SIZE) * 2
    y, x = ((np.mgrid[: samples[0], : samples[1]] + 0.5 - samples[:, None, None] / 2) / samples[0]).astype(np.float64)
    radius, (p, q) = x**2 + y**2, random.uniform(-0.004, 0.004, 2)
    scale = 1 / (1 + lens * radius + lens / 2 * radius**2)
    x, y = x * scale + 2 * p * x * y + q * (radius + 2 * x**2), y * scale + p * (radius + 2 * y**2) + 2 * q * x * y
    turn, zoom = np.deg2rad(random.uniform(-8, 8)), random.uniform(0.95, 1.15)
    x, y = (np.cos(turn) * x - np.sin(turn) * y) * zoom, (np.sin(turn) * x + np.cos(turn) * y) * zoom
    depth = 1 / (1 - 0.8 * (tilt[0] * x + tilt[1] * y))
    at = np.stack([x * depth, y * depth]) + random.uniform(-0.05, 0.05, (2, 1, 1)) + 0.5
    view = cv2.remap(plane, *np.float32(at * PLANE - 0.5), cv2.INTER_LINEAR, borderValue=(0.2, 0.2, 0.2))
    view = view / (1 + 0.5 * radius[..., None]) ** 2
    return cv2.resize(np.float32(view), SIZE[::-1], interpolation=cv2.INTER_AREA)


def develop(light, random):
    """Bayer cells with noise, made a picture by OpenCV; an S-shaped tone, and a JPEG of 4:4:4 or 4:2:0."""
    height, width = light.shape[:2]
    colour = np.array([[0, 1], [1, 2]])[np.arange(height)[:, None] % 2, np.arange(width) % 2]
    signal = np.take_along_axis(light, colour[..., None], 2)[..., 0]
    signal = signal + random.normal(0, 1, signal.shape) * np.sqrt(2e-6 + 1.5e-4 * np.clip(signal, 0, 1))
    cells = np.uint16(np.clip(signal, 0, 1) * 65_535)
    values = encoded(cv2.cvtColor(cells, cv2.COLOR_BAYER_BG2RGB_EA).astype(float) / 65_535)
    bend = random.uniform(0, 0.35)
    values = (1 - bend) * values + bend * values**2 * (3 - 2 * values)
    file = io.BytesIO()
    Image.fromarray(np.uint8(np.rint(255 * np.clip(values, 0, 1)))).save(
        file, "JPEG", quality=int(random.integers(70, 96)), subsampling=int(random.choice([0, 2]))
    )
    return np.asarray(Image.open(file))
