"""Cases of configurations: bundled presets after some damage, and words of a command line."""

from __future__ import annotations

import dataclasses
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from omegaconf import OmegaConf

import configs
from attacks.run import compose
from attacks.schema.groups import CHOICES, OPEN
from fuzzing.odd import KEYS, ODD
from transforms.registry import STAGES

FOLDER = Path(configs.__file__).parent


@cache
def bundled() -> dict[str, str]:
    """Place in `configs` to text."""
    return {str(path.relative_to(FOLDER)): path.read_text() for path in sorted(FOLDER.rglob("*.yaml"))}


@cache
def composed() -> tuple[str, ...]:
    """What some presets become, as text."""
    runs = [compose(name) for name in ("smoke", "evaluate", "patch_quickstart")]
    return tuple(OmegaConf.to_yaml(OmegaConf.create(dataclasses.asdict(run))) for run in runs)


@cache
def known() -> tuple[str, ...]:
    """Keys that a command line may give: of the schemas, of groups, and of the stages' arguments."""
    made = []
    for group, choices in CHOICES.items():
        made += [group, f"{group}.name"]
        made += [
            f"{group}.{field}"
            for choice in choices.values()
            for field in vars(choice).get("__dataclass_fields__", {})
        ]
    made += [f"transforms.stages.{stage}" for stage in STAGES]
    return tuple(
        dict.fromkeys(
            [
                *made,
                "transforms",
                "transforms.value",
                "transforms.kernel",
                "seed",
                "show",
                "evaluate.layers",
                "evaluate.views",
            ]
        )
    )


_text = st.sampled_from(ODD) | st.text(max_size=12) | st.integers().map(str) | st.floats().map(str)
_atom = st.sampled_from(["1", "a", "camera", "null", "''", "0.5", "${seed}"])
_several = st.lists(_atom, max_size=3).map(lambda atoms: f"[{','.join(atoms)}]") | st.builds(
    "{{{}: {}}}".format, _atom, _atom
)
_choice = st.sampled_from([name for group in CHOICES.values() for name in group] + ["camera", "identity", "eot2d"])


#: Words that a command line takes for something else.
FLAGS = (
    "-m",
    "--help",
    "--cfg=job",
    "--multirun=5",
    "-x",
    "--",
    "-c",
    "--hydra-help=3",
    "resume=a",
    "=",
    "@",
)


@st.composite
def overrides(draw: st.DrawFn) -> str:
    """A word of the command line, most of them near to a right one."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=20) | st.sampled_from(FLAGS))
    if draw(st.integers(0, 2)) == 0:
        group = draw(st.sampled_from([*CHOICES, *OPEN]))
        return f"{group}={draw(st.sampled_from([*CHOICES.get(group, ('camera', 'eot3d'))]))}"
    sign = draw(st.sampled_from(["", "", "", "", "+", "++", "~"]))
    key = draw(st.sampled_from(known()) | st.sampled_from(KEYS) | st.sampled_from([*CHOICES, *OPEN, "config"]))
    package = draw(st.sampled_from(["", "", "", "", "", "@_global_", "@hydra", "@a:b"]))
    value = draw(st.sampled_from(["1", "2", "8/255", "0.5", "true", "null"]) | _text | _choice | _several)
    return f"{sign}{key}{package}={value}" if sign != "~" or draw(st.booleans()) else f"~{key}"


def hurt(text: str, number: int) -> str:
    """The text of a preset after some hits, which follow from the number."""
    source = random.Random(number)
    for _ in range(source.choice((0, 1, 1, 2, 3))):
        text = source.choice((_in_tree, _in_tree, _in_lines, _in_letters))(text, source)
    return text


def _in_tree(text: str, source: random.Random) -> str:
    """A key or a value somewhere in it is another."""
    try:
        tree = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError):
        return text
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, value in [*node.items()] if isinstance(node, dict) else [*enumerate(node)]:
            places.append((node, key))
            if isinstance(value, dict | list) and len(places) < 200:
                walk(value)

    if not isinstance(tree, dict | list) or not tree:
        return text
    walk(tree)
    node, key = source.choice(places)
    try:
        new = yaml.safe_load(source.choice(ODD))
    except (yaml.YAMLError, ValueError):
        new = source.choice((1, "a"))
    match source.randrange(4):
        case 0 if isinstance(node, dict):
            node[source.choice(KEYS)] = node.pop(key)
        case 1 if isinstance(node, dict):
            node[source.choice((*KEYS, *known()))] = new
        case 2:
            for _ in range(source.choice((1, 5, 60))):
                new = {source.choice(KEYS): new} if source.random() < 0.5 else [new]
            node[key] = new
        case _:
            node[key] = new
    head = "# @package _global_\n" if "@package" in text else ""
    return head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)


def _in_lines(text: str, source: random.Random) -> str:
    """A line is dropped, doubled, indented otherwise, or another one."""
    lines = text.splitlines() or [""]
    at = source.randrange(len(lines))
    match source.randrange(5):
        case 0:
            del lines[at]
        case 1:
            lines.insert(source.randrange(len(lines)), lines[at])
        case 2:
            lines[at] = source.choice((" ", "\t", "  ", "- ")) + lines[at]
        case 3:
            lines.insert(at, f"{source.choice((*KEYS, *known()))}: {source.choice(ODD)}")
        case _:
            lines[at] = lines[at].partition(":")[0] + ": " + source.choice(ODD)
    return "\n".join(lines) + "\n"


def _in_letters(text: str, source: random.Random) -> str:
    """Something is put in, or taken out."""
    first, second = sorted(source.randrange(len(text) + 1) for _ in range(2))
    if source.random() < 0.3:
        return text[:first] + text[first + min(second - first, 20) :]
    return (
        text[:first]
        + source.choice((*ODD, ":", "- ", "{", "}", "[", "]", "#", "'", '"', "\r", "\t", "---\n", "%YAML 1.1\n", "@"))
        + text[first:]
    )


#: A preset alone, as `pipelines.preset` and `presets.read` take it; one with words of the command line; or a whole
#: configuration, as a run directory holds it.
PRESETS = st.builds(hurt, st.sampled_from(sorted(bundled().values())), st.integers(0, 2**32))
WORDS = st.lists(overrides(), max_size=3)
WHOLE = st.fixed_dictionaries(
    {"whole": st.builds(hurt, st.deferred(lambda: st.sampled_from(composed())), st.integers(0, 2**32))}
)
CASES: SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries({"preset": PRESETS}),
    WHOLE,
    st.fixed_dictionaries({"words": WORDS}, optional={"preset": PRESETS}),
)
