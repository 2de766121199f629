"""The errors of Hydra and OmegaConf in one line."""

import errno
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra.errors import CompactHydraException, OverrideParseException
from omegaconf import DictConfig

from attacks.schema.secrets import masked
from attacks.schema.suggestions import choices, did_you_mean, unknown_word


def message_line(error: BaseException, words: Iterable[str] = ()) -> str:
    """The message of an error, and of its cause, on one line, without misleading hints; for an unknown key or choice
    among the `words` of the command line, a suggestion."""
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
        if hint := unknown_word(words, text):
            return _plain(hint)
        if clash := _of_the_preset(text, words) or _of_another_type(text):
            return _plain(clash)
        if "You must specify 'config'" in text:
            return f"no preset is given: begin with config=quickstart; presets are {', '.join(choices()['config'])}"
    if isinstance(error, RecursionError):
        return "`defaults`: presets that lead back to themselves, or a configuration that is nested too deep"
    parts, keys = [str(error).partition("Config search path")[0]], []
    if isinstance(error, CompactHydraException) and error.__cause__ is not None:
        parts.append(str(error.__cause__))
        keys = _known_keys(error.__cause__)
        parts += [f"known here are {', '.join(keys)}"] if keys else []
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
    choice = next((word for word in words if word.startswith(f"{group}=")), None)
    is_preset = choice is not None and choice.partition("=")[2] in choices()["config"]
    return choice and (
        f"`{choice}` has no key {key[1].rpartition('.')[2]}, which config={preset[1]} sets: begin with "
        + (f"config={choice.partition('=')[2]}" if is_preset else "another preset")
    )


#: What OmegaConf calls a type -> what a value of it is.
TYPES = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}


def _of_another_type(text: str) -> str | None:
    """One line for a value that is not of its key's type."""
    form = r"Value '(.*)' (?:of type '\w+' could not be converted to|is not a valid) (\w+)"
    value, key = re.search(form, text), re.search(r"full_key: ([\w.]+)", text)
    kind = value and TYPES.get(value[2])
    return f"`{key[1]}` must be {kind}; got {_short(value[1])}" if key and value and kind else None


#: Errors of a path that no folder can be made of.
UNUSABLE = (errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)


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


#: Lines of Hydra's messages: the advice to add an unknown key with +, and OmegaConf's internals.
NOISE = ("To append", "full_key", "object_type", "reference_type")


def _known_keys(error: BaseException) -> list[str]:
    node: Any = getattr(error, "parent_node", None)
    is_unknown_key = "is not in struct" in str(error) or "not in '" in str(error)
    return [str(key) for key in node if key != "hydra"] if is_unknown_key and isinstance(node, DictConfig) else []
