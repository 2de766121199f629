"""Procedural pictures: what the pocket encoder is trained on. No photograph is read.

Each picture is layers of shapes over a coloured field, drawn by numpy and Pillow from one seed. Many layers are dead
leaves (Lee, Mumford & Huang 2001), and the fields have spectra like those of photographs (Baradad et al. 2021).
"""

import string
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

#: The side of a picture, and the larger side that it is drawn at, without antialiasing.
SIDE, CANVAS = 384, 512

Floats = NDArray[np.float32]
Labels = NDArray[np.int32]
Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Palette:
    """Colours round a mean: grey, of few hues, or free."""

    mean: Floats
    axes: Floats

    def colours(self, rng: np.random.Generator, n: int) -> Floats:
        """(n,3) colours; they may leave [0,1] a little."""
        return (self.mean + rng.normal(size=(n, 3)) @ self.axes).astype(np.float32)


def palette(rng: np.random.Generator) -> Palette:
    """A random one; three in ten are grey."""
    chroma = rng.choice([0.0, 0.04, 0.15], p=[0.3, 0.4, 0.3])
    axes = np.ones((3, 3)) * rng.uniform(0.06, 0.16) + rng.normal(size=(3, 3)) * chroma
    mean = rng.uniform(0.15, 0.85) + rng.normal(size=3) * chroma
    return Palette(mean.astype(np.float32), axes.astype(np.float32))


def _noise(rng: np.random.Generator, exponent: float) -> Floats:
    """Noise whose amplitude falls with the frequency to the power of `exponent`; mean 0, deviation 1."""
    rows, columns = np.fft.fftfreq(CANVAS)[:, None], np.fft.rfftfreq(CANVAS)[None]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf
    spectrum = np.fft.rfft2(rng.normal(size=(CANVAS, CANVAS)))
    return unit(np.fft.irfft2(spectrum / frequency**exponent))


def unit(values: NDArray[np.floating]) -> Floats:
    """The values with mean 0 and deviation 1, clipped at 3."""
    scaled: Floats = ((values - values.mean()) / (values.std() + 1e-6)).clip(-3, 3).astype(np.float32)
    return scaled


def _grid() -> tuple[Floats, Floats]:
    """The rows and columns of the pixels, in [0,1)."""
    y, x = np.mgrid[0:CANVAS, 0:CANVAS].astype(np.float32) / CANVAS
    return y, x


def field(rng: np.random.Generator) -> Floats:
    """A grey texture over the whole picture, mean 0, deviation 1; never periodic, so no two cells are alike."""
    kind, smooth = rng.integers(6), _noise(rng, rng.uniform(1.2, 2.0))
    if kind <= 1:
        return _noise(rng, rng.uniform(0.7, 2.0))
    if kind == 2:
        y, x = _grid()
        angle, cycles = rng.uniform(0, np.pi), np.exp(rng.uniform(np.log(4), np.log(50)))
        wave = np.sin(2 * np.pi * cycles * (x * np.cos(angle) + y * np.sin(angle)) + rng.uniform(1, 4) * smooth)
        return unit(wave * (1 + 0.5 * _noise(rng, 1.2)))
    if kind == 3:
        return unit(np.abs(smooth))
    if kind == 4:
        return unit(np.tanh(rng.uniform(2, 8) * (smooth - rng.uniform(-0.5, 0.5))))
    return unit(_noise(rng, 0.5) * (smooth > rng.uniform(-0.5, 0.5)))


def outline(rng: np.random.Generator, x: float, y: float, radius: float) -> Points:
    """The corners of a random shape: an ellipse, a polygon, a star, a bar, or a smooth blob."""
    kind, stretch, turn = rng.integers(5), np.exp(rng.normal() * 0.4), rng.uniform(0, 2 * np.pi)
    n = 24 if kind in (0, 4) else int(rng.integers(3, 8))
    angles = np.linspace(0, 2 * np.pi, n, endpoint=False)
    radii = np.ones(n)
    if kind == 1:
        radii = rng.uniform(0.7, 1.2, n)
    if kind == 2:
        radii = np.where(np.arange(2 * n) % 2, rng.uniform(0.3, 0.8), 1.0)
        angles = np.linspace(0, 2 * np.pi, 2 * n, endpoint=False)
    if kind == 3:
        angles = np.array([1, 3, 5, 7]) * np.pi / 4
        radii, stretch = np.ones(4), np.exp(rng.normal() * 0.8)
    if kind == 4:
        for order in range(2, 6):
            radii = radii + rng.normal() * 0.3 / order * np.cos(order * angles + rng.uniform(0, 2 * np.pi))
    u, v = radius * radii * np.cos(angles) * stretch, radius * radii * np.sin(angles) / stretch
    xs, ys = x + u * np.cos(turn) - v * np.sin(turn), y + u * np.sin(turn) + v * np.cos(turn)
    return list(zip(xs.tolist(), ys.tolist(), strict=True))


def _leaves(rng: np.random.Generator, count: tuple[int, int], radius: tuple[float, float]) -> Labels:
    """Overlapping shapes, small ones more frequent; 0 where there is none."""
    image = Image.new("I", (CANVAS, CANVAS))
    draw = ImageDraw.Draw(image)
    n = int(np.exp(rng.uniform(*np.log(count))))
    low, high = radius
    for label in range(1, n + 1):
        size = 1 / np.sqrt(rng.uniform(1 / high**2, 1 / low**2)) if rng.random() < 0.5 else rng.uniform(low, high)
        x, y = rng.uniform(-20, CANVAS + 20, 2)
        draw.polygon(outline(rng, x, y, size), fill=label)
    return np.asarray(image, dtype=np.int32)


def threads(rng: np.random.Generator) -> Labels:
    """Winding lines that branch and get thinner, such as vessels, cracks and hair."""
    image = Image.new("I", (CANVAS, CANVAS))
    draw = ImageDraw.Draw(image)
    wind, branch = rng.uniform(0.02, 0.3), rng.uniform(0.0, 0.05)
    ends = [
        (*rng.uniform(0, CANVAS, 2), rng.uniform(0, 2 * np.pi), rng.uniform(1.5, 10))
        for _ in range(rng.integers(2, 25))
    ]
    for label in range(1, 150):
        if not ends:
            break
        x, y, angle, width = ends.pop(0)
        points = [(x, y)]
        for _ in range(int(rng.integers(10, 70))):
            angle += rng.normal() * wind
            x, y = x + 8 * np.cos(angle), y + 8 * np.sin(angle)
            points.append((x, y))
            if rng.random() < branch:
                ends.append((x, y, angle + rng.choice([-1, 1]) * rng.uniform(0.3, 1), width * 0.7))
        draw.line(points, fill=label, width=max(1, round(width)), joint="curve")
    return np.asarray(image, dtype=np.int32)


def script(rng: np.random.Generator) -> Labels:
    """Lines of random letters, turned a little."""
    image = Image.new("L", (CANVAS, CANVAS))
    draw = ImageDraw.Draw(image)
    y = -10.0
    while y < CANVAS:
        size = float(rng.uniform(8, 20) if rng.random() < 0.7 else rng.uniform(20, 90))
        letters = rng.choice(list(string.ascii_letters + string.digits + "      ,.-"), 90)
        draw.text((rng.uniform(-20, 60), y), "".join(letters), fill=255, font=ImageFont.load_default(size))
        y += size * rng.uniform(1.0, 2.0)
    rotation = image.rotate(rng.choice([0, 90]) + rng.normal() * 8, Image.Resampling.BILINEAR)
    return (np.asarray(rotation) > 127).astype(np.int32)


def mosaic(rng: np.random.Generator) -> Labels:
    """Rows of blocks with joints, bent by a smooth field: bricks, tiles, windows, scales."""
    y, x = _grid()
    bend = rng.uniform(0, 0.04)
    y, x = y + bend * _noise(rng, 2.0), x + bend * _noise(rng, 2.0)
    angle = rng.normal() * 0.3
    y, x = y * np.cos(angle) + x * np.sin(angle), x * np.cos(angle) - y * np.sin(angle)
    rows, ratio, joint = rng.uniform(5, 30), rng.uniform(0.3, 1.2), rng.uniform(0.02, 0.2)
    row = np.floor(y * rows)
    shift = np.where(row % 2 == 0, 0.0, rng.uniform(0, 1))
    columns_of_grid = x * rows * ratio + shift
    column = np.floor(columns_of_grid)
    inside = (y * rows - row > joint) & (columns_of_grid - column > joint * ratio)
    labels = (row * 7919 + column * 104729).astype(np.int64) % 997 + 1
    return np.where(inside, labels, 0).astype(np.int32)


def region(rng: np.random.Generator) -> Labels:
    """One large irregular part of the picture."""
    return (_noise(rng, rng.uniform(1.5, 2.2)) > rng.uniform(-0.8, 0.8)).astype(np.int32)


LAYERS: tuple[tuple[Callable[[np.random.Generator], Labels], float], ...] = (
    (lambda rng: _leaves(rng, (60, 700), (6, rng.uniform(30, 100))), 0.27),  # of all sizes, over most of the picture
    (lambda rng: _leaves(rng, (3, 40), (40, 200)), 0.25),  # large
    (lambda rng: _leaves(rng, (40, 900), (1, rng.uniform(3, 12))), 0.13),  # small, such as stars and grains
    (threads, 0.13),
    (script, 0.06),
    (mosaic, 0.07),
    (region, 0.09),
)


def fill_shape(rng: np.random.Generator, labels: Labels, colours: Palette, fields: list[Floats]) -> Floats:
    """A colour, a gradient and a texture for each label, (CANVAS,CANVAS,3)."""
    n = int(labels.max()) + 1
    y, x = _grid()
    base = colours.colours(rng, n)
    if rng.random() < 0.3:  # all of one colour, so that only shapes differ
        base[:] = base[:1] + 0.25 * (base - base[:1])
    slopes = (rng.normal(size=(2, n)) * 0.2 * (rng.random(n) < 0.5)).astype(np.float32)
    amounts = (np.abs(rng.normal(size=n)) * 0.12 * (rng.random(n) < 0.6)).astype(np.float32)
    region_mask = rng.integers(len(fields), size=n)[labels]
    texture = np.choose(region_mask, fields)
    light = amounts[labels] * texture + slopes[0][labels] * (x - 0.5) + slopes[1][labels] * (y - 0.5)
    picture: Floats = base[labels] + light[..., None]
    return picture


def _blurred(picture: Floats, radius: float) -> Floats:
    image = Image.fromarray((picture.clip(0, 1) * 255).astype(np.uint8))
    return np.asarray(image.filter(ImageFilter.GaussianBlur(radius)), dtype=np.float32) / np.float32(255)


def render_procedural(seed: tuple[int, int]) -> NDArray[np.uint8]:
    """The picture of a seed, (SIDE,SIDE,3) of 8 bits."""
    rng = np.random.default_rng(seed)
    colours, fields = palette(rng), [field(rng) for _ in range(3)]
    tints = colours.colours(rng, 3) - colours.mean
    textures = (f[..., None] * tint * rng.uniform(0.1, 0.9) for f, tint in zip(fields, tints, strict=True))
    picture = colours.mean + sum(textures)
    draws, shares = zip(*LAYERS, strict=True)
    for kind in rng.choice(len(draws), rng.choice([0, 1, 2, 3, 4], p=[0.08, 0.25, 0.3, 0.22, 0.15]), p=shares):
        if rng.random() < 0.35:
            picture = _blurred(picture, rng.uniform(0.5, 5))
        labels = draws[kind](rng)
        cover = (labels > 0)[..., None] * np.float32(1 if rng.random() < 0.7 else rng.uniform(0.3, 1))
        picture = picture * (1 - cover) + fill_shape(rng, labels, colours, fields) * cover
    if rng.random() < 0.1:  # through a round window
        y, x = _grid()
        (cx, cy), radius = rng.uniform(0.2, 0.8, 2), rng.uniform(0.3, 0.6)
        picture = picture * (np.hypot(x - cx, y - cy) < radius)[..., None]
    if rng.random() < 0.4:
        picture = picture * np.exp(0.3 * _noise(rng, 2.5))[..., None]
    if rng.random() < 0.4:
        picture = _blurred(picture, rng.uniform(0.4, 2.5))
    if rng.random() < 0.3:
        picture = picture + rng.normal(size=picture.shape) * rng.uniform(0.005, 0.04)
    image = Image.fromarray((picture.clip(0, 1) * 255).round().astype(np.uint8))
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC))
