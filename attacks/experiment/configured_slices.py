"""The optional parts of a run; its maps and curves, each by the coordinates of views that it spans."""

from typing import Any

from attacks.evaluation.ablation import varying
from attacks.evaluation.response import SlicePlan, axis, slice_axes
from attacks.schema.validate import Run
from attacks.study.study import Parts
from transforms import Compose
from transforms.wrappers import widened

#: Cells along the sides of a map.
CELLS = 7
#: The coordinates of maps and curves for `auto`: the first of these that vary, then any other.
TELLING = ("affine angle", "affine scale", "yaw", "distance", "angle", "scale", "shift right", "quality")


def check(run: Run, parts: Parts) -> None:
    """Check the configuration of the parts before anything is attacked. Raises ValueError in one line."""
    config = run.evaluate
    slice_axes(
        SlicePlan(*configured_slices(run, parts.transforms), parts.transforms, wide_of(parts.transforms, config.wide))
    )
    if config.left_out:
        varying(parts.transforms)
    if config.pipeline is not None and parts.pipeline is None:
        raise ValueError(
            f"`evaluate.pipeline` must be null or the name of a resizer; a function is given from Python, as "
            f"robustness(pipeline=...); got {config.pipeline!r}"
        )
    if config.failure and not parts.transforms.dims:
        raise ValueError(
            "`evaluate.failure` must be 0 where no stage of the views varies, so that every view is the same; add "
            "stages to `transforms`"
        )


def configured_parts(run: Run, transforms: Compose) -> dict[str, bool]:
    """Whether a run has each optional part, in the order in which they are made."""
    config = run.evaluate
    return {
        "radii": run.attack.name == "radius",
        "response": any(configured_slices(run, transforms)),
        "left_out": config.left_out > 0,
        "deployment": config.deploy > 0,
        "detection": config.pipeline is not None,
        "explanations": config.explain > 0,
        "failure": config.failure > 0,
    }


def wide_of(transforms: Compose, factor: float) -> Compose:
    """The range of views that maps and curves span."""
    return widened(transforms, factor) if factor > 1 else transforms


def configured_slices(run: Run, transforms: Compose) -> tuple[list[Any], list[Any]]:
    """The configured maps and curves, each by the names of its coordinates. `auto` stands for up to two coordinates
    that vary, so that a preset suits any views."""
    config = run.evaluate
    names = _telling(transforms, wide_of(transforms, config.wide)) if "auto" in (*config.maps, *config.curves) else []
    grids, lines = [names] if len(names) > 1 else [], names
    maps = [pair for each in config.maps for pair in (grids if each == "auto" else [each])]
    return maps, [name for each in config.curves for name in (lines if each == "auto" else [each])]


def _telling(transforms: Compose, wide: Compose) -> list[str]:
    """Up to two coordinates that vary. Those of a random choice of stages come last."""
    names: list[str] = []
    for pattern in (*TELLING, *sorted(wide.names, key=lambda name: name.startswith(("oneof", "sometimes")))):
        try:
            name = axis(pattern, transforms, wide, CELLS, "auto").name
        except ValueError:  # none, several, a seed, or one that stands still
            continue
        if name not in names:
            names.append(name)
    return names[:2]
