"""What each group of a configuration offers, and the keys of every choice. No torch here, as in `schema.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from attacks.schema.encoder import DEFENCES, ENCODERS
from attacks.schema.patch import PRINTERS, NonPrintability, Patch, Scenes
from attacks.schema.tracker import TRACKERS


@dataclass
class Away:
    name: str = "away"
    metric: str = "cosine"  # or l2
    anchor: str = "own"  # the untouched picture seen directly; views: its mean over views; paired: in the same view


@dataclass
class Toward:
    name: str = "toward"
    target: str = MISSING  # "another", the name of a gallery picture, or the path of an image
    metric: str = "cosine"


@dataclass
class Retrieval:
    name: str = "retrieval"
    margin: float | None = None  # a view lost by so much hardly counts any more


@dataclass
class Triplet:
    name: str = "triplet"
    target: str = MISSING  # as of toward
    margin: float | None = None  # a view won by so much hardly counts any more


@dataclass
class InfoNCE:
    name: str = "infonce"
    temperature: float = MISSING
    target: str | None = None  # as of toward: it should win its share; null: the true match should lose it


@dataclass
class Verification:
    name: str = "verification"
    threshold: float = MISSING  # the cosine from which two pictures are said to show the same


@dataclass
class Layers:
    name: str = "layers"
    layers: list[str] = MISSING  # module, or module:pool with the pool flat, mean, cls or tokens
    weights: list[float] = field(default_factory=list)  # one for each layer, in order; none for equal ones
    metric: str = "cosine"
    anchor: str = "own"


@dataclass
class Bits:
    name: str = "bits"
    margin: float = MISSING


@dataclass
class Mixed:
    name: str = "mixed"
    away: float = MISSING  # weights
    retrieval: float = MISSING


@dataclass
class Ball:
    name: str = MISSING
    eps: str = MISSING  # a number or a fraction of full scale: 8/255
    shared: bool = False  # one perturbation for all pictures
    mask: str | None = None  # a picture as large as the data: only where it is light may anything change
    grey: bool = False  # the same change in all channels
    keep: int | None = None  # only the lowest so many frequencies along each axis
    smooth: float | None = None  # a Gaussian over the gradient, its standard deviation in pixels (TI)


@dataclass
class Wiener:
    name: str = "wiener"
    rel_step_size: float = MISSING
    schedule: str = MISSING


@dataclass
class PGD:
    name: str = "pgd"
    rel_step_size: float = MISSING
    momentum: float = MISSING
    schedule: str = MISSING
    nesterov: bool = False


@dataclass
class SGD:
    name: str = "sgd"
    lr: float = MISSING
    momentum: float = MISSING
    schedule: str = MISSING
    nesterov: bool = False


@dataclass
class Adam:
    name: str = "adam"
    rel_step_size: float = MISSING
    beta1: float = MISSING
    beta2: float = MISSING
    schedule: str = MISSING


@dataclass
class APGD:
    name: str = "apgd"
    rel_step_size: float = MISSING
    momentum: float = MISSING
    rho: float = MISSING


@dataclass
class Square:
    name: str = "square"
    p_init: float = MISSING


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
class NoPenalty:
    name: str = "none"


@dataclass
class TotalVariation:
    name: str = "tv"
    weight: float = MISSING
    isotropic: bool = True
    of: str = "change"  # of what is done to the picture; texture: of a patch itself


@dataclass
class SSIM:
    name: str = "ssim"
    weight: float = MISSING
    window: int = 11


@dataclass
class LPIPS:
    name: str = "lpips"
    weight: float = MISSING
    net: str = "alex"


@dataclass
class Sanity:
    name: str = MISSING
    pictures: int = MISSING  # of the run's own; 0 for no checks
    steps: int = MISSING  # of each short run
    views: int = MISSING  # of each of their steps, at most


@dataclass
class Bundled:
    name: str = "bundled"
    photos: list[str] = MISSING
    size: int = MISSING
    count: int | None = None  # null: every tile


@dataclass
class Folder:
    name: str = "folder"
    path: str = MISSING  # pictures to attack: a picture, a folder, a .txt of paths, or a .csv of paths and identities
    gallery: str | None = None  # what a view can be taken for, likewise; null for the bundled tiles
    size: int = MISSING
    count: int | None = None
    unreadable: str = "refuse"  # or skip: what to do about files that cannot be read
    cache: str | None = None  # a folder that keeps the gallery's embeddings for other runs
    classes: str | None = None  # a text file, a class a line: what a view can be taken for, in place of pictures
    templates: list[str] = field(default_factory=list)


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
    restarts: int = 1  # starts from other random points, the best of all kept
    adversary: int | None = None  # min-max: of so many views, the `views` worst ones lead each step
    refine: int = 0  # steps uphill that the worst views take first


@dataclass
class Suite:
    name: str = "suite"
    steps: int = MISSING  # of each attack
    views: int = MISSING
    nearest: int = MISSING  # how many of the nearest gallery pictures are tried as targets


def _by_name(*choices: Any) -> dict[str, type]:
    return {choice.name: choice for choice in choices}


#: group -> choice -> its schema.
CHOICES: dict[str, dict[str, type]] = {
    "attack": {"single": Single, "suite": Suite},
    "encoder": ENCODERS,
    "defence": DEFENCES,
    "objective": _by_name(Away, Toward, Retrieval, Triplet, InfoNCE, Verification, Layers, Mixed, Bits),
    "perturbation": {**dict.fromkeys(("linf", "l2", "l1", "l0"), Ball), "patch": Patch},
    "printer": PRINTERS,
    "optimiser": _by_name(Wiener, PGD, SGD, Adam, APGD, Square),
    "draws": dict.fromkeys(("sobol", "uniform", "antithetic", "latin", "fixed", "grid"), Draws),
    "risk": {"mean": Mean, "cvar": CVaR, "worst_of": WorstOf, "softmax": SoftMax},
    "penalty": {"none": NoPenalty, "tv": TotalVariation, "ssim": SSIM, "lpips": LPIPS, "nps": NonPrintability},
    "sanity": {"short": Sanity, "none": Sanity},
    "data": {"bundled": Bundled, "folder": Folder, "scenes": Scenes},
    "engine": {"auto": Engine, "fixed": Engine},
    "tracker": TRACKERS,
}
#: Groups whose files share one schema, whatever their name.
OPEN: dict[str, type] = {"transforms": Views}
