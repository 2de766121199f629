"""The cards of the parts: one for each thing that a user chooses by its key, a page for each kind."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from inspect import Parameter, Signature
from typing import Any

import yaml

from attacks.encoders import FAMILIES, load_encoder
from attacks.encoders.phash import Phash
from attacks.encoders.pocket import Pocket
from attacks.schema.groups import CHOICES, FILES
from attacks.schema.options import CONFIGS, MISSING, ROOT, Option, options
from attacks.study.pipeline import preset, stages
from attacks.study.registry import PARTS
from transforms.compose import Geometry
from transforms.draws.ranges import LIMIT
from transforms.registry import STAGES

from .pictures import Strip, examples, preset_strip, stage_strips

#: How a fact's line begins in the source, and its label on the card.
FACTS = {name: name for name in ("Formula", "Use", "Not", "Source", "Cost")} | {"Oracle": "Tested", "With": "With"}
_FACT = re.compile(rf"({'|'.join(FACTS)}): (.*)")
#: Lines of a YAML file that say nothing to a reader: comments of its head, its schema, its own name.
_SILENT_LINES = re.compile(r"# |  - (/schema|_self_)|name: |stages: \{\}")
#: An author, two or three, or a first one of many; and a year. The groups: the first author and the year.
_NAME, _YEAR = r"[A-Z][\w-]+", r"(?:19|20)\d\d\b"
PAPER = re.compile(rf"((?:van den )?{_NAME})(?:(?:, {_NAME})* & {_NAME}| et al\.)?(?:'s)?,? \(?({_YEAR})")
#: A line of docs/references.md, or a heading.
_ENTRY = re.compile(rf"- ((?:van den )?{_NAME})[^(]*\(({_YEAR})\)\. |## (.+)")
#: The source of what has no other.
OWN_SOURCE = "this project's own"


@dataclass(frozen=True)
class PartKind:
    """What the parts of a page have in common: its title, their command, and lines for those without their own."""

    title: str
    cost: str = ""
    oracle: str = ""
    source: str = ""
    command: str = "python -m attacks.run config=smoke {group}={name}"


#: Of the stages, by room of `transforms`.
ROOMS = {
    "geometry": PartKind("Views: geometry"),
    "wrappers": PartKind("Views: choices"),
    "colour": PartKind("Views: colour and light"),
    "camera": PartKind("Views: camera, file and size"),
}
#: Of everything else, by group.
GROUPS = {
    "transforms": PartKind("Presets of views", oracle="its views and their gradient, tests/schema/test_configs.py"),
    "attack": PartKind("Attacks", oracle="a run, tests/run/test_attacks.py", source=OWN_SOURCE),
    "task": PartKind("Tasks", "one comparison of the answer to each view", source=OWN_SOURCE),
    "optimiser": PartKind("Optimisers"),
    "perturbation": PartKind("Perturbation sets"),
    "objective": PartKind("Objectives", "no pass of the encoder besides that of the view"),
    "risk": PartKind("Risks", "no pass of the encoder besides those of the views"),
    "draws": PartKind("Draws", "a point for each view"),
    "penalty": PartKind("Penalties", "linear in the pixels, once a step", source=OWN_SOURCE),
    "encoder": PartKind("Encoders", "of a view one pass of the network, in an attack forward and back"),
    "defence": PartKind(
        "Defences",
        "its stages in each view, forward and back",
        "a gradient through it, tests/encoders/test_defended.py",
        OWN_SOURCE,
    ),
    "printer": PartKind(
        "Printers",
        "its stages on the sheet in each view, forward and back",
        "any texture with a gradient, tests/perturbations/patch/test_printer.py",
        command="python -m attacks.run config=patch {group}={name}",
    ),
    "data": PartKind("Pictures", "each picture is read and embedded once", source=OWN_SOURCE),
    "sanity": PartKind("Sanity checks", source=OWN_SOURCE),
    "engine": PartKind("Engines", source=OWN_SOURCE),
    "tracker": PartKind("Trackers", "a record for each step", "tests/runtime/test_adapters.py", OWN_SOURCE),
    "config": PartKind(
        "Presets of a run",
        oracle="it validates and builds, tests/schema/test_configs.py",
        source=OWN_SOURCE,
        command="python -m attacks.run config={name}",
    ),
    "policies": PartKind(
        "Policies",
        "nothing besides the run whose numbers it reads",
        "tests/gate/test_policy.py",
        OWN_SOURCE,
        "python -m attacks.run config=evaluate require={name}",
    ),
    "launcher": PartKind(
        "Launchers",
        "a process for each job",
        "tests/schema/test_launchers.py",
        "Hydra's plugin of its library",
        "python -m attacks.run -m config=smoke seed=0,1 hydra/launcher={name}",
    ),
}
#: Where the files of a group are, unless in the folder of its name.
FOLDERS = {"launcher": "hydra/launcher"}


@dataclass(frozen=True)
class PartCard:
    """One part: its key, its lines, and the tables, YAML text and pictures below them."""

    name: str
    description: str
    lines: dict[str, str]
    command: str
    keys: tuple[tuple[str, ...], ...] = ()
    body: str = ""
    strips: tuple[Strip, ...] = ()


def description_and_facts(text: str) -> tuple[str, dict[str, str]]:
    """The first paragraph of a description without its facts, and the facts."""
    description, facts, key, first = "", dict[str, str](), "", True
    for line in text.strip().splitlines():
        match = _FACT.match(line)
        if not line.strip():
            key, first = "", False
        elif match:
            key, first = match[1], False
            facts[key] = match[2]
        elif key:
            facts[key] += f" {line.strip()}"
        elif first:
            description += f" {line.strip()}"
    return description.strip(), facts


def as_fields(lines: list[str]) -> None:
    """Make each fact among the lines of a docstring a field of reStructuredText, in place."""
    inside = False
    for i, line in enumerate(lines):
        match = _FACT.match(line)
        inside = bool(match) or (inside and bool(line.strip()))
        if match:
            text = f":math:`{match[2]}`" if match[1] == "Formula" else match[2]
            lines[i] = f":{FACTS[match[1]]}: {text}"
        elif inside:
            lines[i] = f"    {line.strip()}"


def papers(text: str) -> str:
    """The papers that a text names, each once, in order."""
    names = (re.sub(r"'s|\(", "", match[0]) for match in PAPER.finditer(" ".join(text.split())))
    return ", ".join(dict.fromkeys(name if "&" in name else name.replace(",", "") for name in names))


@cache
def references() -> dict[tuple[str, str], str]:
    """The section of docs/references.md that has a paper, by its first author and year."""
    sections, section = dict[tuple[str, str], str](), ""
    for match in map(_ENTRY.match, (ROOT / "docs" / "references.md").read_text(encoding="utf-8").splitlines()):
        if match and match[3]:
            section = match[3].lower().replace(" ", "-")
        elif match:
            sections[match[1], match[2]] = section
    return sections


@cache
def all_cards() -> dict[str, list[PartCard]]:
    """The cards of each page: the stages by room, then the choices of each group."""
    rooms = {page: [stage_card(name) for name in STAGES if room_of_stage(STAGES[name]) == page] for page in ROOMS}
    files = {group for group in GROUPS if group not in CHOICES or group in FILES}
    return rooms | {
        group: [(file_card if group in files else choice_card)(group, name) for name in choice_names(group)]
        for group in GROUPS
    }


def choice_names(group: str) -> list[str]:
    """The choices of a group, as declared or, of files alone, by name."""
    folder = CONFIGS / FOLDERS.get(group, group)
    return [*CHOICES[group]] if group in CHOICES else sorted(path.stem for path in folder.glob("*.yaml"))


def stage_card(name: str) -> PartCard:
    stage, strips = STAGES[name], stage_strips(name)
    text = inspect.getdoc(stage) or ""
    description, facts = description_and_facts(text)
    fused = "fuses with its neighbours into one resample a view"
    facts.setdefault("Cost", fused if Geometry in stage.__mro__ else "linear in the pixels of a view")
    lines = {"Key": f"`transforms.stages.{name}`", "Python": _python(stage), **_facts(facts, text, PartKind(""))}
    example_arguments = examples()[name]
    if getattr(stage, "dims", None) == 0:  # a list of values of one argument
        example_arguments = {key: value[2] for key, value in example_arguments.items()}
    example = yaml.safe_dump({name: example_arguments}, default_flow_style=True, sort_keys=False, width=1000).strip()
    command = f"viewproof show --stage '{example}' --out {name}.png"
    return PartCard(name, description, lines, command, tuple(_arguments(name)), strips=strips)


def choice_card(group: str, name: str) -> PartCard:
    """The card of a choice that a schema declares."""
    schema = CHOICES[group][name]
    pairs = (pair for pair in _declarations(group, name) if "Use" in description_and_facts(pair[0])[1])
    text, part = next(pairs, ("", None))
    description, facts = description_and_facts(text)
    if part and (group in ("encoder", "objective") or not inspect.isclass(part)):  # which say how they compute
        first = description_and_facts(inspect.getdoc(schema) or "")[0]
        description = description if description.startswith(first) else f"{first} {description}"
    rows = options(schema)
    lines = {"Key": f"`{group}={name}`", "Python": _python(part)}
    lines |= _facts(facts, " ".join([text, *(row.paper for row in rows)]), GROUPS[group])
    return replace(_card(group, name, description, lines), keys=tuple(map(_key, rows)))


def file_card(group: str, name: str) -> PartCard:
    """The card of a choice that is a YAML file of `configs`."""
    folder = FOLDERS.get(group, group)
    text = (CONFIGS / folder / f"{name}.yaml").read_text(encoding="utf-8")
    head = [line[2:] for line in text.splitlines() if line.startswith("# ") and "@package" not in line]
    description, facts = description_and_facts("\n".join(head))
    body = "\n".join(line for line in text.splitlines() if not _SILENT_LINES.match(line))
    strips: tuple[Strip, ...] = ()
    if group == "transforms":
        pipeline, strips = preset(name), (preset_strip(name),)
        facts.setdefault("Cost", f"{pipeline.dims} coordinates; resamples of a view: {pipeline.resamples()}")
    if group == "config":
        facts.setdefault("Cost", _gradients(yaml.safe_load(text).get("attack") or {}))
    key = f"`{folder}={name}`" if group != "policies" else f"`require={name}`"
    lines = {"Key": key} | _facts(facts, " ".join(head), GROUPS[group])
    body = body if "  - " in body else body.removeprefix("defaults:").strip()  # all of them were of the schema
    return replace(_card(group, name, description, lines), body=body, strips=strips)


def _card(group: str, name: str, description: str, lines: dict[str, str]) -> PartCard:
    needs = lines.pop("With", "")
    command = f"{GROUPS[group].command.format(group=group, name=name)} {needs}".strip()
    if "config=" in needs:  # a preset of its own
        command = re.sub(r"config=\w+ ", "", command, count=1)
    return PartCard(name, description, {key: text for key, text in lines.items() if text}, command)


def _declarations(group: str, name: str) -> Iterator[tuple[str, Any]]:
    """The docstrings that may hold the facts of a choice, and whose they are; no encoder's library is imported."""
    yield inspect.getdoc(CHOICES[group][name]) or "", None
    if group == "encoder" and name in FAMILIES:
        source = (ROOT / "attacks" / "encoders" / "families" / f"{name}_models.py").read_text(encoding="utf-8")
        functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
        yield next(ast.get_docstring(node) or "" for node in functions if node.name == "load"), load_encoder
    bundled_encoders: dict[str, list[Any]] = {"pocket": [Pocket], "phash": [Phash]}
    for part in filter(callable, (*bundled_encoders.get(name, []), *PARTS[group][name])):
        yield inspect.getdoc(part) or "", part


def _facts(facts: dict[str, str], text: str, kind: PartKind) -> dict[str, str]:
    """The facts in their order, by label; where no source is given, the papers of the text."""
    facts = {"Source": papers(text) or kind.source, "Cost": kind.cost, "Oracle": kind.oracle} | facts
    if "Formula" in facts:
        facts["Formula"] = f"{{math}}`{facts['Formula']}`"
    return {label: facts[name].removesuffix(".") for name, label in FACTS.items() if facts.get(name)}


def _python(part: Any) -> str:
    """How Python calls a class, and a link to its reference."""
    if not inspect.isclass(part):
        return ""
    parameters = [p.replace(annotation=Parameter.empty) for p in inspect.signature(part.__init__).parameters.values()]
    call = f"{part.__name__}{Signature(parameters[1:])}"
    return f"`{call}` ({{py:class}}`reference <{part.__module__}.{part.__qualname__}>`)"


def _arguments(name: str) -> Iterator[tuple[str, ...]]:
    """Each argument of a stage with its default, and what the docstring and the constructor say of it."""
    block = (inspect.getdoc(STAGES[name]) or "").partition("Args:\n")[2].partition("\n\n")[0]
    texts: dict[str, str] = {}
    for entry in re.split(r"\n(?= {4}\w)", f"\n{block}")[1:]:
        keys, _, text = entry.partition(": ")
        texts |= {key.strip(): " ".join(text.split()).removesuffix(".") for key in keys.split(",")}
    for key, argument in [*inspect.signature(STAGES[name].__init__).parameters.items()][1:]:  # type: ignore[misc]
        default = "required" if argument.default is Parameter.empty else f"`{argument.default!r}`"
        text, limits = texts.get(key, ""), _limits(name, key)
        yield f"`{key}`", default, text if limits.partition(" ")[2] in text else f"{text} ({limits})"


def _limits(name: str, key: str) -> str:
    """The range that a stage allows an argument: what it answers to one that is far too wide."""
    try:
        stages({name: examples()[name] | {key: [-1e9, 1e9]}}, "stages")
    except ValueError as error:
        match = re.search(rf"`{key}` must lie (within \[.*?\])", str(error))
        if match and f"{LIMIT:g}" not in match[1]:
            return match[1]
    return ""


def _key(item: Option) -> tuple[str, ...]:
    default = "required" if item.default == MISSING else f"`{item.default!r}`"
    both = item.meaning and item.range
    return f"`{item.key}`", default, f"{item.meaning} ({item.range})" if both else item.meaning or item.range


def _gradients(attack: dict[str, Any]) -> str:
    if "steps" in attack:
        return f"{attack['steps']} steps of {attack.get('views', 1)} views for each picture, in each arm"
    (default,) = (item.default for item in options(CHOICES["attack"]["single"]) if item.key == "gradients")
    return f"{attack.get('gradients', default)} gradients of each picture, in each arm"


def room_of_stage(stage: type) -> str:
    return stage.__module__.split(".")[1]


def card_pages() -> dict[str, str]:
    """The text of each page in MyST, by name, and `index`."""
    cards_by_page = all_cards()
    titles = {name: kind.title for name, kind in (ROOMS | GROUPS).items()}
    texts = {name: _page(name, titles[name], cards_by_page[name]) for name in cards_by_page}
    rows = "\n".join(
        f"| [{titles[name]}]({name}.md) | {', '.join(f'[{card.name}]({name}.md#{card.name})' for card in cards)} |"
        for name, cards in cards_by_page.items()
    )
    tree = "\n".join(cards_by_page)
    intro = "A card for each thing that is chosen by its key. They are written from the code when the site is built."
    texts["index"] = (
        f"# Parts\n\n{intro}\n\n| page | cards |\n|---|---|\n{rows}\n\n"
        f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{tree}\n```\n"
    )
    return texts


def _page(name: str, title: str, cards: list[PartCard]) -> str:
    intro = inspect.getdoc(importlib.import_module(f"transforms.{name}")) if name in ROOMS else ""
    return "\n\n".join([f"# {title}", *([intro] if intro else []), *map(_text, cards)]) + "\n"


def _text(card: PartCard) -> str:
    lines = "\n".join(f"- **{label}:** {with_links(text)}" for label, text in card.lines.items())
    parts = [f"## {card.name}", with_links(card.description), lines]
    for strip in card.strips:
        at = f" at {', '.join(strip.values)}" if strip.values else ""
        parts.append(f"{strip.label}{at}:\\\n![{card.name}: {strip.label.strip('`')}](pictures/{strip.file}.jpg)")
    if card.keys:
        rows = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in card.keys)
        parts.append(f"| argument | default | meaning |\n|---|---|---|\n{rows}")
    if card.body:
        parts.append(f"```yaml\n{card.body}\n```")
    return "\n\n".join([*parts, f"```bash\n{card.command}\n```"])


def with_links(text: str) -> str:
    """Pages of the documentation and papers as links, tests and files as code."""
    text = re.sub(r"docs/(\w+)\.md", r"[\1](../\1.md)", text)
    text = re.sub(r"(?<![`\w/])((?:tests|configs|attacks)/[\w./]*\w)", r"`\1`", text)
    return PAPER.sub(lambda match: f"[{match[0]}](../references.md#{references()[match[1], match[2]]})", text)
