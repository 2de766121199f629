"""The description of an encoder in the records of a run."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from attacks.encoders.black_box.asked import black_box
from attacks.encoders.defended import Defence, Defended, placed_text, view_defence
from attacks.encoders.engine.native_precision import FLOAT32, precision_text
from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.layers import unwrap
from attacks.encoders.loading import POCKET_WEIGHTS
from attacks.encoders.passes import passes_of
from attacks.encoders.pocket import Pocket
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.randomness import encoder_randomness
from attacks.encoders.request import FEATURES
from attacks.encoders.stochastic import Stochastic
from attacks.encoders.weights import fingerprint
from attacks.runtime.files import sha256
from attacks.runtime.plugins import plugin
from attacks.schema.encoder import EncoderConfig

#: The fingerprint of an encoder without weights.
NO_TENSORS = fingerprint(nn.Identity())
#: The name of an encoder that was given as a module.
MODULE = "module"


def identity(node: EncoderConfig, encoder: nn.Module, views: object = None) -> dict[str, Any]:
    """Which encoder it is, for manifest.json and metrics.json. `sha256` is the hash of the file of weights, if there
    is one; `fingerprint` that of the tensors, independent of their source; `defence` the stages before it, `middle`
    their coordinates that are held at the middle, `draws` the coordinates drawn for every view, `passes` those of the
    network for one view where a defence takes several. `before` is only of a defence that is a stage of the `views`:
    the key of the stage behind it."""
    outer, precision = encoder.encoder if isinstance(encoder, Stochastic) else encoder, precision_text(encoder)
    has_draws = node.stochastic or (isinstance(outer, Defence) and outer.has_fresh_draws)
    stage, randomness = view_defence(views), encoder_randomness(encoder) if has_draws else None
    defences = list(map(repr, stage.stages.stages)) if stage is not None else []
    defences = outer.parts if isinstance(outer, Defence) else defences
    draws = [name for part in (stage, randomness) if part is not None for name in part.names]
    middle = list(outer.stages.names) if isinstance(outer, Defended) and randomness is None else []
    passes = passes_of(encoder).forward
    encoder = unwrap(encoder)
    facts: dict[str, Any] = {key: getattr(node, key, None) for key in ("name", "model", "weights")}
    bare = encoder.network if isinstance(encoder, ImageEncoder) else encoder  # as `print(encoder)` shows it
    facts |= {"sha256": None, "fingerprint": fingerprint(bare), "defence": defences}
    facts |= {"precision": precision} | ({} if stage is None else {"before": stage.before})
    facts |= {"stochastic": node.stochastic, "middle": middle, "draws": draws}
    facts |= {"passes": passes} if passes > 1 else {}
    if isinstance(encoder, ImageEncoder):
        origin = encoder.origin
        facts |= {"sha256": origin.digest(), "model": origin.model, "weights": origin.weights}
        facts |= {"answer": origin.output} if origin.output not in (None, FEATURES) else {}
        facts["preprocess"] = asdict(encoder.preprocess)
    elif isinstance(encoder, Pocket):
        facts["sha256"] = sha256(getattr(node, "weights", None) or POCKET_WEIGHTS)
    if node.name == MODULE:
        facts["model"] = facts["model"] or type(encoder).__name__
        facts["weights"] = facts["weights"] or "as they are in memory"
    if node.name == "plugin":
        facts |= {"model": node.model, "package": plugin("encoder", node.model).package}  # type: ignore[attr-defined]
    if (victim := black_box(encoder)) is not None:
        facts["answer"] = victim.answer
    pool = getattr(node, "pool", None)
    return facts | ({"features": list(node.features)} if node.features else {}) | ({"pool": pool} if pool else {})


def description_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An `identity` as rows (label, text) of a report."""
    name = facts["name"] if facts["model"] is None else f"{facts['name']}:{facts['model']}"
    rows = [("encoder", name), ("package", facts.get("package")), ("weights", _weights(facts))]
    rows += [("precision", facts["precision"] if facts.get("precision", FLOAT32) != FLOAT32 else None)]
    rows += [("answer", facts.get("answer"))]
    rows += Preprocess(**facts["preprocess"]).lines() if "preprocess" in facts else []
    rows += [("pool", facts.get("pool")), ("features", ", ".join(facts.get("features", [])))]
    rows += [("defence", placed_text(facts["defence"], facts.get("before")))]
    rows += [("passes", f"{facts['passes']} of the network for each view" if "passes" in facts else None)]
    rows += [("at the middle", ", ".join(facts["middle"]))]
    rows += [("drawn", f"for every view: {', '.join(facts['draws'])}" if facts["draws"] else None)]
    return [(label, text) for label, text in rows if text]


def _weights(facts: Mapping[str, Any]) -> str:
    if facts["fingerprint"] == NO_TENSORS:
        return "none"
    file = f", sha256 of the file {facts['sha256'][:12]}" if facts["sha256"] else ""
    return f"{facts['weights'] or 'as shipped'}{file}, sha256 of the tensors {facts['fingerprint'][:12]}"
