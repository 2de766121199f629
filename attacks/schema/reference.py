"""The keys of a configuration for `--help`, and as `python -m attacks.schema.reference > docs/configuration.md`."""

import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from attacks.schema.encoder import OPTIMISER
from attacks.schema.groups import CHOICES, OPEN
from attacks.schema.options import CONFIGS, MISSING, Option, options
from attacks.schema.run import OF_THE_RUN
from attacks.schema.suggestions import choices
from attacks.schema.task import OBJECTIVES

HEAD = """# Configuration

Every key that a preset or the command line may set (`python -m attacks.run config=NAME KEY=VALUE GROUP=CHOICE`).
A group takes one of its choices; [their cards](parts/index.md) say what each is, and its source. The
tables have the keys, under the choices that have them. `???` must be given; where a default is `null`, its type
stands in brackets. This page is written by `python -m attacks.schema.reference` from `attacks/schema`.
"""
FOLDER = """Choose by `GROUP=CHOICE` on the command line, or `- override /GROUP: CHOICE` in a preset; bold: default.
A group with a folder has a YAML file for each choice. The choices of the others are declared in `attacks/schema`;
[their keys](../docs/configuration.md). `config=NAME`, or `experiment=NAME`, is a preset.
This page is written by `python -m attacks.schema.reference groups > configs/README.md`.
"""
EXAMPLES = """Run an experiment:   python -m attacks.run config=quickstart
Change a value:      python -m attacks.run config=quickstart perturbation.eps=8/255 attack.gradients=400
Your own pictures:   python -m attacks.run config=quickstart data=folder data.path=my/pictures
Your own preset:     python -m attacks.run config=./mine.yaml
Sweep:               python -m attacks.run -m config=quickstart perturbation.eps=4/255,8/255
Go on after a stop:  python -m attacks.run resume=outputs/DATE/RUN
Print a preset:      python -m attacks.run config=quickstart --cfg job
Minutes, memory:     python -m attacks.run config=quickstart --dry-run"""


def reference_page() -> str:
    """docs/configuration.md."""
    parts = [HEAD.rstrip()]
    for prefix, schema in OF_THE_RUN.items():
        about = " ".join(str(inspect.getdoc(schema)).split())
        parts += [f"\n## {prefix[:-1] or 'run'}\n", f"{about}\n", *_table(prefix, options(schema))]
    parts += ["\n## config\n", "Presets: each changes what it names and leaves the rest.\n", _choices("config")]
    for group in (*CHOICES, *OPEN):
        parts += [f"\n## {group}\n", _choices(group)]
        for title, rows in _keys(group).items():
            parts += [f"\n{title}:\n", *_table(f"{group}.", rows)]
    return "\n".join(parts) + "\n"


def listing() -> str:
    """configs/README.md."""
    lines = ["# Groups and their choices\n", FOLDER, "| group | choices |", "|---|---|"]
    for group, names in choices().items():
        title = f"[{group}]({group})" if (CONFIGS / group).is_dir() else group
        lines.append(f"| {title} | {', '.join(f'**{n}**' if n == defaults().get(group) else n for n in names)} |")
    return "\n".join(lines) + "\n"


def usage(words: Iterable[str] = ()) -> str:
    """What `--help` prints: the groups, and the keys of the choices that the `words` make, or of the defaults."""
    current = defaults() | dict(word.split("=", 1) for word in words if word.partition("=")[0] in choices())
    lines = ["Viewproof: perturbations that keep fooling an image encoder under every view a camera may take.", ""]
    lines += ["Groups, as GROUP=CHOICE (in brackets: the choice whose keys are listed):"]
    for group, names in choices().items():
        lines.append(f"  {group}: {', '.join(f'[{name}]' if name == current.get(group) else name for name in names)}")
    lines += ["", "Keys, as KEY=VALUE (of other choices: --help GROUP=CHOICE; all of them: docs/configuration.md):"]
    for group, name in current.items():
        schema = OPEN.get(group) or CHOICES.get(group, {}).get(name)
        lines += [_line(f"{group}.", item) for item in (options(schema) if schema else ())]
    for prefix, schema in OF_THE_RUN.items():
        lines += [_line(prefix, item) for item in options(schema)]
    return "\n".join([*lines, "", EXAMPLES])


def defaults() -> dict[str, str]:
    """Group -> the choice that is made where nothing else is named, from configs/run.yaml."""
    entries: list[Any] = yaml.safe_load((CONFIGS / "run.yaml").read_text())["defaults"]
    pairs = [next(iter(entry.items())) for entry in entries if isinstance(entry, dict)]
    return {group: name for group, name in pairs if group != "config"} | {
        "objective": OBJECTIVES["retrieval"],
        "optimiser": OPTIMISER,
    }


def _choices(group: str) -> str:
    names = [f"`{name}`{' (default)' if defaults().get(group) == name else ''}" for name in choices()[group]]
    return f"Choices: {', '.join(names)} ([cards](parts/{group}.md))."


def _keys(group: str) -> dict[str, list[Option]]:
    """The keys of a group, by the choices that have them; a default is by choice where these differ."""
    schemas = CHOICES.get(group) or {group: OPEN[group]}
    values_by_option: dict[Option, dict[str, str]] = {}
    for name, schema in schemas.items():
        for item in options(schema):
            values_by_option.setdefault(item._replace(default=""), {})[name] = _default(item)
    tables: dict[str, list[Option]] = {}
    for item, by_choice in values_by_option.items():
        title = "every choice" if len(by_choice) == len(schemas) else ", ".join(by_choice)
        equal = len({*by_choice.values()}) == 1
        default = next(iter(by_choice.values())) if equal else ", ".join(f"{k}: {v}" for k, v in by_choice.items())
        tables.setdefault(title, []).append(item._replace(default=default))
    return tables


def _table(prefix: str, rows: list[Option]) -> Iterator[str]:
    yield from ("|key|default|range|meaning|", "|---|---|---|---|")
    for item in rows:
        kind = item.type.removesuffix(" | None")
        note = kind if item.default in (MISSING, "null") and kind != "any" else "or null" if kind != item.type else ""
        default = f"`{_default(item)}` {note and f'({note})'}".strip().replace("`null` (or null)", "`null`")
        cells = [text.replace("|", r"\|") for text in (f"`{prefix}{item.key}`", default, item.range, item.meaning)]
        yield f"|{'|'.join(cells)}|"


def _line(prefix: str, item: Option) -> str:
    about = "; ".join(text for text in (item.meaning, item.range) if text)
    return f"  {f'{prefix}{item.key}={_default(item)}':34} {about}".rstrip()


def _default(item: Option) -> str:
    return item.default if isinstance(item.default, str) else json.dumps(item.default)  # MISSING is "???"


if __name__ == "__main__":
    print(listing() if sys.argv[1:] == ["groups"] else reference_page(), end="")
