"""What a configuration may say, as types. No torch here: `--help` and a typo must answer at once.

A configuration names parts and gives them numbers. It holds no code: no class path, nothing to import. `build.py`
turns names into parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException


@dataclass
class PocketEncoder:
    name: str = "pocket"
    weights: str | None = None  # a safetensors file; null for the shipped one


@dataclass
class Away:
    name: str = "away"


@dataclass
class Toward:
    name: str = "toward"
    target: str = MISSING  # "another", the name of a gallery picture, or the path of an image


@dataclass
class Linf:
    name: str = "linf"
    eps: str = MISSING  # a number or a fraction of full scale: 8/255
    shared: bool = False  # one perturbation for all pictures


@dataclass
class L2:
    name: str = "l2"
    eps: str = MISSING
    shared: bool = False


@dataclass
class PGD:
    name: str = "pgd"
    rel_step_size: float = MISSING
    momentum: float = MISSING
    schedule: str = MISSING


@dataclass
class SGD:
    name: str = "sgd"
    lr: float = MISSING
    momentum: float = MISSING
    schedule: str = MISSING


@dataclass
class Views:
    name: str = MISSING
    stages: dict[str, Any] = field(default_factory=dict)  # stage -> its arguments, in order
    kernel: str = "bilinear"
    border: str = "constant"
    value: Any = 0.5  # of a constant border: a number, or one for each channel
    antialias: bool = True
    deterministic: bool = False  # the same bits on CUDA too, several times slower


@dataclass
class Draws:
    name: str = MISSING


@dataclass
class Mean:
    name: str = "mean"


@dataclass
class CVaR:
    name: str = "cvar"
    alpha: float = MISSING  # the share of views, the worst for the attacker, that is averaged


@dataclass
class WorstOf:
    name: str = "worst_of"
    k: int = MISSING


@dataclass
class SoftMax:
    name: str = "softmax"
    temperature: float = MISSING


@dataclass
class Bundled:
    name: str = "bundled"
    photos: list[str] = MISSING
    size: int = MISSING
    count: int | None = None  # null: every tile


@dataclass
class Folder:
    name: str = "folder"
    path: str = MISSING
    gallery: str | None = None
    size: int = MISSING
    count: int | None = None


@dataclass
class Engine:
    name: str = MISSING
    device: str = "auto"
    threads: int | None = None
    reuse: str | None = None  # a run directory or manifest.json whose decision is taken over
    layout: str = MISSING  # auto, contiguous, channels_last
    precision: str = MISSING  # auto, float32, mixed, bfloat16, float16
    fold: Any = MISSING  # auto, true, false: batch norms folded into what is before them
    compile: Any = MISSING  # auto, true, false
    chunk: Any = MISSING  # auto, or the most views in memory at once


@dataclass
class Attack:
    steps: int = MISSING
    views: int = MISSING  # per step and picture
    stop: float | None = None  # on held-out views; a picture that gets there leaves
    budget: int | None = None  # with `cosine`: encoder passes for each picture at most
    cosine: float | None = (
        None  # raise the views when the gradient's cosine to the true one stays below; needs a budget
    )
    patience: int = 5  # for so many steps


@dataclass
class Evaluate:
    views: int = MISSING


@dataclass
class Run:
    """One experiment."""

    seed: int = 0
    attack: Attack = field(default_factory=Attack)
    evaluate: Evaluate = field(default_factory=Evaluate)
    encoder: Any = MISSING
    objective: Any = MISSING
    perturbation: Any = MISSING
    optimiser: Any = MISSING
    transforms: Any = MISSING
    draws: Any = MISSING
    risk: Any = MISSING
    data: Any = MISSING
    engine: Any = MISSING


#: group -> choice -> its schema.
CHOICES: dict[str, dict[str, type]] = {
    "encoder": {"pocket": PocketEncoder},
    "objective": {"away": Away, "toward": Toward},
    "perturbation": {"linf": Linf, "l2": L2},
    "optimiser": {"pgd": PGD, "sgd": SGD},
    "draws": dict.fromkeys(("sobol", "uniform", "antithetic", "latin", "fixed", "grid"), Draws),
    "risk": {"mean": Mean, "cvar": CVaR, "worst_of": WorstOf, "softmax": SoftMax},
    "data": {"bundled": Bundled, "folder": Folder},
    "engine": {"auto": Engine, "fixed": Engine},
}
#: Groups whose files share one schema, whatever their name.
OPEN: dict[str, type] = {"transforms": Views}


def validate(config: DictConfig) -> Run:
    """Check a composed configuration against the schemas once more, and return it as plain dataclasses.

    Hydra checks what it merges, but a `+key` slips past it; here every node is merged afresh onto its schema.

    Raises:
        ValueError: an unknown key, a wrong type, a missing value, an unknown name, or a `_target_`, with its path.
    """
    refuse_code(OmegaConf.to_container(config, resolve=False), "configuration")
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    run: Run = _typed(Run, {key: value for key, value in plain.items() if key not in GROUPS}, "")
    for group in GROUPS:
        node = plain.get(group)
        if not isinstance(node, dict) or "name" not in node:
            raise ValueError(f"`{group}` must name one of {', '.join(CHOICES.get(group, OPEN))}; got {node!r}")
        choices = CHOICES.get(group, {})
        if group not in OPEN and node["name"] not in choices:
            raise ValueError(f"`{group}.name` must be one of {', '.join(choices)}; got {node['name']!r}")
        setattr(run, group, _typed(OPEN.get(group) or choices[node["name"]], node, f"{group}."))
    return run


GROUPS = (*CHOICES, *OPEN)


def _typed(schema: type, node: dict[Any, Any], prefix: str) -> Any:
    _known(schema, node, prefix)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), node)
        missing = sorted(OmegaConf.missing_keys(merged) - set(GROUPS))
        if missing:
            raise ValueError(f"`{prefix}{missing[0]}` has no value: give it one, {prefix}{missing[0]}=VALUE")
        return _run(merged) if schema is Run else OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise ValueError(f"`{prefix}{error.full_key}`: {str(error).splitlines()[0]}") from None


def _known(schema: type, node: dict[Any, Any], prefix: str) -> None:
    places: dict[str, Any] = {f.name: f.default_factory for f in fields(schema)}
    for key, value in node.items():
        if key not in places:
            raise ValueError(f"unknown key `{prefix}{key}`: known here are {', '.join(places)}")
        if is_dataclass(places[key]) and isinstance(value, dict):
            _known(places[key], value, f"{prefix}{key}.")


def _run(merged: Any) -> Run:
    """The fields without a group; the groups follow."""
    attack: Any = OmegaConf.to_object(merged.attack)
    evaluate: Any = OmegaConf.to_object(merged.evaluate)
    return Run(merged.seed, attack, evaluate)


def refuse_code(node: Any, where: str) -> None:
    """Raise ValueError where a configuration names code to run, or reads the environment.

    `_target_` and logging's `()` are the keys by which Hydra and the standard library call what a file names; an
    `oc.env` would carry a secret of whoever runs the file into its logs and reports.
    """
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("_target_", "()", "_partial_"):
                raise ValueError(
                    f"{where}: key `{key}` is refused: a configuration names parts, it does not run code"
                )
            refuse_code(value, where)
    elif isinstance(node, list):
        for value in node:
            refuse_code(value, where)
    elif isinstance(node, str) and "${oc.env" in node.replace(" ", ""):
        raise ValueError(f"{where}: `{node}` is refused: a configuration does not read the environment")


def fraction(text: str, name: str) -> float:
    """ "8/255" or "0.03" as a float. Raises ValueError with the name otherwise."""
    top, _, bottom = str(text).partition("/")
    try:
        return float(top) / (float(bottom) if bottom else 1.0)
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"`{name}` must be a number or a fraction such as 8/255; got {text!r}") from None
