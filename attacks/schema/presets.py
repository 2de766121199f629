"""A preset file of the user's own, named by its path: `config=./mine.yaml`."""

import io
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError, events, nodes

from attacks.schema.encoder import PROGRAMS
from attacks.schema.groups import GROUPS
from attacks.schema.run import Run
from attacks.schema.secrets import masked, refuse_credentials
from attacks.schema.suggestions import choices
from attacks.schema.tracker import check_tracker
from attacks.schema.validate import printable_config, refuse_code

#: Far more than a preset needs: reading a megabyte of YAML takes seconds.
MOST_BYTES = 2**18
DEEPEST = 64
#: Python converts no more of a whole number from text.
MOST_DIGITS = 4300
#: The settings of Hydra that the command line may change. Of a plugin's keys none names code.
OF_HYDRA = re.compile(
    r"hydra(\.(run\.dir|sweep\.(dir|subdir)|verbose|(launcher|sweeper)(\.(?!_|params\b|custom_search_space\b)\w+)+)"
    r"|/(hydra_logging|launcher|sweeper(/\w+)*))"
)
#: The values of hydra.verbose: other ones end Hydra in a traceback.
_LOGGER = r"(?!(?:null|nan|inf)\b)[A-Za-z_][\w.]*"
VERBOSE = re.compile(rf"{_LOGGER}|\[(?!true|false){_LOGGER}(, ?(?!true|false){_LOGGER})*\]", re.IGNORECASE)
KEY = re.compile(r"(?!hydra\b|config\b|experiment\b)[A-Za-z]\w*(\.[A-Za-z0-9]\w*)*")
#: Keys that act outside of a run's own numbers and directory, and what they do.
TYPED = {
    "overwrite": "removes an earlier run",
    "workers": "starts processes",
    "shard": "leaves pictures to other processes",
    "encoder.key": "names a secret that is sent",
    "data.cache": "is a folder to write to",
    "tracker.mode": "sends the run over the network",
    "tracker.uri": "writes to a file of its own, or sends the run over the network",
}


def is_path(choice: str) -> bool:
    """Whether a choice of `config=` is a file rather than the name of a bundled preset."""
    return choice.endswith((".yaml", ".yml"))


def config_word(word: str) -> str:
    """`config=NAME` of `experiment=NAME` and `+experiment=NAME`; any other word unchanged."""
    return re.sub(r"^\+?experiment=", "config=", word)


def is_word(name: str) -> bool:
    """Whether Hydra reads the name of a preset on the command line."""
    try:
        OverridesParser.create().parse_override(f"config={name}")
    except HydraException:
        return False
    return True


def read_preset(path: str | Path) -> DictConfig:
    """Load a preset and refuse what could run code.

    Hydra instantiates objects and opens log files named under its own key `hydra` before the run starts, so a preset
    may set nothing there but the values of a sweep. Its defaults may not leave the folder of configurations, because
    files elsewhere are not checked.

    Raises FileNotFoundError or ValueError: no such file, not a mapping, or a key that is refused."""
    path = Path(path)
    source = f"preset `{printable_config(path)}`"
    if not path.is_file():
        problem = "is not a plain file" if path.exists() else f"does not exist (paths are relative to {Path.cwd()})"
        raise FileNotFoundError(f"{source} {problem}")
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{source} is larger than {MOST_BYTES // 2**10} KiB: is it a preset?")
    try:
        text = data.decode("utf-8")
        refuse_marks(text, source)
        node = OmegaConf.load(io.StringIO(text)) if text.strip() else None
    except OSError:  # OmegaConf's error for a number
        node = None
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{source} is not valid YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(node, DictConfig) or not node:
        raise ValueError(f"{source} must be a mapping of keys to values, such as configs/config/quickstart.yaml")
    refuse_credentials(text, source)
    content: Any = OmegaConf.to_container(node, resolve=False)
    _refuse_settings(content, source)
    # Hydra takes more letters for the end of a line than YAML does, and so does `splitlines`.
    if any("@package" in line and "hydra" in line for line in text.splitlines()):
        raise ValueError(f"{source}: a `@package` in hydra is refused; set it on the command line")
    for group in GROUPS:
        if isinstance(content.get(group), str | int | float | list):
            fix = f"one of its choices is named in the defaults, as - override /{group}: NAME"
            raise ValueError(f"{source}: `{group}` must map its keys to values; {fix}")
    _refuse_defaults(content.get("defaults"), source)
    refuse_code(content, source)
    return node


def refuse_marks(text: str, source: str) -> None:
    """Raise ValueError for aliases, tags, merge keys or a duplicate key in a YAML text; YAMLError for other text."""
    depth = 0
    for event in yaml.parse(text):
        depth += isinstance(event, events.CollectionStartEvent) - isinstance(event, events.CollectionEndEvent)
        if depth > DEEPEST:  # reading 100,000 brackets would take minutes
            raise ValueError(f"{source} is not valid YAML here: it is nested deeper than {DEEPEST}")
        if isinstance(event, events.AliasEvent):  # ten lines of them can make a billion values
            raise ValueError(f"{source}: YAML aliases (*name) are refused; write it out, or refer by ${{key}}")
        if getattr(event, "tag", None) is not None:  # constructors of tags raise errors of any type
            raise ValueError(f"{source}: YAML tags (!name) are refused; a value says what it is")
    tree = [yaml.compose(text, yaml.SafeLoader)]
    for node in tree:  # grows on the way
        content = node.value if isinstance(node, nodes.CollectionNode) else []
        tree += [child for entry in content for child in (entry if isinstance(entry, tuple) else [entry])]
        keys = {"<<"}  # loaders take the last of two equal keys, and a key instead of the merged one
        for key, _ in content if isinstance(node, nodes.MappingNode) else ():
            if str(key.value) in keys:
                mistake = f"duplicate key or merge `{printable_config(key.value)}` in line {key.start_mark.line + 1}"
                raise ValueError(f"{source}: {mistake}: only one would count; leave one out")
            keys.add(str(key.value))


def _values(overrides: Iterable[str]) -> dict[str, str]:
    return dict(word.lstrip("+").split("=", 1) for word in overrides if "=" in word)


def refuse_unasked(run: Run, overrides: Iterable[str]) -> None:
    """Raise ValueError for what only the command line may choose, for a preset may be somebody else's: an encoder of
    `PROGRAMS`, and the keys `TYPED`."""
    typed, name = _values(overrides), run.encoder.name
    if name in PROGRAMS and (typed.get("encoder") != name or not typed.get("encoder.model")):
        fix = f"where you trust it, say encoder={name} encoder.model=... on the command line"
        raise ValueError(f"`encoder={name}` {PROGRAMS[name]}, so a preset may not choose it: {fix}")
    refuse_untyped(run, overrides)


def refuse_untyped(run: Run, overrides: Iterable[str], keys: Iterable[str] = TYPED) -> None:
    """Raise ValueError where one of the keys `TYPED` has a value that the command line does not give."""
    check_tracker(run.tracker)
    typed = _values(overrides)
    for key in keys:
        group, _, field = key.rpartition(".")
        value = getattr(getattr(run, group) if group else run, field, None)
        typed_value = typed.get(key, "").strip("'\"")
        is_harmless = value is not True and value in (None, False, 1, "offline")  # for 1 equals True
        if not is_harmless and typed_value not in (str(value), str(value).lower()):
            word = masked(f"{key}={'true' if value is True else value}")
            fix = f"to allow it, say {word} on the command line"
            raise ValueError(f"`{word}` {TYPED[key]}, so a preset may not choose it: {fix}")


def is_choice(group: str, preset: str, overrides: Iterable[str]) -> bool:
    """Whether a user chose a part of `group`, or a key of it: on the command line, or by a preset of their own."""
    keys = (re.split(r"[.=@]", word.lstrip("+~"))[0] for word in overrides)
    return group in keys or preset not in choices()["config"]


def typed_words(words: Iterable[str], parameters: Mapping[str, str] | None) -> list[str]:
    """The words of a job that were typed: without those of a preset's `hydra.sweeper.params`."""
    return [word for word in words if word.lstrip("+").partition("=")[0] not in (parameters or {})]


def refuse_repeats(words: Iterable[str]) -> None:
    """Raise ValueError for a key that is given twice: only the last would count. `~key` removes one."""
    first: dict[str, str] = {}
    for word in words:
        key, sign, _ = word.lstrip("+").partition("=")
        if not sign or word.startswith(("~", "-")):
            continue
        if key in first:
            raise ValueError(f"`{printable_config(key)}` is given twice: {first[key]} and {word}; leave one out")
        first[key] = word


def refuse_unused(run: Run, overrides: Iterable[str]) -> None:
    """Raise ValueError for a number of gradients on the command line that a number of steps replaces."""
    for word in overrides:
        if word.lstrip("+").startswith("attack.gradients=") and run.attack.steps is not None:
            fix = "say attack.steps=null, or leave attack.gradients out"
            raise ValueError(f"`{word}` has no effect, because attack.steps={run.attack.steps} is set: {fix}")


def plain_word(word: str) -> str:
    """The word of the command line, unchanged. Raises ValueError for words that Hydra refuses without a reason, for
    settings of Hydra that could run code or write outside of the run directory, for paths in the place of choices,
    and for passwords: Hydra keeps the whole command line."""
    key, _, value = word.lstrip("+~").partition("=")
    group = key.partition("@")[0]
    has_target = "." in group and "{" in value  # which could hold a `_target_`
    if group.startswith("hydra") and (has_target or not OF_HYDRA.fullmatch(group)):
        settings = "hydra.run.dir, hydra.sweep.dir, hydra.sweep.subdir, hydra.verbose, hydra/launcher, hydra/sweeper"
        problem = f"of Hydra the command line takes {settings} with their keys, and hydra/hydra_logging"
        raise ValueError(f"`{printable_config(key)}` is refused; {problem}")
    if group == "hydra.verbose" and not VERBOSE.fullmatch(value):
        raise ValueError(f"`hydra.verbose` must be true, false, or names of loggers; got {printable_config(value)}")
    if digits := re.search(rf"\d{{{MOST_DIGITS + 1},}}", value):
        count = f"{len(digits[0]):,}"
        raise ValueError(f"`{printable_config(key)}` must be a number of at most {MOST_DIGITS:,} digits; got {count}")
    if not group or word.startswith("-") or ("=" not in word and not word.startswith("~")):
        is_choice = word in choices()["config"]
        fix = f"; did you mean config={word}?" if is_choice else ", such as perturbation.eps=8/255"
        raise ValueError(f"`{printable_config(word)}` must be KEY=VALUE{fix}")
    of_hydra = "/" in group and value.strip().startswith("{")
    if of_hydra or (group in (*GROUPS, "config") and value.strip().startswith("[")):
        raise ValueError(f"`{group}` takes one choice; got {printable_config(value)}")
    refuse_credentials(value, f"`{key}`")
    if any(step in group or ("." not in group and step in value) for step in ("..", "//")):
        raise ValueError(f"`{printable_config(word)}` must name a choice, not a path; a preset file ends in .yaml")
    return word


def _refuse_settings(content: Mapping[Any, Any], source: str) -> None:
    """Refuse all of the key `hydra` but `sweeper.params`, of which Hydra makes words of the command line."""
    if "hydra" not in content:
        return
    match content["hydra"]:
        case {"sweeper": {"params": dict() as parameters, **others}, **rest} if not others and not rest:
            pass
        case _:
            raise ValueError(f"{source}: key `hydra` is refused, but for sweeper.params; set it on the command line")
    for key, value in parameters.items():
        word = f"{key}={value}"
        if not KEY.fullmatch(str(key)) or not isinstance(value, str | int | float) or "${" in word:
            form = "hydra.sweeper.params must map keys of the configuration to values, such as seed: 0,1"
            raise ValueError(f"{source}: {form}; `{printable_config(word)}` is refused")
        if key in TYPED:
            raise ValueError(f"{source}: `{printable_config(word)}` {TYPED[key]}, so a preset may not choose it")
        try:
            OverridesParser.create().parse_override(plain_word(word))
        except (HydraException, ValueError) as error:
            reason = printable_config(" ".join(str(error).split())[:300])
            raise ValueError(f"{source}: hydra.sweeper.params: {reason}") from None


def _refuse_defaults(defaults: Any, source: str) -> None:
    if not isinstance(defaults, list | None):
        raise ValueError(f"{source}: `defaults` must be a list, such as - override /encoder: pocket")
    for entry in defaults or []:
        for word in ("hydra", "${", "..", "//"):
            if word in str(entry):
                reason = "set it on the command line" if word == "hydra" else "it must name a choice, not a path"
                raise ValueError(f"{source}: default `{printable_config(entry)}` is refused; {reason}")
