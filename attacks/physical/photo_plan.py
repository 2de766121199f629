"""The poses of which photographs of a run's patch are to be taken: `viewproof plan --photos`."""

from pathlib import Path

import numpy as np
import torch

from attacks.experiment.directory import previous_run
from attacks.perturbations.patch.card import Box
from attacks.perturbations.patch.physical_patch import WIDTH
from attacks.physical.photos import PART
from attacks.physical.rectify import from_corners, pose
from attacks.physical.score import DEGREES, FARTHER, map_cell
from attacks.physical.sheet import read_patch
from attacks.study.pipeline import pipeline
from transforms import Sobol
from transforms.compose import Homography

#: Views of a run from which a plan of photographs is made, and where the camera moves from the front.
VIEWS, SIDES = 256, ("left", "above", "right", "below")
HEAD = f"{'distance':<10}{'cm':<5}{'angle':<7}{'camera':<8}FILE"
NOTE = """distance: how many patches fit along the photograph's shorter side; cm: on a telephone's main camera
print: viewproof print {folder} --arm noise; viewproof print {folder}
score: viewproof score {folder} control --arm noise; viewproof score {folder} patch"""


def photo_plan(folder: Path) -> str:
    """The poses for photographs of a run's patch: the middle of each cell of the map of distance and angle that the
    run's own views reach, but for one in twenty at either end. Raises ValueError or OSError in one line."""
    patch, views = read_patch(folder), pipeline(previous_run(folder).run.transforms)
    size, texture = np.array(patch.size[::-1]), Box(0, 0, *patch.texture[::-1])
    layer = from_corners(texture.corners, (2 * np.array(patch.quads[0][0]) - 1) * size / size.min())
    matrix = torch.eye(3, dtype=torch.float64).repeat(VIEWS, 1, 1)  # from the view to the scene
    parts = Sobol()(VIEWS, views.dims, seed=0).double().split([stage.dims for stage in views.stages], 1)
    for stage, part in zip(views.stages, parts, strict=True):
        matrix = matrix @ stage.matrix(part) if isinstance(stage, Homography) else matrix
    cells = [map_cell(pose(scene @ layer, texture)) for scene in np.linalg.inv(matrix.numpy())]
    (nearest, _), (farthest, turns) = np.quantile(cells, (0.05, 0.95), axis=0, method="nearest").astype(int)
    places = [(far, turn) for far in range(nearest, farthest + 1) for turn in range(turns + 1)]
    poses = [(FARTHER**far, DEGREES * turn, side) for far, turn in places for side in (SIDES if turn else ("front",))]
    lines = ["From each pose photograph control/FILE and patch/FILE, nothing else moved:", "", HEAD]
    for i in range(max(len(poses), len(patch.pictures))):
        (far, angle, side), name = poses[i % len(poses)], patch.pictures[i % len(patch.pictures)]
        lines.append(
            f"{far:<10.1f}{far * (patch.width_mm or WIDTH) / 10:<5.0f}{angle:<7}{side:<8}{name}{PART}{i + 1:02d}.jpg"
        )
    return "\n".join([*lines, "", NOTE.format(folder=folder)])
