"""A preset file of the user's own, named by its path: `config=./mine.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from attacks.schema import refuse_code


def is_path(choice: str) -> bool:
    """Whether a choice of `config=` is a file rather than the name of a bundled preset."""
    return choice.endswith((".yaml", ".yml"))


def read(path: str | Path) -> DictConfig:
    """Load a preset and refuse what could run code.

    Hydra instantiates objects named under its own `hydra` key before the run starts, so a preset may not have one;
    overriding Hydra's settings is left to the command line.

    Raises:
        FileNotFoundError, ValueError: no such file, not a mapping, or a key that is refused.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"preset `{path}` does not exist (paths are relative to {Path.cwd()})")
    try:
        loaded = OmegaConf.load(path)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise ValueError(f"preset `{path}` is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, DictConfig):
        raise ValueError(
            f"preset `{path}` must be a mapping of keys to values, such as configs/config/quickstart.yaml"
        )
    content: Any = OmegaConf.to_container(loaded, resolve=False)
    if "hydra" in content:
        raise ValueError(f"preset `{path}`: key `hydra` is refused; set it on the command line")
    for entry in content.get("defaults") or []:
        names = entry if isinstance(entry, dict) else {str(entry): None}
        if any("hydra/" in str(name) for name in names):
            raise ValueError(f"preset `{path}`: default `{entry}` is refused; set it on the command line")
    refuse_code(content, f"preset `{path}`")
    return loaded
