"""The preset of a second patch: that of the run, with the colours and poses measured in the photographs."""

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from attacks.physical.photo_measure import PhotoMeasurement, magnified

#: Stages of the run that set the camera's pose; the measured ones replace them.
POSES = ("affine", "perspective", "viewpoint", "crop")
#: The largest jitter that keeps every quad convex (see `transforms.Perspective`).
MOST = 0.499


def ranges(measured: Sequence[PhotoMeasurement], stops: Sequence[float]) -> dict[str, dict[str, Any]]:
    """Stages with the measured ranges, from the smallest value to the largest; {} if no scene was located.

    Args:
        stops: the exposure of each photograph, relative to the run's picture or to the median photograph; () if it is
            unknown.
    """
    scenes = [(each.scene, magnified(each.scene, each.view)) for each in measured if each.scene is not None]
    if not scenes:
        return {}
    poses = [pose for pose, _ in scenes]
    stages: dict[str, dict[str, Any]] = {
        "perspective": {"jitter": min(MOST, round(max(pose.jitter for pose in poses), 4))},
        "affine": {
            "degrees": _span(_unwound([pose.degrees for pose in poses])),
            "scale": _span([scale for _, scale in scenes]),
            "translate": _span([value / 2 for pose in poses for value in pose.centre]),
        },
    }
    if stops:
        stages["exposure"] = {"stops": _span(list(stops))}
    return stages


def _unwound(degrees: Sequence[float]) -> list[float]:
    """Angles that lie nearest to their mean direction: 170 and -170 become 170 and 190."""
    turns = [math.radians(each) for each in degrees]
    mean = math.degrees(math.atan2(sum(map(math.sin, turns)), sum(map(math.cos, turns))))
    return [mean + (each - mean + 180) % 360 - 180 for each in degrees]


def _span(values: Sequence[float]) -> list[float]:
    return [round(min(values), 4), round(max(values), 4)]


def staged(own: dict[str, Any], measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The run's stages with the measured ones in place of theirs: the pose first, then all others in their order."""
    names = (*POSES, *measured)
    others = {name: value for name, value in own.items() if re.sub(r"\d+$", "", name) not in names}
    return {**measured, **others} if measured else dict(own)


def content(config: dict[str, Any], measured: dict[str, dict[str, Any]], colour: Path | None) -> str:
    """The preset as YAML, with the run's whole configuration, so that it needs no other file.

    Args:
        config: of manifest.json.
        colour: the file of the fitted map of colours.
    """
    config = json.loads(json.dumps(config))  # YAML writes a node that occurs twice as an alias
    groups = {key: value for key, value in config.items() if isinstance(value, dict) and "name" in value}
    named = {key: str(value["name"]) for key, value in groups.items()} | {"transforms": "identity"}
    # The checks by their name alone: values would win over `sanity=none` on the command line.
    body: dict[str, Any] = {key: value for key, value in config.items() if key not in ("show", "sanity")}
    body["transforms"] |= {"name": "measured", "stages": staged(body["transforms"]["stages"], measured)}
    if colour is not None:
        body |= _printed(body, str(colour.resolve()))
        named["printer"] = body["printer"]["name"]
    defaults = [f"override /{key}: {name}" for key, name in named.items()]
    lines = [
        "# @package _global_",
        "# A run once more, with the printer and the camera as measured in photographs of its first patch.",
        "defaults:",
        *(f"  - {line}" for line in defaults),
        "",
        yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True),
    ]
    return "\n".join(lines)


def _printed(body: dict[str, Any], colour: str) -> dict[str, Any]:
    """The groups that depend on a printer, with the measured one. All colours may be asked for (`gamut`): the map
    decides what is printed, and a limit to the gamut of the generic printer would be to another one's."""
    printer = dict(body.get("printer") or {"name": "none"})
    if printer["name"] in ("none", "generic", "family"):
        printer = {"stages": printer.get("stages", {}), "name": "measured"}
    changed: dict[str, Any] = {"printer": {**printer, "intent": "relative", "colour": colour}}
    if not isinstance(body["perturbation"].get("gamut"), list | None):
        changed["perturbation"] = {**body["perturbation"], "gamut": None}
    if body.get("penalty", {}).get("name") == "nps":
        changed["penalty"] = {**body["penalty"], "palette": colour}
    return changed
