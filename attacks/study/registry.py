"""The parts behind the choices of a configuration."""

from collections.abc import Callable
from typing import Any

from attacks.encoders import FAMILIES, Counterattack, Defended, Panel, ScoreEncoder, Stochastic, load_encoder
from attacks.encoders.defended import ViewDefence
from attacks.encoders.engine.decision import Decision
from attacks.encoders.engine.native_precision import run_in
from attacks.encoders.features import with_features
from attacks.encoders.loading import BUILT_IN
from attacks.encoders.request import Request
from attacks.evaluation.scores import Acceptance
from attacks.objectives.embedding import Away, Toward
from attacks.objectives.retrieval import InfoNCE, Triplet
from attacks.perturbations.patch.patch import Patch
from attacks.runtime.tracking import MLflow, TensorBoard, WandB
from attacks.schema import groups
from attacks.solvers.worst import Adversary
from attacks.study.data import targeted
from attacks.study.encoder import BLACK_BOXES
from attacks.study.make import declared_class, make
from attacks.study.objective import LOGITS, anchored_aim, mixed_aim, watching_layers, weighted
from attacks.study.perturbation import BALLS, WRAPPERS, keyframe_places, surrounding
from attacks.study.plugin_parts import plugin_part
from attacks.study.printer import place_of, sheet_views
from transforms import Compose

Part = Callable[..., Any]
_ENCODER = (with_features, run_in, ("stochastic", Stochastic))
#: Group -> choice -> what takes its keys: a class or function with arguments of the same names; or a key, and the
#: part that this key alone adds or that takes its value. A schema stands for itself where the run reads its keys.
PARTS: dict[str, dict[str, tuple[Part | tuple[str, Part], ...]]] = {
    "attack": {
        **dict.fromkeys(("single", "radius"), (Adversary, groups.SingleConfig)),
        "suite": (groups.SuiteConfig,),
    },
    "task": {
        "retrieval": (),
        "verification": (Acceptance,),
        "classification": (groups.CHOICES["task"]["classification"],),
        "score": (ScoreEncoder,),
    },
    "encoder": {
        **dict.fromkeys(FAMILIES, (Request, *_ENCODER)),
        **dict.fromkeys(BUILT_IN, (load_encoder, *_ENCODER)),
        **{name: (part, *_ENCODER) for name, part in BLACK_BOXES.items()},
    },
    "defence": {
        **dict.fromkeys(groups.STAGE_DEFENCES, (Defended, ViewDefence)),
        **{name: (Panel, declared_class("defence", name)) for name in groups.DECLARED["defence"]},
        "ttc": (Counterattack,),
        "plugin": (Panel, plugin_part),
    },
    "objective": {
        "away": (Away, anchored_aim, watching_layers),
        "toward": (targeted, Toward),
        "triplet": (targeted, Triplet),
        "infonce": (InfoNCE, targeted),
        "layers": (weighted, Away, anchored_aim),
        "mixed": (mixed_aim,),
        **dict.fromkeys(LOGITS, (targeted,)),
        **{name: (declared_class("objective", name),) for name in groups.DECLARED["objective"]},
        "plugin": (plugin_part,),
    },
    "perturbation": {
        **{name: (ball, *WRAPPERS.items(), keyframe_places) for name, ball in BALLS.items()},
        "patch": (Patch, place_of, surrounding),
        "plugin": (plugin_part,),
    },
    "printer": dict.fromkeys(groups.CHOICES["printer"], (sheet_views,)),
    **{
        group: {name: (declared_class(group, name),) for name in groups.DECLARED[group]}
        | ({"plugin": (plugin_part,)} if group in groups.PLUGINS else {})
        for group in ("optimiser", "draws", "risk")
    },
    "penalty": {"none": (), **{name: (declared_class("penalty", name),) for name in groups.DECLARED["penalty"]}},
    **{group: {name: (schema,) for name, schema in groups.CHOICES[group].items()} for group in ("sanity", "data")},
    "engine": {"auto": (groups.EngineConfig,), "fixed": (Decision, groups.CHOICES["engine"]["fixed"])},
    "tracker": {"none": (), "tensorboard": (TensorBoard,), "mlflow": (MLflow,), "wandb": (WandB,)},
    "transforms": {"": (Compose,)},
}


def make_part(group: str, node: Any) -> Any:
    """The part of a group whose choices have one part each: optimiser, risk, draws, penalty. Raises ValueError."""
    (part,) = PARTS[group][node.name]
    assert callable(part)
    return make(part, node, group, **({"group": group} if part is plugin_part else {}))
