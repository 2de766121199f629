"""The errors of Hydra and OmegaConf in the words of a person."""

from __future__ import annotations

from typing import Any

from hydra.errors import CompactHydraException
from omegaconf import DictConfig

from attacks.schema.secrets import masked


def one_line(error: BaseException) -> str:
    """The message of an error, and of its cause, on one line; hints that would lead astray are dropped."""
    if isinstance(error, RecursionError):
        return "`defaults`: presets that lead back to themselves, or a configuration that is nested too deep"
    parts = [str(error).partition("Config search path")[0]]
    if isinstance(error, CompactHydraException) and error.__cause__ is not None:
        parts.append(str(error.__cause__))
        keys = _known_keys(error.__cause__)
        parts += [f"known here are {', '.join(keys)}"] if keys else []
    lines = [line for part in parts for line in part.splitlines() if line.strip()]
    choices = [line.strip() for line in lines if line.startswith("\t")]
    said = [line.strip() for line in lines if not line.startswith((*NOISE, "\t", " "))]
    text = "; ".join(line.rstrip(".") for line in said)
    key = next((line.partition(":")[2].strip() for line in lines if line.strip().startswith("full_key:")), "")
    text = f"`{key}`: {text}" if key and key not in text else text
    text = masked(" ".join([text, ", ".join(choices)]).strip())
    return "".join(letter if letter.isprintable() else "?" for letter in text)


#: Lines of Hydra's messages: the advice to add an unknown key with +, and OmegaConf's internals.
NOISE = ("To append", "full_key", "object_type", "reference_type")


def _known_keys(error: BaseException) -> list[str]:
    node: Any = getattr(error, "parent_node", None)
    unknown = "is not in struct" in str(error) or "not in '" in str(error)
    return [str(key) for key in node] if unknown and isinstance(node, DictConfig) else []
