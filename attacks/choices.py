"""What each group of a configuration offers, and the keys of every choice. No torch here, as in `schema.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


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
class Single:
    name: str = "single"
    steps: int = MISSING
    views: int = MISSING  # per step and picture
    stop: float | None = None  # on held-out views; a picture that gets there leaves
    budget: int | None = None  # with `cosine`: encoder passes for each picture at most
    cosine: float | None = None  # of the gradient to the true one: below it, more views; needs a budget
    patience: int = 5  # for so many steps


#: group -> choice -> its schema.
CHOICES: dict[str, dict[str, type]] = {
    "attack": {"single": Single},
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
