"""How often a photograph is scored as the run's patch: simulated photographs of a printed card by kind, as it should
be, harder, of a screen, and of ten kinds of something else."""

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from attacks.data.gallery import photographs
from attacks.data.images import to_bytes
from attacks.perturbations.patch.card import card, card_words
from attacks.perturbations.patch.card_raster import card_picture
from attacks.perturbations.patch.physical_patch import PhysicalPatch
from attacks.physical.photo_measure import Expected, PhotoMeasurement, measure_photo
from attacks.physical.photos import PhotoFile
from attacks.physical.simulation.camera import PAPER, encode_jpeg, print_raster
from attacks.physical.simulation.photographs import take_photograph
from attacks.physical.simulation.shots import PRESETS, Ranges, Shot, draw_shot

from .table import BenchmarkTable, Row

Bytes = NDArray[np.uint8]
Random = np.random.Generator
#: Of a patch in mm, of its raster in dots an inch, of a scene's picture and of a photograph in pixels.
MM, DPI, SIDE, SIZE = 100.0, 120, 256, (480, 640)
ARMS = ("eot", "no_eot", "noise")
#: Bundled photographs that scenes are cut from, and exponents of the textures' spectra; the limits of
#: `attacks.physical.photo_measure` were set on others.
SCENES = ("astronaut", "chelsea", "rocket", "brick", "hubble", "cell", "text", "gravel")
SPECTRA, TEXELS = (0.0, 0.7, 1.5), 64


@dataclass(frozen=True, eq=False)
class CardCase:
    """A run whose patch of the arm `eot` is photographed: its id, the textures of its arms, two scenes, its place."""

    id: str
    textures: Mapping[str, NDArray[np.float32]]
    scene: Bytes
    other: Bytes
    quad: NDArray[np.float64]


def draw_case(random: Random) -> CardCase:
    front, other = (scene(SCENES[i]) for i in random.choice(len(SCENES), 2, replace=False))
    exponent = float(random.choice(SPECTRA))
    common = texture(exponent, random)
    textures = {arm: _strong(0.6 * common + 0.8 * texture(exponent, random)) for arm in ARMS[:2]}
    textures["noise"] = random.integers(0, 2, (TEXELS, TEXELS, 3)).astype(np.float32) * 255
    side, (x, y) = random.uniform(0.4, 0.5), random.uniform(0.25, 0.35, 2)
    quad = np.array([[x, y], [x + side, y], [x + side, y + side], [x, y + side]])
    quad += random.uniform(-0.01, 0.01, (4, 2))
    random.random(2)  # not used: with them the photographs are those of the figures in docs/benchmarks.md
    name = f"vp-{int(random.integers(2**32)):08x}"
    return CardCase(name, textures, front, other, quad)


@cache
def scene(name: str) -> Bytes:
    """The central square of a bundled photograph."""
    pixels = to_bytes(photographs()[name])
    side = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return cv2.resize(pixels[top : top + side, left : left + side], (SIDE, SIDE), interpolation=cv2.INTER_AREA)  # type: ignore[return-value]


def texture(exponent: float, random: Random) -> NDArray[Any]:
    """A random field whose amplitude falls with the frequency to the exponent, of mean 0 and deviation 1."""
    frequencies = np.fft.fftfreq(TEXELS)
    frequency = np.hypot(frequencies[:, None], frequencies) + 1 / TEXELS
    waves = np.fft.fft2(random.standard_normal((TEXELS, TEXELS, 3)), axes=(0, 1))
    field = np.fft.ifft2(waves / frequency[..., None] ** exponent, axes=(0, 1)).real
    return np.asarray((field - field.mean()) / field.std())


def _strong(field: NDArray[Any]) -> NDArray[np.float32]:
    """With the contrast of an optimised patch: most values are near an end of the range."""
    return np.asarray(np.rint(127.5 * (1 + np.tanh(1.2 * field))), np.float32)


@dataclass(frozen=True, eq=False)
class CardPrint:
    """What is photographed in place of the run's own print: the words of the card, its texture, the scene, the quad,
    the camera's values (each None as it is there); a change of its raster's light; and the ink's strength."""

    words: str | None = None
    texture: NDArray[np.float32] | None = None
    change: Callable[[NDArray[Any]], NDArray[Any]] = np.asarray
    scene: Bytes | None = None
    quad: NDArray[np.float64] | None = None
    ink: float = 1.0
    shot: Shot | None = None


def take_photo(case: CardCase, sheet: CardPrint, random: Random) -> Bytes:
    """A photograph, as its file holds it."""
    shot = draw_shot(Ranges(), random) if sheet.shot is None else sheet.shot
    card_layout = card(MM, MM, card_words(case.id, ARMS[0]) if sheet.words is None else sheet.words)
    raster = card_picture(card_layout, case.textures[ARMS[0]] if sheet.texture is None else sheet.texture, DPI)
    light = sheet.change(print_raster(raster, sheet.ink))
    quad = case.quad if sheet.quad is None else sheet.quad
    scene_picture = case.scene if sheet.scene is None else sheet.scene
    view = take_photograph(scene_picture, quad, card_layout, np.asarray(light, np.float32), DPI, shot, SIZE, random)
    with Image.open(io.BytesIO(encode_jpeg(view.pixels, shot.quality))) as image_file:
        return np.asarray(image_file.convert("RGB"))


def examination(case: CardCase, photo: Bytes) -> tuple[str | None, PhotoMeasurement | None]:
    """Why a photograph is left out (None: it is scored as the run's arm `eot`), and the measurements if there are."""
    size = case.textures[ARMS[0]].shape
    quads = ((case.quad.tolist(),),)
    patch = PhysicalPatch(case.id, ("scene",), (SIDE, SIDE), (size[0], size[1]), quads, ((None,),))
    expected = Expected(patch, ARMS[0], card(MM, MM, card_words(case.id, ARMS[0])), case.textures)
    try:
        photo_file = PhotoFile(None, "photo", 0)  # type: ignore[arg-type]  # a photograph in memory
        measurement = measure_photo(photo_file, np.ascontiguousarray(photo), case.scene, expected)
    except ValueError as error:
        return str(error), None
    return measurement.evidence.refusal, measurement


# --- Negatives


def blank(_: CardCase, random: Random) -> CardPrint:
    is_grey = random.random() < 0.7
    level = random.choice([255, 128, *random.uniform(0, 255, 1)]) if is_grey else random.uniform(0, 255, 3)
    return CardPrint(texture=np.full((64, 64, 3), level, np.float32))


def arm_card(case: CardCase, random: Random) -> CardPrint:
    arm = str(random.choice(ARMS[1:]))
    return CardPrint(words=card_words(case.id, arm), texture=case.textures[arm])


def other_run(_: CardCase, random: Random) -> CardPrint:
    other = _strong(texture(float(random.uniform(0.0, 1.5)), random))
    words = card_words(f"vp-{int(random.integers(2**32)):08x}", ARMS[0]) if random.random() < 0.5 else None
    return CardPrint(words=words, texture=other)


def mirrored(case: CardCase, random: Random) -> CardPrint:
    if random.random() < 0.5:
        return CardPrint(change=lambda light: np.ascontiguousarray(light[:, ::-1]))
    return CardPrint(texture=np.ascontiguousarray(case.textures[ARMS[0]][:, ::-1]))


def cover_part(_: CardCase, random: Random, share: tuple[float, float] = (0.12, 0.4)) -> CardPrint:
    area, middle = random.uniform(*share), random.uniform(0.25, 0.75, 2)
    colour = random.uniform(0, 0.9, 3) if random.random() < 0.5 else np.full(3, random.uniform(0, 0.9))
    angle = random.uniform(0, 180)

    def lay(light: NDArray[Any]) -> NDArray[Any]:
        height, width = light.shape[:2]
        patch = MM / card(MM, MM).width
        at, radius = 0.5 + patch * (middle - 0.5), patch * math.sqrt(area / math.pi)
        cover = np.zeros((height, width), np.float32)
        axes = (round(1.3 * radius * width), round(radius / 1.3 * height))
        cv2.ellipse(cover, (round(at[0] * width), round(at[1] * height)), axes, angle, 0, 360, 1.0, -1)
        return np.asarray(light * (1 - cover[..., None]) + colour * cover[..., None])

    return CardPrint(change=lay)


def glare(_: CardCase, random: Random) -> CardPrint:
    area, middle, strength = random.uniform(0.15, 0.4), random.uniform(0.25, 0.75, 2), random.uniform(1.5, 4)

    def shine(light: NDArray[Any]) -> NDArray[Any]:
        rows, columns = np.mgrid[: light.shape[0], : light.shape[1]] / np.array(light.shape[:2])[:, None, None]
        patch = MM / card(MM, MM).width
        radius = patch * math.sqrt(area / math.pi)
        off = np.hypot(columns - 0.5 - patch * (middle[0] - 0.5), rows - 0.5 - patch * (middle[1] - 0.5)) / radius
        return np.asarray(light + strength * np.exp(-(off**4))[..., None])

    return CardPrint(change=shine)


def as_file(_: CardCase, random: Random) -> CardPrint:
    return CardPrint(ink=0.0, shot=Shot(scale=random.uniform(0.9, 1.2), quality=int(random.integers(85, 100))))


def on_screen(_: CardCase, random: Random) -> CardPrint:
    glow = random.uniform(0, 0.02)
    return CardPrint(ink=0.0, change=lambda light: (1 - glow) * light + glow)


def stretch_card(case: CardCase, random: Random) -> CardPrint:
    times, middle = random.uniform(1.35, 1.7), case.quad.mean(0)
    stretch = np.array([times, 1.0]) if random.random() < 0.5 else np.array([1.0, times])
    return CardPrint(quad=middle + (case.quad - middle) * stretch / math.sqrt(times))


# --- Positives


def other_ink(_: CardCase, random: Random) -> CardPrint:
    strength, fade = random.uniform(0.6, 1.0), random.uniform(0.05, 0.15)
    return CardPrint(ink=strength, change=lambda light: (1 - fade) * light + fade * np.asarray(PAPER, np.float32))


def clutter(case: CardCase, random: Random) -> CardPrint:
    scene = case.scene.copy()
    for _ in range(8):
        x, y = random.integers(0, SIDE, 2)
        w, h = random.integers(10, 45, 2)
        scene[y : y + h, x : x + w] = random.integers(0, 256, 3)
    return CardPrint(scene=scene)


Kind = Callable[[CardCase, Random], CardPrint]
NEGATIVE: dict[str, Kind] = {
    "blank patch": blank,
    "texture of another arm": lambda case, random: CardPrint(texture=case.textures[str(random.choice(ARMS[1:]))]),
    "card of another arm": arm_card,
    "another run": other_run,
    "turned": lambda case, random: CardPrint(quad=np.roll(case.quad, -int(random.integers(1, 4)), 0)),
    "mirrored": mirrored,
    "covered, 12 to 40 %": cover_part,
    "glare, 15 to 40 %": glare,
    "another scene": lambda case, _: CardPrint(scene=case.other),
    "stretched 1.35 to 1.7 times": stretch_card,
}
SCREENS: dict[str, Kind] = {"the file itself": as_file, "a screen": on_screen}
BLURRED = Ranges(blur=(1.0, 1.6), motion=(1.5, 4.0), quality=(60.0, 80.0))
HARDER: dict[str, Kind] = {
    "blurred": lambda _, random: CardPrint(shot=draw_shot(BLURRED, random)),
    "other ink": other_ink,
    "clutter in the scene": clutter,
    "covered, 0.5 to 2 %": lambda case, random: cover_part(case, random, (0.005, 0.02)),
}


# --- The tables


def run(photos: int = 2, kind_photos: int = 12, harder_photos: int = 2, hard_photos: int = 2) -> list[BenchmarkTable]:
    """Simulated photographs of a run's card that are scored, by kind: as it should be, harder, of the simulator's
    preset `hard`, of a screen, and ten kinds of something else, which must not be scored. The figures behind the
    share are the least and the largest correlation of the patch."""
    hard: dict[str, Kind] = {"photographs of hard": lambda _, r: CardPrint(shot=draw_shot(PRESETS["hard"], r))}
    return [
        _table("Photographs of the run's patch: scored", {"as it should be": lambda *_: CardPrint()}, kind_photos),
        _table("Harder photographs of it: scored", HARDER, harder_photos),
        _table("Photographs of the preset hard: scored", hard, hard_photos),
        _table("Photographs of a screen: scored, and flagged", SCREENS, photos),
        _table("Photographs of something else: scored", NEGATIVE, photos),
    ]


def _table(title: str, kinds: Mapping[str, Kind], count: int) -> BenchmarkTable:
    rows: dict[str, Row] = {}
    reasons: list[str] = []
    must_score = kinds is not NEGATIVE
    for name, kind in kinds.items():
        score_count, correlations = 0, list[float]()
        for index in range(count):
            random = np.random.default_rng((*name.encode(), index))
            case = draw_case(random)
            reason, measurement = examination(case, take_photo(case, kind(case, random), random))
            score_count += reason is None
            if must_score is (reason is not None):
                reasons.append(f"{name}, photograph {index}: {reason or 'score_count'}")
            if measurement is not None:
                correlations.append(measurement.evidence.patch.correlation)
        ends = (min(correlations), max(correlations)) if correlations else (None, None)
        rows[name] = (float(score_count), float(count), *ends)
    total = sum(float(row[0] or 0) for row in rows.values() if not isinstance(row, str))
    rows["all"] = (total, float(count * len(kinds)), None, None)
    columns = {"scored": ".0f", "of": ".0f", "patch, least": ".2f", "most": ".2f"}
    return BenchmarkTable(title, columns, rows, notes=tuple(reasons[:40]))
