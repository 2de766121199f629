"""Parts of a run that this project does not have: of installed packages, or given in Python."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from attacks.eot.problem import NEEDS, complete_part
from attacks.runtime.plugins import Plugin, plugin
from attacks.schema.groups import PLUGINS
from attacks.schema.validate import Run, fraction
from attacks.study.pipeline import stage_name
from transforms.registry import STAGES


def plugin_part(group: str, model: str, arguments: Mapping[str, Any], eps: str | None = None) -> Any:
    """The part of a group with the name `model`, with the defaults of what it lacks. Raises ValueError."""
    offer = plugin(group, model)
    if eps is not None and offer.takes("eps"):
        arguments = {"eps": fraction(eps, f"{group}.eps"), **arguments}
    part = offer.make(**arguments)
    part = complete_part(group, part) if group in NEEDS else part
    if eps is not None and part.eps != fraction(eps, f"{group}.eps"):
        raise ValueError(
            f"`{group}.eps` must be that of {model}, {part.eps:g}; got {eps}: say {group}.eps={part.eps}"
        )
    return part


def plugin_parts(run: Run) -> dict[str, Plugin]:
    """The parts of a run that are not of this project, by what a report calls them."""
    nodes = {group: getattr(run, group) for group in PLUGINS}
    parts = [plugin(group, node.model) for group, node in nodes.items() if node.name == "plugin"]
    parts += [plugin("stage", name) for name in dict.fromkeys(_stages(asdict(run))) if name not in STAGES]
    return {f"{part.group} {part.name} of {part.package}": part for part in parts}


def part_name(node: Any) -> str:
    """The name of a configured part in a report."""
    return str(node.model if node.name == "plugin" else node.name)


def _stages(node: Any) -> Iterator[str]:
    """The names of all stages of a configuration."""
    for key, value in node.items() if isinstance(node, dict) else ():
        yield from map(stage_name, value) if key == "stages" and isinstance(value, dict) else ()
        yield from _stages(value)
