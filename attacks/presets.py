"""A preset file of the user's own, named by its path: `config=./mine.yaml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import AliasToken, YAMLError, scan

from attacks.schema import refuse_code


def is_path(choice: str) -> bool:
    """Whether a choice of `config=` is a file rather than the name of a bundled preset."""
    return choice.endswith((".yaml", ".yml"))


def read(path: str | Path) -> DictConfig:
    """Load a preset and refuse what could run code.

    Hydra instantiates objects named under its own `hydra` key before the run starts, and opens the log files named
    there, so a preset may put nothing under it: neither by a key, nor by its defaults, nor by a `@package` line.
    Overriding Hydra's settings is left to the command line. Its defaults may not leave the folder of configurations
    either, for nothing of what lies outside is checked.

    Raises:
        FileNotFoundError, ValueError: no such file, not a mapping, or a key that is refused.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"preset `{path}` does not exist (paths are relative to {Path.cwd()})")
    try:
        with path.open(encoding="utf-8") as file:
            # Each is copied in full: ten lines of aliases can make a billion values.
            shared = any(isinstance(token, AliasToken) for token in scan(file))
        if shared:
            raise ValueError(f"preset `{path}`: YAML aliases (*name) are refused; write it out, or refer by ${{key}}")
        loaded = OmegaConf.load(path)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"preset `{path}` is not valid YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(loaded, DictConfig):
        raise ValueError(
            f"preset `{path}` must be a mapping of keys to values, such as configs/config/quickstart.yaml"
        )
    content: Any = OmegaConf.to_container(loaded, resolve=False)
    if "hydra" in content:
        raise ValueError(f"preset `{path}`: key `hydra` is refused; set it on the command line")
    # Hydra takes more letters for the end of a line than YAML does, and so does `splitlines`.
    if any("@package" in line and "hydra" in line for line in path.read_text(encoding="utf-8").splitlines()):
        raise ValueError(f"preset `{path}`: a `@package` in hydra is refused; set it on the command line")
    _refuse_defaults(content.get("defaults"), path)
    refuse_code(content, f"preset `{path}`")
    return loaded


def _refuse_defaults(defaults: Any, path: Path) -> None:
    if not isinstance(defaults, list | None):
        raise ValueError(f"preset `{path}`: `defaults` must be a list, such as - override /encoder: pocket")
    for entry in defaults or []:
        for word in ("hydra", "${", "..", "//"):
            if word in str(entry):
                why = "set it on the command line" if word == "hydra" else "it must name a choice, not a path"
                raise ValueError(f"preset `{path}`: default `{entry}` is refused; {why}")
