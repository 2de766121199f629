"""Suggestions for a mistyped key or choice, across groups."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import cache

from attacks.schema.groups import CHOICES, FILES, GROUPS, OPEN
from attacks.schema.options import CONFIGS, options
from attacks.schema.run import OF_THE_RUN

#: Words of other tools and of the README -> ours: a key, the last part of a key, or a choice.
ALIASES = {
    "epsilon": "perturbation.eps",
    "iterations": "attack.steps",
    "iters": "attack.steps",
    "batch_size": "evaluate.batch",
    "encoder.path": "encoder.model",
    "encoder=clip": "encoder=open_clip encoder.model=ViT-B-32",
    "encoder=dinov2": "encoder=transformers encoder.model=facebook/dinov2-small",
    "encoder=arcface": "encoder=onnx encoder.model=FILE.onnx",
    "encoder=vae": "encoder=diffusers encoder.model=FOLDER",
    "data=imagenet20": "data=folder data.path=imagenet20",
    "objective=untargeted": "objective=away",
}
#: Forms of a model's name -> the family that has such models; the first that fits counts.
FAMILIES = (
    (r".*\.onnx", "onnx"),
    (r".*\.(pt|pth|ts)", "torchscript"),
    (r".+/.+", "transformers"),
    (r".*[A-Z].*", "open_clip"),
    (r".*(\.|_patch).*", "timm"),
    (r"lite[0-2]|open_nsfw", "pypi"),
    (r"\w*\d\w*", "torchvision"),
)


@cache
def choices() -> dict[str, tuple[str, ...]]:
    """Group -> the names of its choices, `config` among the groups."""
    names_by_group = {group: tuple(schemas) for group, schemas in CHOICES.items()}
    for group in ("config", *OPEN):
        names_by_group[group] = tuple(sorted(path.stem for path in CONFIGS.glob(f"{group}/*.yaml")))
    return names_by_group


@cache
def keys() -> dict[str, tuple[str, ...]]:
    """Every key with its group -> the choices that have it; none for the keys of a run that belong to no group."""
    owners: dict[str, tuple[str, ...]] = {}
    for group in GROUPS:
        for name, schema in (CHOICES.get(group) or {group: OPEN[group]}).items():
            for item in options(schema):
                key = f"{group}.{item.key}"
                owners[key] = (*owners.get(key, ()), name)
    for prefix, schema in OF_THE_RUN.items():
        owners |= {f"{prefix}{item.key}": () for item in options(schema)}
    return owners


def did_you_mean(word: str, candidates: Sequence[str] = ()) -> str:
    """`; did you mean ...?` for KEY or KEY=VALUE of which the key or the choice is unknown, else nothing. What a file
    of stages lacks is one of its `candidates`, mistyped, or a new key, which is added with a plus."""
    if any(word.startswith(f"{group}.stages.") for group in FILES):
        near = closest(word.partition("=")[0].rpartition(".")[2], candidates)
        return near or f"; what is not in the file yet is added with a plus: +{word}"
    fix = suggestion(word)
    return f"; did you mean {fix}?" if fix else ""


def suggestion(word: str) -> str | None:
    """The most likely correction of KEY or KEY=VALUE; None where it is right, or similar to nothing."""
    key, sign, value = word.lstrip("+").partition("=")
    if word in ALIASES:
        return ALIASES[word]
    if key in choices():
        return None if not sign or value in choices()[key] else _choice(key, value)
    if key in keys():
        owners, group = keys()[key], key.partition(".")[0]  # of a key that some choices have: the first of them
        is_partial = owners and set(owners) != set(CHOICES.get(group, owners))
        return f"{group}={owners[0]} {key}{sign}{value}" if is_partial else None
    if any(key.startswith(f"{group}.stages.") for group in FILES) or not re.fullmatch(r"[\w.]+", key):
        return None
    if alias := ALIASES.get(key) or ALIASES.get(key.rpartition(".")[2]):
        return f"{alias}{sign}{value}"
    if "." not in key and (near := _close(key, choices(), 0.75)):
        return f"{near}{sign}{value}"
    match = _key(key)
    return match and f"{match}{sign}{value}"


def unknown_word(words: Iterable[str], message: str) -> str | None:
    """One line for the word that a message of Hydra's refuses, with a suggestion or all choices, if there is any."""
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        in_message = f"'{key}/{value}'" in message or f"'{key}'" in message
        fix = suggestion(word) if key and in_message else None
        if f"Could not find '{key}/{value}'" in message and key in choices() and fix is None:
            return f"`{word}` is unknown: {key} is {', '.join(choices()[key])}"
        if fix:
            subject = f"`{key}={value}` is unknown" if key in choices() else f"unknown key `{key}`"
            subject = f"the choice of {key.partition('.')[0]} has no key `{key}`" if key in keys() else subject
            return f"{subject}: did you mean {fix}?"
    return None


def _choice(group: str, value: str) -> str | None:
    if near := _close(value, choices()[group], 0.75):
        return f"{group}={near}"
    for other, names in choices().items():
        if value in names and value != "none":
            return f"{other}={value}"
    if group == "encoder":
        families = (f"encoder={name} encoder.model={value}" for form, name in FAMILIES if re.fullmatch(form, value))
        return next(families, None)
    for other, names in choices().items():
        if near := _close(value, names, 0.75):
            return f"{other}={near}"
    near = _close(value, choices()[group])
    return near and f"{group}={near}"


def _key(key: str) -> str | None:
    """The most similar known key: the same name in another group, a typing error in one part, or both."""
    head, _, last = key.rpartition(".")
    group = head if head in choices() else _close(head, choices()) or head
    in_group = {name.rpartition(".")[2]: name for name in keys() if name.partition(".")[0] == group}
    # The group that comes first counts: attack.steps before sanity.steps.
    by_last_part = {name.rpartition(".")[2]: name for name in reversed(keys())}
    exact = in_group.get(last) or by_last_part.get(last)
    near = _close(last, in_group) or ("" if head else _close(last, by_last_part, 0.75))
    return exact or (by_last_part | in_group).get(near or "")


def closest(word: str, candidates: Iterable[str]) -> str:
    """`; did you mean ...?` with the known word that is most like this one, or nothing."""
    near = _close(word, candidates)
    return f"; did you mean {near}?" if near else ""


def _close(word: str, candidates: Iterable[str], cutoff: float = 0.6) -> str | None:
    return next(iter(get_close_matches(word, list(candidates), 1, cutoff)), None)
