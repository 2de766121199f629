"""What each group of a configuration offers, and the keys of every choice. No torch.

A key is declared once, with its default: in the class of a part (`DECLARED`), or here, as an argument of its part
(`attacks.study.registry.PARTS`).
"""

from dataclasses import dataclass
from typing import Any

from attacks.schema.data import BundledConfig, FolderConfig, ScenesConfig
from attacks.schema.encoder import ENCODERS, CounterattackConfig, DefenceConfig, PanelConfig, PluginPanelConfig
from attacks.schema.objective import (
    AwayConfig,
    InfoNCEConfig,
    LayersConfig,
    LogitsConfig,
    MixedConfig,
    TowardConfig,
    TripletConfig,
)
from attacks.schema.options import MISSING, class_schema, option, variant
from attacks.schema.task import ClassificationConfig, RetrievalConfig, ScoreConfig, VerificationConfig
from attacks.schema.tracker import MLflowConfig, NoTrackerConfig, TensorBoardConfig, WandBConfig

GRADIENTS = "of each picture in an attack: encoder passes forward and back, one a view"
STEPS = "so many steps in place of gradients; with views=auto each counts as one gradient"
VIEWS = "of a picture in a step; auto: one, and more where gradients are noisy and many"
PICTURES = "a step of a perturbation that they share, others in each step; gradients are of each of them; null: all"
PRICES = "of a detector's score below its limit, one attack after another; [0]: it ignores the detector"


@dataclass
class BallConfig:
    """A ball round each picture, within [0, 1]."""

    name: str = MISSING
    eps: str = option(
        MISSING,
        "the radius, as a number or a fraction such as 8/255; of l2 also the least PSNR, 28dB; table: of each "
        "picture that of its row",
        range="above 0; linf: at most 1; l0: whole",
    )
    shared: bool = option(False, "one perturbation for all pictures", paper="Moosavi-Dezfooli et al. 2017")
    keyframes: int | None = option(
        None,
        "one perturbation for all pictures of a cluster of the table, such as the frames of a film: 1; more: it "
        "changes from one to the next of so many, evenly over its rows",
        low=1,
    )
    mask: str | None = option(
        None,
        "a picture as large as the data: only where it is light may anything change; table: of each picture that of "
        "its row",
    )
    grey: bool = option(False, "the same change in all channels; not for l1")
    keep: int | None = option(
        None, "the lowest frequencies along each axis; l2 and linf", range="at least 1", paper="Guo et al. 2019"
    )
    smooth: float | None = option(
        None,
        "TI: standard deviation in pixels of a Gaussian over the gradient",
        range="above 0",
        paper="Dong et al. 2019",
    )


@dataclass
class PatchConfig:
    """One texture for all pictures, laid into each of them."""

    name: str = "patch"
    size: list[int] = option([48, 48], "height and width of the texture in texels", range="1 to 16384 each")
    quad: Any = option(
        [[0.3, 0.3], [0.7, 0.3], [0.7, 0.7], [0.3, 0.7]],
        "its corners [x, y] as shares of the picture, or several such quads; data=scenes has its own",
    )
    place: dict[str, Any] = option(
        {}, "anywhere instead, in each view anew: {scale: [0.3, 0.5], degrees: 20, x: [0, 1], y: [0, 1]}"
    )
    start_from: str = option("noise", "the first texture: noise, grey, or the path of a picture")
    shape: Any = option(
        "rectangle", "rectangle, ellipse, circle, a polygon [[x, y], ...] in shares, or the path of a mask"
    )
    grey: bool = option(False, "the same value in all channels")
    gamut: Any = option(
        None, "the colours it may have: [low, high], generic, or the path of an ICC profile; null: all"
    )
    width_mm: float | None = option(None, "how wide it will be printed, in mm", range="1..10000")
    card: bool = option(False, "seen as it is printed, with paper, fiducials and colour chart; needs width_mm")


@dataclass
class PrinterConfig:
    """What printing does to a patch; for perturbation=patch only."""

    name: str = MISSING
    colour: str = option(
        "ideal", "ideal, generic, family, or the path of an ICC profile (.icc, .icm) or a fit (.json)"
    )
    intent: str = option("relative", "of a profile: relative, perceptual, absolute")
    stages: dict[str, Any] = option({}, "stage: its arguments, in order; what happens to the sheet")
    medium: str = option("paper", "what photographs show it on, paper, screen, cloth or glass; changes no view")


@dataclass
class ViewsConfig:
    """The views that a camera may take of a picture."""

    name: str = MISSING
    stages: dict[str, Any] = option({}, "stage: its arguments, in order (docs/transforms.md)")
    kernel: str = option("bilinear", "how the picture is sampled", range="nearest, bilinear, bicubic")
    border: str = option("constant", "what lies beyond the picture", range="constant, replicate, reflect, reflect101")
    value: Any = option(0.5, "of a constant border: a number, or one for each channel", range="[0, 1]")
    antialias: bool = option(True, "filter where a warp shrinks")
    deterministic: bool = option(False, "the same bits on CUDA too, several times slower")


@dataclass
class NoPenaltyConfig:
    """How the perturbation looks costs nothing.

    Use: the default: the radius alone bounds the change.
    Not: a change or a print that has to be smooth.
    Cost: nothing.
    Oracle: a run, tests/run/test_attacks.py.
    """

    name: str = "none"


@dataclass
class SanityConfig:
    """Short runs of the attack whose outcome is known beforehand.

    Use: the default: a weak attack makes any encoder look robust.
    Not: a run of seconds: none.
    Cost: short runs of `steps` steps on `pictures` pictures.
    Oracle: attacks that are broken on purpose, tests/evaluation/sanity/.
    """

    name: str = "short"
    pictures: int = option(2, "of the run's own; 0: no checks", low=0)
    steps: int = option(20, "of each short run", low=1)
    views: int = option(4, "of each of their steps, at most", low=1)


@dataclass
class EngineConfig:
    """How the encoder runs: measured on this machine before the run where it says auto.

    Use: the default, for real runs: it takes the fastest way whose rounding is below the noise.
    Not: numbers that must come out again to the bit: fixed.
    Cost: a few steps that are measured before the run.
    Oracle: tests/encoders/engine/test_tuner.py.
    """

    name: str = "auto"
    device: str = option("auto", "auto: cuda where there is one")
    threads: int | None = option(None, "null: torch's own choice", range="1 to 1024")
    reuse: str | None = option(None, "a run directory or manifest.json whose decision is taken over")
    layout: str = option("auto", range="auto, contiguous, channels_last")
    precision: str = option("auto", range="auto, float32, tf32, bfloat16")
    fold: Any = option("auto", "batch norms become part of the layer before them", range="auto, true, false")
    chunk: Any = option("auto", "the most views in memory at once", range="auto, or at least 1")


@dataclass
class SingleConfig:
    """One optimiser.

    Use: the default: one attack, with any optimiser and objective.
    Not: doubts that another attack might be stronger: suite.
    Source: the optimiser's; of the number of views, Byrd et al. 2012.
    Cost: `gradients` gradients of each picture, in each arm.
    """

    name: str = "single"
    gradients: int = option(800, GRADIENTS, low=1)
    steps: int | None = option(None, STEPS, low=1)
    views: Any = option("auto", VIEWS, range="auto, or at least 1", paper="Byrd et al. 2012")
    pictures: int | None = option(None, PICTURES, low=1)
    stop: float | None = option(None, "loss on held-out views at which a picture is solved and leaves")
    restarts: int = option(1, "starts, each with all the gradients; the best of all is kept", low=1)
    adversary: int | None = option(None, "min-max: of so many views, the most resistant ones lead each step")
    refine: int = option(0, "steps uphill that the most resistant views take first", range="at least 0")
    start_from: str | None = option(None, "a finished run of these pictures and this set, where the arm eot begins")
    prices: list[float] = option([1.0, 20.0], PRICES, range="at least 0")


@dataclass
class SuiteConfig:
    """Several attacks on every picture; of each picture, the one that is worst for the encoder counts.

    Use: a number for a report, which should not depend on one attack.
    Not: the objective layers, and patches.
    Source: the worst case over attacks, as in AutoAttack (Croce & Hein 2020).
    Cost: `gradients` gradients of each picture for each of its attacks.
    """

    name: str = "suite"
    gradients: int = option(800, GRADIENTS, low=1)
    steps: int | None = option(None, STEPS, low=1)
    views: Any = option("auto", VIEWS, range="auto, or at least 1")
    nearest: int = option(3, "how many of the nearest gallery pictures are tried as targets", range="at least 0")
    prices: list[float] = option([1.0, 20.0], PRICES, range="at least 0")


@dataclass
class PluginConfig:
    """A part of an installed package."""

    name: str = "plugin"
    model: str = option(MISSING, "the name of its entry point")
    arguments: dict[str, Any] = option({}, "what it is made with")


@dataclass
class PluginSetConfig(PluginConfig):
    """A perturbation of an installed package."""

    eps: str | None = option(None, "its radius")


#: A part of a group by entry point.
PLUGINS = {
    group: variant(
        {"perturbation": PluginSetConfig, "defence": PluginPanelConfig}.get(group, PluginConfig),
        "plugin",
        f"One of your own: of an installed package, with an entry point `viewproof.{group}s`.\n\n"
        "Use: in a run with arms, report and gate, what this project does not have (docs/write_a_part.md).\n"
        f"Not: Python, which takes the object: robustness(..., {group}=Mine()).\n"
        "Source: the entry points of Python packages.\nCost: its own.\n"
        f"Oracle: a part rewritten by hand, tests/experiment/test_plugin_parts.py.\nWith: {group}.model=mine",
    )
    for group in ("objective", "optimiser", "perturbation", "defence")
}
#: Parts that declare their keys themselves: group -> choice -> class.
DECLARED = {
    "objective": {
        "retrieval": "attacks.objectives.retrieval.Retrieval",
        "verification": "attacks.objectives.retrieval.Verification",
        "bits": "attacks.objectives.bits.Bits",
    },
    "optimiser": {
        "wiener": "attacks.optimisers.wiener.Wiener",
        "pgd": "attacks.optimisers.gradient.PGD",
        "sgd": "attacks.optimisers.gradient.SGD",
        "adam": "attacks.optimisers.gradient.Adam",
        "apgd": "attacks.optimisers.apgd.APGD",
        "square": "attacks.optimisers.square.Square",
        "nes": "attacks.optimisers.nes.NES",
        "nes_square": "attacks.optimisers.nes.NESSquare",
        "label_only": "attacks.optimisers.nes.LabelOnly",
    },
    "draws": {
        name.lower(): f"transforms.draws.samplers.{name}"
        for name in ("Sobol", "Uniform", "Antithetic", "Latin", "Fixed", "Grid")
    },
    "risk": {"mean": "attacks.eot.risk.Mean", "cvar": "attacks.eot.risk.CVaR"},
    "penalty": {
        "tv": "attacks.objectives.penalties.TotalVariation",
        "ssim": "attacks.objectives.penalties.SSIM",
        "lpips": "attacks.objectives.penalties.LPIPS",
        "nps": "attacks.objectives.printability.NonPrintability",
    },
    "defence": {
        "tte": "attacks.encoders.rules.ViewMean",
        "rtpt": "attacks.encoders.rules.ReliabilityVote",
        "dbd": "attacks.encoders.rules.DirectionalBias",
        "agc": "attacks.encoders.rules.GeodesicStep",
        "smooth": "attacks.encoders.rules.SmoothedFeatures",
        "consistency": "attacks.encoders.rules.ViewConsistency",
    },
}
#: What such parts have besides their keys.
BASES = {"defence": (PanelConfig,)}
#: The losses on logits -> what they are.
LOGIT_LOSSES = {
    "margin": "The class's logit should fall below the highest other one.\n\n"
    "Use: the default of task=classification and task=score.\n"
    "Not: embeddings: away, retrieval.\n"
    "Source: Carlini & Wagner 2017, their f_6.\n"
    "Oracle: the formula, tests/objectives/test_embedding.py.",
    "cross_entropy": "The class should lose its share of the softmax.\n\n"
    "Use: the loss of the classifier's training.\n"
    "Not: a classifier that is very sure, whose gradients fade: margin, dlr.\n"
    "Source: the cross-entropy of the softmax.\n"
    "Oracle: torch's own, tests/objectives/test_embedding.py.",
    "dlr": "The class's lead, as a share of the distance between the first and the third logit, should be lost.\n\n"
    "Use: logits whose scale differs from picture to picture.\n"
    "Not: fewer than three classes (with a target four): margin.\n"
    "Source: Croce & Hein 2020.\n"
    "Oracle: torchattacks, tests/objectives/test_embedding.py.",
}


def _by_name(*choices: Any) -> dict[str, type]:
    return {choice.name: choice for choice in choices}


_SCHEMAS = {
    group: {name: class_schema(name, place, BASES.get(group, ())) for name, place in places.items()}
    for group, places in DECLARED.items()
}
#: Defences that are stages alone, before the encoder or among the views.
STAGE_DEFENCES = ("none", "jpeg", "bits", "blur", "resize", "resize_pad", "area", "median", "random_phase")
#: group -> choice -> its schema.
CHOICES: dict[str, dict[str, type]] = {
    "attack": _by_name(
        SingleConfig,
        SuiteConfig,
        variant(
            SingleConfig,
            "radius",
            "One optimiser; then the smallest eps at which half of the views succeed.\n\n"
            "Use: how much change an encoder stands, without an eps that somebody chose.\n"
            "Not: a patch, a shared perturbation, or an optimiser without gradients.\n"
            "Source: this project's own search; of the number of views, Byrd et al. 2012.\n"
            "Cost: `gradients` gradients of each picture, then those of the search for the radius.",
        ),
    ),
    "task": _by_name(RetrievalConfig, VerificationConfig, ClassificationConfig, ScoreConfig),
    "encoder": ENCODERS,
    "defence": dict.fromkeys(STAGE_DEFENCES, DefenceConfig)
    | _SCHEMAS["defence"]
    | {"ttc": CounterattackConfig, "plugin": PLUGINS["defence"]},
    "objective": {
        **_by_name(AwayConfig, TowardConfig, TripletConfig, InfoNCEConfig, LayersConfig, MixedConfig),
        **_SCHEMAS["objective"],
        **{name: variant(LogitsConfig, name, about) for name, about in LOGIT_LOSSES.items()},
        "plugin": PLUGINS["objective"],
    },
    "perturbation": _by_name(
        variant(BallConfig, "linf", "No value changes by more than eps.", eps="8/255"),
        variant(BallConfig, "l2", "Euclidean norm over all values of a picture in [0, 1] units.", eps="4"),
        variant(BallConfig, "l1", "Sum of all changes in [0, 1] units: few values change, far.", eps="100"),
        variant(BallConfig, "l0", "Number of pixels that change, as far as they can.", eps="200"),
        PatchConfig,
        PLUGINS["perturbation"],
    ),
    "printer": dict.fromkeys(
        ("none", "generic", "paper", "family", "measured", "screen", "cloth", "glass"), PrinterConfig
    ),
    "optimiser": {**_SCHEMAS["optimiser"], "plugin": PLUGINS["optimiser"]},
    **{group: _SCHEMAS[group] for group in ("draws", "risk")},
    "penalty": {"none": NoPenaltyConfig, **_SCHEMAS["penalty"]},
    "sanity": _by_name(
        SanityConfig,
        variant(
            SanityConfig,
            "none",
            "No checks.\n\n"
            "Use: a run of seconds, to see that everything works.\n"
            "Not: a number that somebody will rely on.\n"
            "Cost: nothing.\n"
            "Oracle: tests/evaluation/sanity/.",
            pictures=0,
            steps=1,
            views=1,
        ),
    ),
    "data": _by_name(BundledConfig, FolderConfig, ScenesConfig),
    "engine": _by_name(
        EngineConfig,
        variant(
            EngineConfig,
            "fixed",
            "Nothing is measured: a run gives the same bits again on every machine of a kind.\n\n"
            "Use: figures that must come out again, and short runs.\n"
            "Not: long runs, which auto makes faster.\n"
            "Cost: nothing.\n"
            "Oracle: tests/encoders/engine/test_engine.py.",
            layout="contiguous",
            precision="float32",
            fold=False,
            chunk=48,
        ),
    ),
    "tracker": _by_name(NoTrackerConfig, TensorBoardConfig, MLflowConfig, WandBConfig),
}
#: Groups whose files share one schema, whatever their name.
OPEN: dict[str, type] = {"transforms": ViewsConfig}
#: Groups whose choices are YAML files in configs/: each is its schema with stages of its own.
FILES = ("transforms", "defence", "printer")
GROUPS = (*CHOICES, *OPEN)
