"""The keys of a run that belong to no group, and the run itself. No torch."""

from dataclasses import dataclass, field, make_dataclass
from typing import TYPE_CHECKING, Any

from attacks.schema.options import MISSING, declared_fields, option

#: The sections of a run in the order in which they are made: key in metrics.json -> class. A class may declare keys
#: of `evaluate`, as the classes of `groups.DECLARED` declare those of their groups.
SECTIONS = {
    "drift": "attacks.experiment.sections.judged.DriftSection",
    "radii": "attacks.experiment.sections.attacks.RadiiSection",
    "response": "attacks.experiment.sections.judged.ResponseSection",
    "left_out": "attacks.experiment.sections.attacks.LeftOutSection",
    "deployment": "attacks.experiment.sections.judged.DeploymentSection",
    "detection": "attacks.experiment.sections.judged.DetectionSection",
    "explanations": "attacks.experiment.sections.judged.ExplanationsSection",
    "failure": "attacks.experiment.sections.judged.FailureSection",
}


@dataclass
class EvaluateConfig:
    """How the arms are judged."""

    views: int = option(512, "views of the judgement, never seen by the attack", low=2, high=10**6)
    refine: int = option(5, "gradient steps from the most resistant views to a still more resistant one", low=0)
    layers: Any = option([], "where in the network the embedding drifts: module or module:pool, several, or all")
    batch: int | None = option(None, "pictures that are attacked together, and kept; null: all at once", low=1)
    primary: str = option("success", "the comparison declared before the run", range="success, cosine")
    one_view: bool = option(True, "one more arm, where eot may have several views a step: EOT with one")
    wide: float = option(1.0, "a second bank of views, every range so many times as wide; 1: none", low=1)
    neighbours: int = option(5, "nearest pictures that vote on an identity", low=1)
    maps: list[Any] = option([], "success over pairs of coordinates: [[angle, scale]], or [auto]")
    curves: list[Any] = option([], "success over coordinates by name, or [auto]")
    map_pictures: int = option(
        12, "pictures for maps and curves; of fewer than 11 clusters no cell can be significant", low=1
    )
    left_out: int = option(0, "pictures that are attacked without each stage of the views in turn", low=0)
    deploy: int = option(0, "pictures that go through file formats and resizers", low=0)
    ratios: list[float] = option(
        [1.0],
        "of the sizes that those resizers make to the encoder's own; [0.95, 1, 1.05]: 5 % off",
        range="[0.1, 10]",
    )
    pipeline: str | None = option(
        None,
        "flag pictures that this resizer shows otherwise than people see them",
        range="null, or a kernel such as cv2_linear, torch_bilinear, pil_nearest; a function: robustness(pipeline=)",
    )
    explain: int = option(0, "pictures with maps of what the encoder looks at", low=0)
    failure: int = option(0, "pictures with the probability of a failure over all views, down to 1e-10", low=0)
    particles: int = option(1000, "of the search for failures; about 100 views each, in each of two arms", low=50)
    most: int | None = option(
        None, "stop as soon as `require` is decided, at the latest after so many pictures; null: all", low=1
    )


if not TYPE_CHECKING:
    EvaluateConfig = make_dataclass(
        "EvaluateConfig",
        [item for place in SECTIONS.values() for item in declared_fields(place)],
        bases=(EvaluateConfig,),
        namespace={"__doc__": EvaluateConfig.__doc__, "__module__": __name__},
    )


@dataclass
class CheckpointConfig:
    """How often a run writes its state; null: never."""

    seconds: float | None = option(30.0, "seconds between two checkpoints", range="above 0")
    steps: int | None = option(None, "steps between two checkpoints", range="above 0")


@dataclass
class Run:
    """One experiment: the keys of a run, and by group the chosen parts."""

    seed: int = option(0, "of everything that is drawn")
    show: str | None = option(None, "run nothing; encoder: print its layers by name; plan: minutes, memory, files")
    workers: Any = option(1, "processes that share the pictures; ray: tasks of a cluster", range="at least 1, or ray")
    shard: str | None = option(None, "only these pictures, as 0/3: the first of three shards", range="i/n, i from 0")
    overwrite: bool = option(False, "first remove what an earlier run has written into the run directory")
    require: str | None = option(None, "a policy that is decided at the end: a file, or the name of a bundled one")
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    attack: Any = MISSING
    task: Any = MISSING
    encoder: Any = MISSING
    defence: Any = MISSING
    objective: Any = MISSING
    penalty: Any = MISSING
    sanity: Any = MISSING
    perturbation: Any = MISSING
    printer: Any = MISSING
    optimiser: Any = MISSING
    transforms: Any = MISSING
    draws: Any = MISSING
    risk: Any = MISSING
    data: Any = MISSING
    engine: Any = MISSING
    tracker: Any = MISSING


#: The keys of a run that belong to no group: what stands before a key -> its schema.
OF_THE_RUN: dict[str, type] = {"": Run, "evaluate.": EvaluateConfig, "checkpoint.": CheckpointConfig}
