"""A configuration checked against its schemas. It names parts and gives them numbers, and holds nothing to import."""

import re
from dataclasses import fields, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from attacks.schema.groups import CHOICES, GROUPS, OPEN
from attacks.schema.options import refuse_out_of_range
from attacks.schema.run import OF_THE_RUN
from attacks.schema.run import Run as Run  # for those who check one
from attacks.schema.suggestions import did_you_mean

MOST_WORKERS = 1024  # the most processes of a run on one machine


def validate(config: DictConfig) -> Run:
    """Check a composed configuration against the schemas once more, and return it as plain dataclasses. Hydra checks
    what it merges, but a `+key` slips past it; here every node is merged afresh onto its schema. Raises ValueError,
    with its path, for an unknown key or name, a wrong type, a missing value, or a `_target_`."""
    refuse_code(OmegaConf.to_container(config, resolve=False), "configuration")
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:  # a reference to nothing, or in a circle
        raise ValueError(f"`{error.full_key}`: {printable_config(str(error).splitlines()[0])}") from None
    assert isinstance(plain, dict)
    run: Run = _typed(Run, {key: value for key, value in plain.items() if key not in GROUPS}, "")
    for prefix in OF_THE_RUN:
        refuse_out_of_range(getattr(run, prefix[:-1]) if prefix else run, prefix)
    for group in GROUPS:
        node = plain.get(group)
        if not isinstance(node, dict) or "name" not in node:
            raise ValueError(f"`{group}` must name one of {', '.join(CHOICES.get(group, OPEN))}; got {node!r}")
        choices = CHOICES.get(group, {})
        if group not in OPEN and (not isinstance(node["name"], str) or node["name"] not in choices):
            raise ValueError(f"`{group}.name` must be one of {', '.join(choices)}; got {node['name']!r}")
        setattr(run, group, _typed(OPEN.get(group) or choices[node["name"]], node, f"{group}."))
        refuse_out_of_range(getattr(run, group), f"{group}.")
    return run


def _typed(schema: type, node: dict[Any, Any], prefix: str) -> Any:
    _refuse_unknown_keys(schema, node, prefix)
    try:
        config = OmegaConf.merge(OmegaConf.structured(schema), node)
        if missing := OmegaConf.missing_keys(config) - set(GROUPS):
            raise ValueError(f"`{prefix}{min(missing)}` has no value: give it one, {prefix}{min(missing)}=VALUE")
        return _run(config) if schema is Run else OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise ValueError(f"`{prefix}{error.full_key}`: {str(error).splitlines()[0]}") from None


def _refuse_unknown_keys(schema: type, node: dict[Any, Any], prefix: str) -> None:
    places: dict[str, Any] = {f.name: f.default_factory for f in fields(schema)}
    missing_names = [name for name in places if schema is Run and name not in node and name not in GROUPS]
    if missing_names:  # by ~key: its defaults would be used without a word
        raise ValueError(f"`{prefix}{missing_names[0]}` was removed from the configuration: give it a value instead")
    for key, value in node.items():
        if key not in places:
            hint = f"known here are {', '.join(places)}{did_you_mean(f'{prefix}{key}')}"
            raise ValueError(f"unknown key `{prefix}{printable_config(key)}`: {hint}")
        if is_dataclass(places[key]) and isinstance(value, dict):
            _refuse_unknown_keys(places[key], value, f"{prefix}{key}.")


def _run(node: Any) -> Run:
    """The fields without a group; the groups follow."""
    evaluate: Any = OmegaConf.to_object(node.evaluate)
    layers = evaluate.layers if isinstance(evaluate.layers, list) else [evaluate.layers]
    if not all(type(name) in (str, int) for name in layers):  # a Sequential's layers have numbers for names
        raise ValueError(f"`evaluate.layers` must be names of layers, or all; got {evaluate.layers!r}")
    evaluate.layers = [str(name) for name in layers]
    if evaluate.primary not in ("success", "cosine"):
        raise ValueError(f"`evaluate.primary` must be success or cosine; got {printable_config(evaluate.primary)}")
    if node.show not in (None, "encoder", "plan"):
        raise ValueError(f"`show` must be encoder or plan, or null for a run; got {node.show!r}")
    pace: Any = OmegaConf.to_object(node.checkpoint)
    for name, value in vars(pace).items():
        if value is not None and not 0 < value < float("inf"):
            raise ValueError(f"`checkpoint.{name}` must be a positive number, or null for never; got {value}")
    workers(node.workers)
    shard(node.shard)
    plain = (node.seed, node.show, node.workers, node.shard, node.overwrite, node.require)
    return Run(*plain, evaluate, pace)


def workers(value: Any) -> int | None:
    """The number of processes that `workers` asks for; None for a cluster of Ray."""
    if value == "ray":
        return None
    if type(value) is int and 1 <= value <= MOST_WORKERS:
        return value
    raise ValueError(f"`workers` must be a number of processes, 1 to {MOST_WORKERS}, or ray; got {value!r}")


def shard(text: str | None) -> tuple[int, int]:
    """`i/n`: shard i of n, from 0; (0, 1) for None."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", "0/1" if text is None else text)
    if match is None or not int(match[1]) < int(match[2]):
        raise ValueError(f"`shard` must be i/n with i from 0 to n - 1, such as 0/3 and 2/3; got {text!r}")
    return int(match[1]), int(match[2])


def refuse_code(node: Any, source: str) -> None:
    """Raise ValueError where a configuration names code to run, or reads the environment. Hydra calls what `_target_`
    names, and the standard library's logging what `()` names; an `oc.env` would copy a secret into logs and reports.
    Its name can be composed of other keys, so of all `${...}` only a plain reference to another key is allowed."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("_target_", "()", "_partial_"):
                raise ValueError(f"{source}: key `{key}` is refused: a configuration names parts and runs no code")
            refuse_code(value, source)
    elif isinstance(node, list):
        for value in node:
            refuse_code(value, source)
    elif isinstance(node, str) and "${" in re.sub(r"\$\{[\w.\[\]]+\}", "", node):
        raise ValueError(
            f"{source}: `{printable_config(node)}` is refused: a configuration refers to its own keys, such as "
            "${seed}; it does not read the environment or anything else"
        )


def printable_config(key: object) -> str:
    """A key or a path for a message: control characters are escaped."""
    return repr(str(key))[1:-1]


def fraction(text: str, name: str) -> float:
    """ "8/255" or "0.03" as a float. Raises ValueError with the name otherwise."""
    top, _, bottom = str(text).partition("/")
    try:
        return float(top) / (float(bottom) if bottom else 1.0)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"`{name}` must be a number or a fraction such as 8/255; got {text!r}") from None
