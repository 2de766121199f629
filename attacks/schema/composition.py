"""A configuration composed by Hydra from a preset and overrides, as the command line does."""

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override, OverrideType, Quote, QuotedString, ValueType
from hydra.errors import CompactHydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attacks.schema import launchers, presets
from attacks.schema import validate as schema
from attacks.schema.class_schema import CONFIGS
from attacks.schema.groups import CHOICES, FILES, ViewsConfig
from attacks.schema.messages import message_line
from attacks.schema.run import Run
from attacks.schema.suggestions import closest, did_you_mean

#: Hydra 1.3 wants `version_base`; 1.4 has the same rules by default and warns about the argument.
RULES = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


@cache
def register() -> None:
    """Register the schemas with Hydra: each is a choice of its group. Those of `FILES`, whose values come from YAML
    files, have a group of their own. Cached, because it takes a quarter of the time of composing a configuration."""
    store = ConfigStore.instance()
    store.store(group="schema", name="run", node=Run)
    for group, choices in CHOICES.items():
        for name, node in choices.items():
            store.store(group=f"schema/{group}" if group in FILES else group, name=name, node=_open(node))
    store.store(group="schema/transforms", name="views", node=ViewsConfig)
    launchers.register_launchers()


def _open(node: type) -> DictConfig:
    """A schema. Below some keys any key is allowed without a `+`; the part that takes them checks them."""
    config: DictConfig = OmegaConf.structured(node)
    for key in ("preprocess", "place"):
        if key in config:
            OmegaConf.set_struct(config[key], False)
    return config


def compose(preset: str = "quickstart", overrides: Sequence[str] = ()) -> Run:
    """The checked configuration that the command line `config=PRESET OVERRIDES...` gives, for use in Python.

    Raises ValueError in one line."""
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
    """`KEY=VALUE` of the command line, in Hydra's grammar, for each value of Python. Raises ValueError for what the
    command line cannot express."""
    overrides = []
    for key, value in values.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", key):
            raise ValueError(f"`values` must be keys of the configuration such as attack.steps; got {key!r}")
        override = Override(OverrideType.CHANGE, key, ValueType.ELEMENT, _element(key, value))
        overrides.append(f"{key}={override.get_value_element_as_str()}")
    return overrides


def _element(key: str, value: Any) -> Any:
    """A value as Hydra's parser would have it: a number is no scalar of NumPy, and text is in quotes where it has to
    be."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None or isinstance(value, Real):
        return value if value is None else int(value) if isinstance(value, Integral) else float(value)
    if isinstance(value, str | Path):
        plain = re.fullmatch(r"(?!(?i:null|true|false|nan|inf)$)[A-Za-z][A-Za-z0-9_./-]*", str(value))
        return str(value) if plain else QuotedString(str(value), Quote.single)
    if isinstance(value, Mapping):
        return {_element(key, str(name)): _element(key, item) for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_element(key, item) for item in value]
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
            if not presets.is_word(name):
                raise ValueError(
                    f"preset `{choice}` has a sign in its name that Hydra does not read; rename the file"
                )
            if (CONFIGS / "config" / f"{name}.yaml").exists():
                raise ValueError(f"preset `{choice}` has the name of a bundled preset; rename the file")
            if name in names:
                raise ValueError(f"preset `{choice}` has the name of another one in this sweep; rename the file")
            ConfigStore.instance().store(group="config", name=name, node=preset, package="_global_")
            choice = name
        names.append(choice)
    return f"config={','.join(names)}"


def refuse_unchecked(arguments: list[str]) -> None:
    """Check the files of a `--config-dir` before Hydra reads them, and refuse all other ways to name files: the key
    `hydra` of a file could open files or run code, and a pickle is code."""
    parser = get_args_parser()
    options, rest = parser.parse_known_args(arguments)
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
