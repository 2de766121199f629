"""Keys that do not go together, in one place: minibatches, clips, a radius for each row, the prices of a detector."""

import math
from typing import Any

from torch import nn

from attacks.data.table import TABLE
from attacks.encoders.tree import optional
from attacks.schema.encoder import GRADIENT_FREE
from attacks.schema.objective import LayersConfig
from attacks.schema.run import Run
from attacks.study.task import has_classes


def check_combinations(run: Run) -> None:
    """Refuse `attack.pictures` with keys that need all pictures at once, `perturbation.keyframes` with keys that are
    about each picture or about all, and `perturbation.eps=table` with keys that need one radius for all pictures."""
    node, ball, attack, optimiser = run.objective, run.perturbation, run.attack.name, run.optimiser.name
    size, start = getattr(run.attack, "pictures", None), getattr(run.attack, "start_from", None)
    keys, is_shared = getattr(ball, "keyframes", None), getattr(ball, "shared", ball.name == "patch")
    if size is not None:
        compares, anchor = optimiser in ("apgd", *GRADIENT_FREE), getattr(node, "anchor", "own")
        is_large = isinstance(node, LayersConfig) or bool(getattr(node, "encoders", None))
        _refuse_keys(
            "attack.pictures",
            size,
            ("perturbation.shared", "false", is_shared, "each picture is attacked alone", "true"),
            ("optimiser", optimiser, not compares, "it compares the losses of steps", "wiener"),
            ("task", run.task.name, not has_classes(run), "all pictures are asked about first", "retrieval"),
            ("data", run.data.name, run.data.name != "scenes", "each scene has a place of its own", "folder"),
            ("objective.anchor", anchor, anchor != "views", "all pictures would be seen first", "own"),
            ("objective", node.name, not is_large, "features of all pictures would be in memory", "retrieval"),
        )
    if keys is not None:
        _refuse_keys(
            "perturbation.keyframes",
            keys,
            ("perturbation.shared", "true", not is_shared, "that is one change for all clips", "false"),
            ("perturbation.mask", TABLE, ball.mask != TABLE, "each frame would have a mask of its own", "PICTURE"),
            ("perturbation", ball.name, ball.name != "l0", "between two key frames lie the pixels of both", "linf"),
            ("attack", attack, attack != "radius", "each picture has a radius of its own", "single"),
            ("optimiser", optimiser, optimiser != "label_only", "it searches round each picture", "nes_square"),
            ("attack.start_from", start, start is None, "files of frames hold no key frames", "null"),
        )
    if getattr(ball, "eps", None) == TABLE:
        reason = "it searches the radius of each picture"
        _refuse_keys(
            "perturbation.eps",
            TABLE,
            ("perturbation.shared", "true", not is_shared, "that is one change for all pictures", "false"),
            ("perturbation.keyframes", keys, keys is None, "frames share their change", "null"),
            ("attack", attack, attack != "radius", reason, "single"),
            ("optimiser", optimiser, optimiser != "label_only", reason, "nes_square"),
            ("data.size", "null", run.data.size is not None, "the pictures are read one by one", "224"),
        )


def _refuse_keys(name: str, value: Any, *rules: tuple[str, Any, bool, str, str]) -> None:
    """Raise ValueError where a key cannot be combined with another: key, value, whether it is good, why, a fix."""
    for key, setting, good, reason, fix in rules:
        if not good:
            raise ValueError(
                f"`{name}` does not go with {key}={setting}, for {reason}; got {value}: say {key}={fix}, or leave "
                f"{name} out"
            )


def prices_of(run: Run, encoder: nn.Module) -> tuple[float, ...]:
    """The prices of a detector's score; 0 without a detector. Raises ValueError where the attack cannot see it."""
    node, prices, pictures = run.objective, tuple(run.attack.prices), getattr(run.attack, "pictures", None)
    if not prices or not all(0 <= price < math.inf for price in prices):
        raise ValueError(f"`attack.prices` must be numbers from 0 up, at least one; got {[*prices]}")
    if optional(encoder, "false_alarms") is None or not any(prices):
        return (0.0,)
    if node.name == "layers" or getattr(node, "encoders", []) or getattr(node, "anchor", "") == "paired" or pictures:
        raise ValueError(
            "`attack.prices` of a detector's score fit no objective=layers, objective.encoders, objective.anchor="
            "paired or attack.pictures: drop these, or say attack.prices=[0], which ignores the detector"
        )
    return prices
