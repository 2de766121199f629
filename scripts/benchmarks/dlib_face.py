"""dlib's face embedding as an encoder without a gradient: `encoder.model=scripts.benchmarks.dlib_face:face_vectors`.

Needs `pip install dlib-bin face_recognition_models`. Of several faces the largest counts. Two pictures are accepted
as one person up to the Euclidean distance 0.6.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


@cache
def _parts() -> tuple[Any, Any, Any]:
    """The detector, the landmarks, and the network (29 layers, 128 numbers)."""
    import dlib

    spec = importlib.util.find_spec("face_recognition_models")  # importing it wants pkg_resources of old setuptools
    if spec is None or spec.origin is None:
        raise ImportError("the weights are missing: pip install face_recognition_models")
    folder = Path(spec.origin).parent / "models"
    landmarks = dlib.shape_predictor(str(folder / "shape_predictor_5_face_landmarks.dat"))
    network = dlib.face_recognition_model_v1(str(folder / "dlib_face_recognition_resnet_model_v1.dat"))
    return dlib.get_frontal_face_detector(), landmarks, network


def face_vectors(pixels: np.ndarray) -> list[np.ndarray | None]:
    """(N,H,W,3) uint8 -> 128 numbers for each picture; None where no face is found."""
    detector, landmarks, network = _parts()
    answers: list[np.ndarray | None] = []
    for picture in map(np.ascontiguousarray, pixels):
        box = max(detector(picture, 0), key=lambda box: box.area(), default=None)
        vector = None if box is None else network.compute_face_descriptor(picture, landmarks(picture, box))
        answers.append(None if vector is None else np.asarray(vector))
    return answers
