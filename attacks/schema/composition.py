"""A configuration composed by Hydra from a preset and overrides; its errors in one line."""

import errno
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import CompactHydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attacks.schema import launchers, presets
from attacks.schema import validate as schema
from attacks.schema.encoder import BLACK_BOXES, GRADIENT_FREE, OPTIMISER
from attacks.schema.groups import CHOICES, FILES, ViewsConfig
from attacks.schema.options import CONFIGS
from attacks.schema.run import Run
from attacks.schema.secrets import masked
from attacks.schema.suggestions import choices, closest, did_you_mean, unknown_word
from attacks.schema.task import OBJECTIVES

#: Hydra 1.3 wants `version_base`; 1.4 has the same rules by default and warns about the argument.
RULES = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
#: What OmegaConf calls a type -> what a value of it is.
TYPES = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
#: Errors of a path that no folder can be made of.
UNUSABLE = (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)
#: Lines of Hydra's messages: the advice to add an unknown key with +, and OmegaConf's internals.
NOISE = ("To append", "full_key", "object_type", "reference_type")


@cache
def register() -> None:
    """Register the schemas with Hydra: each is a choice of its group. Those of `FILES`, whose values come from YAML
    files, have a group of their own. Cached, because it takes a quarter of the time of composing a configuration."""
    store = ConfigStore.instance()
    store.store(group="schema", name="run", node=Run)
    for group, schemas in CHOICES.items():
        for name, schema_class in schemas.items():
            node = OmegaConf.structured(schema_class)
            # Below these keys any key is allowed without a `+`; the part that takes them checks them.
            for key in {"preprocess", "place", "arguments"} & {*node}:
                OmegaConf.set_struct(node[key], False)
            store.store(group=f"schema/{group}" if group in FILES else group, name=name, node=node)
    for task, name in OBJECTIVES.items():
        store.store(group="objective", name=f"of_{task}", node=OmegaConf.structured(CHOICES["objective"][name]))
    for encoder in CHOICES["encoder"]:
        name = GRADIENT_FREE[0] if encoder in BLACK_BOXES else OPTIMISER
        store.store(group="optimiser", name=f"of_{encoder}", node=OmegaConf.structured(CHOICES["optimiser"][name]))
    store.store(group="schema/transforms", name="views", node=ViewsConfig)
    launchers.register_launchers()


def compose(preset: str = "quickstart", overrides: Sequence[str] = ()) -> Run:
    """The checked configuration of the command line `config=PRESET OVERRIDES...`. Raises ValueError in one line."""
    register()
    try:
        overrides = [stored_preset(f"config={preset}"), *overrides]
        for word in overrides:
            presets.plain_word(word)
        with hydra.initialize_config_dir(str(CONFIGS), **RULES):
            run = schema.validate(hydra.compose("run", overrides=overrides))
    except (CompactHydraException, OmegaConfBaseException, RecursionError) as error:
        raise ValueError(message_line(error, overrides)) from None
    presets.refuse_unasked(run, overrides)
    presets.refuse_unused(run, overrides)
    return run


def words(values: Mapping[str, Any]) -> list[str]:
    """`KEY=VALUE`, in Hydra's grammar, for each value of Python. Raises ValueError for what it cannot express."""
    overrides = []
    for key, value in values.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", key):
            raise ValueError(f"`values` must be keys of the configuration such as attack.steps; got {key!r}")
        overrides.append(f"{key}={_element(key, value)}")
    return overrides


def _element(key: str, value: Any) -> str:
    """A value as Hydra's parser reads it: text is in quotes where it has to be."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, Real):  # of NumPy too
        return str(int(value) if isinstance(value, Integral) else float(value))
    if isinstance(value, str | Path):
        plain = re.fullmatch(r"(?!(?i:null|true|false|nan|inf)$)[A-Za-z][A-Za-z0-9_./-]*", str(value))
        return str(value) if plain else QuotedString(str(value), Quote.single).with_quotes()
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{_element(key, str(k))}:{_element(key, v)}' for k, v in value.items())}}}"
    if isinstance(value, Sequence):
        return f"[{','.join(_element(key, item) for item in value)}]"
    raise ValueError(f"`{key}` must be a word, a number, a list or a mapping; got {type(value).__name__}")


def stored_preset(argument: str) -> str:
    """Store the preset file of `config=./mine.yaml` under its stem, so that Hydra can choose it."""
    if not argument.startswith("config="):
        return argument
    names = []
    for text in argument.removeprefix("config=").split(","):
        choice = text.strip("'\"")
        if presets.is_path(choice):
            preset, name = presets.read_preset(choice), Path(choice).stem
            for is_wrong, problem in (
                (not presets.is_word(name), "a sign in its name that Hydra does not read"),
                (name in choices()["config"], "the name of a bundled preset"),
                (name in names, "the name of another one in this sweep"),
            ):
                if is_wrong:
                    raise ValueError(f"preset `{choice}` has {problem}; rename the file")
            ConfigStore.instance().store(group="config", name=name, node=preset, package="_global_")
            choice = name
        names.append(choice)
    return f"config={','.join(names)}"


def refuse_unchecked(arguments: list[str]) -> None:
    """Check the files of a `--config-dir` before Hydra reads them, and refuse all other ways to name files: the key
    `hydra` of a file could open files or run code, and a pickle is code."""
    options, rest = (parser := get_args_parser()).parse_known_args(arguments)
    for flag in rest:
        near = did_you_mean(flag.lstrip("-")) or closest(flag, parser._option_string_actions)
        raise ValueError(f"unknown option `{flag}`: values are given as KEY=VALUE{near}")
    for flag in ("config_path", "config_name", "experimental_rerun"):
        if getattr(options, flag) is not None:
            raise ValueError(f"`--{flag.replace('_', '-')}` is refused: name a preset file, config=./mine.yaml")
    for argument in options.overrides:
        presets.plain_word(argument)
    folder = Path(options.config_dir or os.devnull)
    for file in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if "hydra" in str(file.relative_to(folder)) or (file.is_symlink() and file.is_dir()):
            raise ValueError(f"`{file}` is refused: a folder of configurations has no links to folders, and no hydra")
        if file.suffix in (".yaml", ".yml"):
            presets.read_preset(file)


def message_line(error: BaseException, words: Iterable[str] = ()) -> str:
    """The message of an error, and of its cause, on one line; for an unknown key or choice among the `words` of the
    command line, with a suggestion."""
    words = list(words)
    if isinstance(error, OverrideParseException) and error.message.startswith("Lexer"):
        key, _, value = error.override.partition("=")
        if value.startswith("~"):
            return _plain(f"`{error.override}`: no ~ is expanded here; write {key}={Path(value).expanduser()}")
        example = f"""'{key}="{value}"'"""
        return _plain(f"`{error.override}`: a value with such a sign stands in two kinds of quotes: {example}")
    if isinstance(error, OSError) and error.errno in UNUSABLE and _is_directory_of_run(error.filename, words):
        reason = str(error.strerror).lower()
        key = "hydra.sweep.dir" if {"-m", "--multirun"} & {*words} else "hydra.run.dir"
        return _plain(f"`{_short(str(error.filename))}`: {reason}; name another run directory, {key}=PATH")
    if isinstance(error, CompactHydraException):
        text = f"{error} {error.__cause__ or ''}"
        if hint := unknown_word(words, text) or _of_the_preset(text, words) or _of_another_type(text):
            return _plain(hint)
        if "You must specify 'config'" in text:
            return f"no preset is given: begin with config=quickstart; presets are {', '.join(choices()['config'])}"
    if isinstance(error, RecursionError):
        return "`defaults`: presets that lead back to themselves, or a configuration that is nested too deep"
    parts, keys = [str(error).partition("Config search path")[0]], []
    if isinstance(error, CompactHydraException) and error.__cause__ is not None:
        cause, node = str(error.__cause__), getattr(error.__cause__, "parent_node", None)
        if isinstance(node, DictConfig) and ("is not in struct" in cause or "not in '" in cause):
            keys = [str(k) for k in node if k != "hydra"]
        parts += [cause, f"known here are {', '.join(keys)}" if keys else ""]
    lines = [line for part in parts for line in part.splitlines() if line.strip()]
    choices_listed = [line.strip() for line in lines if line.startswith("\t")]
    sentences = [line.strip().rstrip(".") for line in lines if not line.startswith((*NOISE, "\t", " "))]
    key = next((line.partition(":")[2].strip() for line in lines if line.strip().startswith("full_key:")), "")
    if keys and sentences[0].startswith("Could not override"):
        group = sentences[0].split("'")[1]  # which Hydra quotes; the full key stands where OmegaConf has one
        sentences = [f"unknown key `{key or group}`", sentences[-1]]
    text = "; ".join(sentences)
    text = f"`{key}`: {text}" if key and key not in text else text
    return _plain(" ".join([text, ", ".join(choices_listed)]).strip() + (did_you_mean(key, keys) if keys else ""))


def _of_the_preset(text: str, words: Sequence[str]) -> str | None:
    """One line for a preset that sets a key which another choice on the command line has not."""
    preset, key = re.search(r"In 'config/(\w+)': ConfigKeyError", text), re.search(r"full_key: ([\w.]+)", text)
    if preset is None or key is None:
        return None
    group = key[1].partition(".")[0]
    for name in (word.partition("=")[2] for word in words if word.startswith(f"{group}=")):
        fix = f"config={name}" if name in choices()["config"] else "another preset"
        clash = f"`{group}={name}` has no key {key[1].rpartition('.')[2]}, which config={preset[1]} sets"
        return f"{clash}: begin with {fix}"
    return None


def _of_another_type(text: str) -> str | None:
    """One line for a value that is not of its key's type."""
    form = r"Value '(.*)' (?:of type '\w+' could not be converted to|is not a valid) (\w+)"
    value, key = re.search(form, text), re.search(r"full_key: ([\w.]+)", text)
    kind = value and TYPES.get(value[2])
    return f"`{key[1]}` must be {kind}; got {_short(value[1])}" if key and value and kind else None


def _is_directory_of_run(name: object, words: Sequence[str]) -> bool:
    """Whether a path is the directory of the run or sweep that the command line names, above it or in it."""
    keys = ("hydra.run.dir=", "hydra.sweep.dir=")
    folders = [word.partition("=")[2] for word in words if word.startswith(keys)] or ["outputs"]
    path, run_paths = Path(str(name)).absolute(), [Path(folder).absolute() for folder in folders]
    return any(other.is_relative_to(path) or path.is_relative_to(other) for other in run_paths)


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:60]}...{text[-20:]}"


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in masked(text))
