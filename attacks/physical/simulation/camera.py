"""Renders a simulated photograph: ink on paper, light, lens, sensor, file. numpy and OpenCV only.

All steps between ink and tone curve are in linear light.
"""

import math
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from attacks.physical.simulation.optics import LensWarp
from attacks.physical.simulation.shots import Matrix, Pixels, Points, Shot, map_points

#: Samples along each axis of a pixel.
SAMPLES = 3
#: Rows of the photograph that are rendered at once, to bound memory.
BAND = 128
GREY = 0.5
#: The sigma of local tone, as a share of the longer side, and of sharpening in pixels.
WIDE, SHARP = 0.05, 1.2
#: Dot gain at half coverage.
DOT_GAIN = 0.08
#: The largest density: black is 10^-1.8 = 1.6 % of the paper's white.
DENSEST = 1.8
PAPER = (0.90, 0.90, 0.87)
#: Absorption of red, green and blue (rows) by cyan, magenta and yellow ink. Rows add up to 1: greys stay grey.
INKS = ((0.93, 0.05, 0.02), (0.12, 0.83, 0.05), (0.06, 0.18, 0.76))


def to_light(values: NDArray[Any]) -> Pixels:
    """Display values in [0,1] to linear light, by sRGB (IEC 61966-2-1)."""
    values = np.asarray(values, np.float32)
    curve = ((values + 0.055) / 1.055) ** 2.4
    return np.asarray(np.where(values <= 0.04045, values / 12.92, curve), np.float32)


def to_display(light: Pixels) -> Pixels:
    """The inverse, clipped to [0,1]."""
    light = np.clip(light, 0, 1)
    curve = 1.055 * light ** np.float32(1 / 2.4) - 0.055
    return np.asarray(np.where(light <= 0.0031308, light * 12.92, curve), np.float32)


def print_raster(raster: NDArray[np.uint8], strength: float) -> Pixels:
    """The light that paper reflects where an 8-bit sRGB raster was printed by a generic uncalibrated printer: dot
    gain (Murray-Davies), impure inks, black no darker than `DENSEST`, and paper that is not white. `strength` 0 is
    the raster itself."""
    ideal = to_light(raster / np.float32(255))
    cover = 1 - ideal
    cover = cover + 4 * DOT_GAIN * cover * (1 - cover)
    density = -np.log10(np.maximum(1 - cover, 10**-DENSEST))
    real = np.asarray(PAPER, np.float32) * 10 ** -(density @ np.asarray(INKS, np.float32).T)
    return np.asarray((1 - strength) * ideal + strength * real, np.float32)


def enlarge(picture: NDArray[np.uint8], side: int) -> Pixels:
    """The light of an 8-bit picture, resized so that its shorter side has `side` pixels."""
    factor = side / min(picture.shape[:2])
    size = (round(picture.shape[1] * factor), round(picture.shape[0] * factor))
    kernel = cv2.INTER_CUBIC if factor > 1 else cv2.INTER_AREA
    return to_light(np.clip(cv2.resize(picture / np.float32(255), size, interpolation=kernel), 0, 1))


def render(
    scene: Pixels,
    scene_at: Matrix,
    card: Pixels,
    card_at: Matrix,
    size: tuple[int, int],
    warp: LensWarp | None = None,
) -> Pixels:
    """The light on the pixels of a photograph of `size` (height, width).

    Each layer is sampled `SAMPLES`^2 times per pixel through one homography from its pixels to the photograph's, or
    through the lens and over the sheet of `warp`. Beyond the scene it is mid-grey. A fourth channel of `card` is the
    share of it that nothing hides.
    """
    grey = float(to_light(np.array(GREY)))
    card, dots = _reduce(card, card_at)
    shows = card[:, :, 3:] if card.shape[2] == 4 else np.ones_like(card[:, :, :1])
    ink = np.dstack([card[:, :, :3] * shows, shows])  # the coverage goes through the same filter as the colour
    bands = []
    for top in range(0, size[0], BAND):
        rows = min(BAND, size[0] - top)
        middle = (SAMPLES - 1) / 2
        fine = np.array([[SAMPLES, 0, middle], [0, SAMPLES, middle - SAMPLES * top], [0, 0, 1]])
        extent = (rows * SAMPLES, size[1] * SAMPLES)
        if warp is None:
            view = _warped(scene, fine @ scene_at, extent, grey)
            card_layer = _warped(ink, fine @ card_at @ dots, extent, 0.0)
        else:
            back: Matrix = np.linalg.inv(fine)
            points: Points = np.stack(np.meshgrid(*map(np.arange, extent[::-1])), -1) @ back[:2, :2].T + back[:2, 2]
            view = _read(scene, warp.scene(points, scene_at), grey)
            card_layer = np.zeros((*extent, 4), np.float32)
            edge = map_points(fine, warp.outline())
            (left, high), (right, low) = edge.min(0) - SAMPLES, edge.max(0) + SAMPLES
            part = np.s_[max(0, int(high)) : max(0, int(low)), max(0, int(left)) : max(0, int(right))]
            if points[part].size:
                at = (warp.card(points[part]) - dots[:2, 2]) / np.diag(dots)[:2]
                card_layer[part] = _read(ink, at, 0.0)
        view = card_layer[:, :, :3] + (1 - card_layer[:, :, 3:]) * view
        bands.append(cv2.resize(view, (size[1], rows), interpolation=cv2.INTER_AREA))
    return np.concatenate(bands)


def _read(pixels: Pixels, points: Points, outside: float) -> Pixels:
    at: Any = np.clip(np.nan_to_num(points, nan=-1e4), -1e4, 1e4).astype(np.float32)
    reader: Any = cv2.remap
    return np.asarray(reader(pixels, at, None, cv2.INTER_LINEAR, borderValue=(outside,) * 4), np.float32)


def _reduce(card: Pixels, at: Matrix) -> tuple[Pixels, Matrix]:
    """Average a fine raster down to no less than a dot a sample; and the map from the new dots to the old."""
    height, width = card.shape[:2]
    reach = max(_magnification(at, x, y) for x in (0, width - 1) for y in (0, height - 1))
    factor = reach * SAMPLES
    if factor >= 1:
        return card, np.eye(3)
    small = (math.ceil(width * factor - 1e-6), math.ceil(height * factor - 1e-6))
    x, y = width / small[0], height / small[1]
    back = np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2], [0, 0, 1]])
    return cv2.resize(card, small, interpolation=cv2.INTER_AREA), back


def _magnification(matrix: Matrix, x: float, y: float) -> float:
    """The largest singular value of a homography's Jacobian at a point."""
    u, v, w = matrix @ (x, y, 1)
    slopes = (matrix[:2, :2] * w - np.outer((u, v), matrix[2, :2])) / w**2
    return float(np.linalg.norm(slopes, 2))


def _warped(pixels: Pixels, matrix: Matrix, size: tuple[int, int], outside: float) -> Pixels:
    """Warp pixels. All corners lie in front of the camera (`map_points`), so nothing mirrored is visible."""
    return cv2.warpPerspective(pixels, matrix, size[::-1], borderValue=(outside,) * 4)


def lit(light: Pixels, shot: Shot) -> Pixels:
    height, width = light.shape[:2]
    half, angle = min(height, width) / 2, math.radians(shot.brighter)
    x = (np.arange(width) - (width - 1) / 2) / half * math.cos(angle)
    y = (np.arange(height) - (height - 1) / 2) / half * math.sin(angle)
    stops = shot.stops + shot.gradient * (x + y[:, None])
    gain: Pixels = np.exp2(stops[:, :, None] + np.array([shot.red, 0, shot.blue])).astype(np.float32)
    return light * gain


def blurred(light: Pixels, shot: Shot) -> Pixels:
    if shot.blur > 0:
        light = cv2.GaussianBlur(light, (0, 0), shot.blur, borderType=cv2.BORDER_REPLICATE)
    if shot.motion > 0:
        light = cv2.filter2D(light, -1, _motion_kernel(shot.motion, shot.along), borderType=cv2.BORDER_REPLICATE)
    return light


def _motion_kernel(length: float, degrees: float) -> NDArray[np.float32]:
    """The kernel of a straight motion of `length` pixels; it adds up to 1."""
    reach = math.ceil(length / 2) + 1
    steps = length * ((np.arange(16 * reach) + 0.5) / (16 * reach) - 0.5)
    x, y = reach + steps * math.cos(math.radians(degrees)), reach + steps * math.sin(math.radians(degrees))
    at = np.arange(2 * reach + 1)
    horizontal, down = (np.maximum(1 - np.abs(at[:, None] - position), 0) for position in (x, y))
    return np.asarray(down @ horizontal.T / len(steps), np.float32)


def add_noise(light: Pixels, shot: Shot, rng: np.random.Generator) -> Pixels:
    """Sensor noise: Poisson for photons, then Gaussian for the amplifier. No Bayer pattern: pixels are
    independent."""
    if shot.shot > 0:
        light = rng.poisson(np.maximum(light, 0) / shot.shot) * np.float32(shot.shot)
    if shot.read > 0:
        light = light + np.float32(shot.read) * rng.standard_normal(light.shape, np.float32)
    return np.clip(light, 0, 1).astype(np.float32)


def develop(light: Pixels, shot: Shot) -> NDArray[np.uint8]:
    """Local tone, the tone curve, a power with mid-grey fixed, 8-bit sRGB, and sharpening."""
    middle = float(to_light(np.array(GREY)))
    if shot.local > 0:
        wide = cv2.GaussianBlur(light.mean(2), (0, 0), WIDE * max(light.shape[:2]), borderType=cv2.BORDER_REPLICATE)
        light = light * ((wide + 0.02) / middle)[..., None] ** np.float32(-shot.local)
    if shot.contrast != 1:
        light = np.float32(middle) * (light / np.float32(middle)) ** np.float32(shot.contrast)
    values = to_display(light) * 255
    if shot.sharpen > 0:
        values = np.clip(values + shot.sharpen * (values - cv2.GaussianBlur(values, (0, 0), SHARP)), 0, 255)
    return np.asarray(np.rint(values), np.uint8)


def encode_jpeg(picture: NDArray[np.uint8], quality: int) -> bytes:
    """Encode as JPEG with 4:2:0 chroma subsampling, as cameras do."""
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]
    options += [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420]
    return cv2.imencode(".jpg", cv2.cvtColor(picture, cv2.COLOR_RGB2BGR), options)[1].tobytes()
