"""A card drawn in numpy, and the files of a printed run that the simulated photographs need."""

import dataclasses
import json

import cv2
import numpy as np

from attacks.perturbations.patch.card import card
from attacks.physical.simulation.photographs import take_photograph
from attacks.physical.simulation.shots import Shot
from tests.helpers.photographs import card_light, encoded
from tests.helpers.prints import physical

CARD = card(100, 100, words="card 5")
DPI = 254  # ten dots per mm: every edge of the card but those of swatches is between two dots
QUAD = ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8))
RANDOM = np.random.default_rng


def card_dots(texture):
    """The card in dots, RGB."""
    return np.rint(255 * encoded(card_light(CARD, texture, fine=10))).astype(np.uint8)


def smooth(height, width, seed=0):
    """A picture without fine detail, (h,w,3) uint8."""
    coarse = RANDOM(seed).integers(0, 256, (4, 4, 3), np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def printed_run(folder, dots):
    """The files of a run, and of its print, that are read."""
    (folder / "pictures" / "clean").mkdir(parents=True)
    (folder / "print").mkdir()
    names = ("bench", "street")
    for i, name in enumerate(names):
        cv2.imwrite(str(folder / "pictures" / "clean" / f"{name}.png"), smooth(48, 48, i))
    quads = [[QUAD], [[[0.1, 0.1], [0.6, 0.15], [0.6, 0.6], [0.12, 0.55]], QUAD]]
    patch = physical(names, quads, texture=(20, 20), id="vp-00000005", printer={"medium": "paper"})
    (folder / "placement.json").write_text(json.dumps(dataclasses.asdict(patch)))
    cv2.imwrite(str(folder / "print" / "card.png"), dots[..., ::-1])
    sheet = {"schema": 2, "id": "vp-00000005", "arm": "eot", "sha256": "0", "dpi": DPI}
    sheet |= {"card": dataclasses.asdict(CARD)}
    (folder / "print" / "sheet.json").write_text(json.dumps(sheet))
    return folder


def take_photo(ink, shot=None, size=(320, 320), scene=None, quad=QUAD):
    scene = smooth(320, 320) if scene is None else scene
    return take_photograph(scene, quad, CARD, ink, DPI, shot or Shot(), size, RANDOM(0))


def flat(value):
    return np.full((1300, 1300, 3), value, np.float32)
