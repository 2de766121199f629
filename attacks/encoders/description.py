"""What identifies an encoder in the records of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from torch import nn

from attacks.encoders.families.plugins import package_of
from attacks.encoders.layers import unwrapped
from attacks.encoders.loading import (
    POCKET_WEIGHTS,
    Defended,
    ImageEncoder,
    Pocket,
    Preprocess,
    Stochastic,
)
from attacks.encoders.randomness import randomness_of
from attacks.encoders.weights import fingerprint
from attacks.runtime.files import sha256
from attacks.schema.encoder import EncoderConfig

#: The fingerprint of an encoder without weights.
NO_TENSORS = fingerprint(nn.Identity())
#: The name of an encoder that was given as a module.
MODULE = "module"


def identity(node: EncoderConfig, encoder: nn.Module) -> dict[str, Any]:
    """What says which encoder it was: for manifest.json and metrics.json. `sha256` is that of the file of weights, if
    they are one; `fingerprint` that of the tensors, the same wherever they came from; `defence` the stages before it,
    `middle` the coordinates of theirs that are held there, `draws` what is drawn for every view."""
    outer = encoder.encoder if isinstance(encoder, Stochastic) else encoder
    defence = list(map(repr, outer.stages.stages)) if isinstance(outer, Defended) else []
    drawn = randomness_of(encoder) if node.stochastic else None
    middle = list(outer.stages.names) if isinstance(outer, Defended) and drawn is None else []
    encoder = unwrapped(encoder)
    said: dict[str, Any] = {key: getattr(node, key, None) for key in ("name", "model", "weights")}
    said |= {"sha256": None, "fingerprint": fingerprint(encoder), "defence": defence, "stochastic": node.stochastic}
    said |= {"middle": middle, "draws": [] if drawn is None else list(drawn.names)}
    if isinstance(encoder, ImageEncoder):
        origin = encoder.origin
        said |= {"sha256": origin.digest(), "fingerprint": encoder.fingerprint()}  # as `print(encoder)` shows it
        said |= {"model": origin.model, "weights": origin.weights, "preprocess": asdict(encoder.preprocess)}
    elif isinstance(encoder, Pocket):
        said["sha256"] = sha256(getattr(node, "weights", None) or POCKET_WEIGHTS)
    if node.name == MODULE:
        said["model"] = said["model"] or type(encoder).__name__
        said["weights"] = said["weights"] or "as they are in memory"
    if node.name == "plugin":
        said |= {"model": node.model, "package": package_of(node.model)}  # type: ignore[attr-defined]
    pool = getattr(node, "pool", None)
    return said | ({"features": list(node.features)} if node.features else {}) | ({"pool": pool} if pool else {})


def described(said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An `identity` in words, as (what, words): a report must say what was tested."""
    rows = [("encoder", said["name"] if said["model"] is None else f"{said['name']}:{said['model']}")]
    rows += [("package", said["package"])] if "package" in said else []
    rows += [("weights", _weights(said))]
    if "preprocess" in said:
        rows += Preprocess(**said["preprocess"]).lines()
    rows += [(key, said[key]) for key in ("pool",) if key in said]
    rows += [("features", ", ".join(said["features"]))] if "features" in said else []
    rows += [("defence", ", ".join(said["defence"]) or "none")]
    rows += [("at the middle", ", ".join(said["middle"]))] if said["middle"] else []
    return rows + ([("drawn", f"for every view: {', '.join(said['draws'])}")] if said["draws"] else [])


def _weights(said: Mapping[str, Any]) -> str:
    if said["fingerprint"] == NO_TENSORS:
        return "none"
    file = f", sha256 of the file {said['sha256'][:12]}" if said["sha256"] else ""
    return f"{said['weights'] or 'as shipped'}{file}, sha256 of the tensors {said['fingerprint'][:12]}"
