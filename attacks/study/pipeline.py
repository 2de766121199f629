"""The configured pipeline of stages."""

import dataclasses
import inspect
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from attacks.encoders.defended import ViewDefence
from attacks.encoders.layers import unwrap
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.tree import optional
from attacks.runtime.plugins import entry_names, plugin
from attacks.schema import groups
from attacks.schema.encoder import DefenceConfig
from attacks.schema.options import CONFIGS
from attacks.schema.presets import is_path, read_preset
from attacks.schema.suggestions import closest
from attacks.schema.validate import printable_config
from attacks.study.make import make
from transforms import Compose, Stage
from transforms.draws.ranges import is_number
from transforms.registry import STAGES

#: Of the bundled encoder's input, for views without an encoder.
SIDE = 96


def input_side(encoder: nn.Module, *shapes: Sequence[int]) -> int:
    """The shorter side of the encoder's input; that of pictures of some `shapes` (height, width), if it takes any.
    Raises ValueError where they have several."""
    preprocess = optional(unwrap(encoder), "preprocess")
    frame = preprocess.frame if isinstance(preprocess, Preprocess) else None
    sides = {min(shape) for shape in ([frame] if frame else shapes)}
    if len(sides) > 1:
        raise ValueError(
            "`data.size=null` keeps pictures of several sizes, and the encoder resizes to none, of which sizes of "
            "views are shares: set data.size, or encoder.preprocess"
        )
    return sides.pop()


def pipeline(node: groups.ViewsConfig, side: int = SIDE) -> Compose:
    """The configured pipeline; `side` of the encoder's input, of which sizes may be shares. Raises ValueError."""
    value = tuple(node.value) if isinstance(node.value, list) else node.value
    shades = value if isinstance(value, tuple) else (value,)
    if value == () or not all(is_number(shade) and 0 <= shade <= 1 for shade in shades):
        raise ValueError(
            f"`transforms.value` must be a number in [0, 1], or a list of one for each channel; got {value!r}"
        )
    return make(Compose, node, "transforms", stages=stages(node.stages, "transforms.stages", side), value=value)


def defended_views(node: groups.ViewsConfig, defence: Any, side: int = SIDE) -> Compose:
    """The configured pipeline, with the defence before the stage that it names, if any. Raises ValueError."""
    camera, names = pipeline(node, side), list(node.stages)
    if not isinstance(defence, DefenceConfig) or defence.before is None:
        return camera
    next_stage = defence.before
    if next_stage not in names:
        raise ValueError(
            f"`defence.before` must name a stage of transforms={node.name} ({', '.join(names) or 'it has none'}); "
            f"got {printable_config(next_stage)}{closest(next_stage, names)}"
        )
    defence_stages, at = stages(defence.stages, "defence.stages", side), names.index(next_stage)
    view_defence = [ViewDefence(Compose(defence_stages), next_stage)] if defence_stages else []
    return dataclasses.replace(camera, stages=[*camera.stages[:at], *view_defence, *camera.stages[at:]])


def stages(node: Any, path: str, side: int | None = None) -> list[Stage]:
    """The stages of {name: arguments, ...}, in order. A repeated name has a number: affine, affine2."""
    if not isinstance(node, dict):
        raise ValueError(f"`{path}` must map the names of stages to their arguments; got {node!r}")
    values = {str(name): {} if arguments is None else arguments for name, arguments in node.items()}
    return [_stage(name, arguments, f"{path}.{name}", side) for name, arguments in values.items()]


def stage_name(label: str) -> str:
    """The name of a stage without the number of its label."""
    return re.sub(r"\d+$", "", label)


def _stage(label: str, arguments: Any, path: str, side: int | None) -> Stage:
    name = stage_name(label)
    names = [*STAGES, *([] if name in STAGES else entry_names("stage"))]
    if name not in names:
        raise ValueError(
            f"`{printable_config(path)}` is unknown: stages are {', '.join(names)}{closest(name, names)}"
        )
    kind = STAGES[name] if name in STAGES else plugin("stage", name).load()
    if not isinstance(arguments, dict):
        raise ValueError(f"`{path}` must map arguments to values, such as {{degrees: 20}}; got {arguments!r}")
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in arguments.items()}
    names = [*inspect.signature(kind).parameters]
    if dataclasses.is_dataclass(kind):  # `Sometimes` and `OneOf` are called otherwise
        names = [field.name for field in dataclasses.fields(kind) if field.init]
    if name == "sometimes":  # its `stages` are one stage, or several together
        names[names.index("stage")] = "stages"
    for key in values:
        if key not in names:
            raise ValueError(
                f"unknown key `{path}.{printable_config(key)}`: known here are {', '.join(names)}"
                f"{closest(str(key), names)}"
            )
    if "of" in names:
        values.setdefault("of", side)
    try:
        if "stages" in names:
            inner = stages(values.pop("stages", {}), f"{path}.stages", side)
            if not inner:
                raise ValueError("`stages` must name at least one stage")
            if name == "sometimes":
                values["stage"] = inner[0] if len(inner) == 1 else Compose(inner)
            else:
                values["stages"] = inner
        camera: Stage = kind(**values)
    except (TypeError, ValueError) as error:
        message = str(error)
        raise ValueError(message if message.startswith(f"`{path}") else f"`{path}`: {message}") from None
    return camera


def preset(name: str, side: int = SIDE) -> Compose:
    """The pipeline of a preset in `configs/transforms`, or of such a YAML file, read without Hydra; `side` of the
    encoder's input, of which sizes may be shares. Raises ValueError or FileNotFoundError in one line."""
    if not is_path(name):
        names = sorted(path.stem for path in (CONFIGS / "transforms").glob("*.yaml"))
        if name not in names:
            raise ValueError(f"`transforms` must be one of {', '.join(names)}, or a YAML file; got {name!r}")
    path = Path(name) if is_path(name) else CONFIGS / "transforms" / f"{name}.yaml"
    try:
        camera: Any = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(groups.ViewsConfig), _merge(path)))
    except OmegaConfBaseException as error:
        raise ValueError(f"preset `{path}`: {str(error).splitlines()[0]}") from None
    return pipeline(camera, side)


def _merge(path: Path, above: tuple[Path, ...] = ()) -> Any:
    """A preset merged onto the presets in its `defaults`, without the schema's entry."""
    if path in above:
        raise ValueError(
            f"preset `{printable_config(path)}` names itself in its defaults, at once or by way of others"
        )
    node = read_preset(path)
    entries = [entry for entry in node.pop("defaults", None) or [] if isinstance(entry, str) and entry != "_self_"]
    bases = [path.with_name(f"{entry}.yaml") for entry in entries if not entry.startswith("/schema/")]
    return OmegaConf.merge(*(_merge(base, (*above, path)) for base in bases), node)
