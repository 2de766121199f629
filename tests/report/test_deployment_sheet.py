"""The sheet of an attacked picture behind each resizer."""

import numpy as np
import torch
from PIL import Image

from attacks.evaluation.deployment import Example
from attacks.report.deployment_sheet import SUCCESS, draw_deployment
from attacks.resizers.platforms import OPEN

NAMES = ("none", "Pillow lanczos", "OpenCV area", *OPEN)


def test_a_frame_marks_the_resizers_with_which_the_attack_succeeds(tmp_path):
    frame = np.array([int(SUCCESS[i : i + 2], 16) for i in (1, 3, 5)])

    def area(*hits):
        grey = torch.full((24, 30, 3), 128, dtype=torch.uint8)
        example = Example(grey.repeat(4, 4, 1), dict.fromkeys(NAMES, grey), {name: name in hits for name in NAMES})
        draw_deployment(tmp_path / "deployment.png", example)
        pixels = np.array(Image.open(tmp_path / "deployment.png").convert("RGB"))
        return int((pixels == frame).all(2).sum())

    no_hit, one_hit, two_hits = (
        area(),
        area("OpenCV linear"),
        area("OpenCV linear", "OpenCV area"),
    )
    assert no_hit == 0 < one_hit and abs(two_hits / one_hit - 2) < 0.2
