"""What a batch gave, as a file: an interrupted run takes up what is there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attacks.arms import Trace
from attacks.batch import Found, Spent
from attacks.drift import Drift
from attacks.evaluation import Scores
from attacks.files import atomic
from attacks.sanity import Check, Sanity

#: Of the files: another number where their content changes its meaning.
FORMAT = 1


def write_batch(path: Path, found: Found, key: str) -> None:
    """Write a batch, whole or not at all; `key` says which run it belongs to."""
    path.parent.mkdir(exist_ok=True)
    tensors: dict[str, Tensor] = {}
    for bank, arms in found.scores.items():
        for arm, scores in arms.items():
            values = scores._asdict().items()
            tensors |= {f"scores/{bank}/{arm}/{name}": value for name, value in values if value is not None}
    for kind in ("worst", "budget", "saved"):
        tensors |= {f"{kind}/{arm}": value for arm, value in getattr(found, kind).items()}
    if found.drift is not None:
        tensors |= {f"drift/{arm}": value for arm, value in found.drift.cosine.items()}
    said = {
        "rows": found.rows,
        "trace": found.trace,
        "costs": {name: asdict(spent) for name, spent in found.costs.items()},
        "sanity": None if found.sanity is None else asdict(found.sanity),
        "drift": None if found.drift is None else _drift(found.drift),
    }
    with atomic(path) as temporary:
        save_file(
            {name: value.contiguous() for name, value in tensors.items()},
            temporary,
            {"format": str(FORMAT), "key": key, "said": json.dumps(said)},
        )


def read_batch(path: Path, key: str) -> Found:
    """A batch as it was written. Raises ValueError for a file that is none, or belongs to another run."""
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            if about.get("format") != str(FORMAT) or about.get("key") != key:
                raise ValueError("it belongs to another run, another encoder or another version")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        said = json.loads(about["said"])
        return _found(said, tensors)
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"`resume`: {path} cannot be taken up: {reason}; remove it to do it again") from None


def _found(said: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Found:
    scores: dict[str, dict[str, dict[str, Tensor]]] = {}
    each: dict[str, dict[str, Tensor]] = {"worst": {}, "budget": {}, "saved": {}, "drift": {}}
    for name, value in tensors.items():
        kind, *rest = name.split("/")
        if kind == "scores":
            bank, arm, column = rest
            scores.setdefault(bank, {}).setdefault(arm, {})[column] = value
        else:
            each[kind][rest[0]] = value
    sanity, drift = said["sanity"], said["drift"]
    return Found(
        rows=tuple(said["rows"]),
        scores={bank: {arm: Scores(**columns) for arm, columns in arms.items()} for bank, arms in scores.items()},
        worst=each["worst"],
        budget=each["budget"],
        saved=each["saved"],
        trace=tuple(Trace(*line) for line in said["trace"]),
        costs={name: Spent(**spent) for name, spent in said["costs"].items()},
        sanity=None if sanity is None else Sanity(tuple(Check(**c) for c in sanity["checks"]), sanity["cost"]),
        drift=None if drift is None else Drift(tuple(drift["layers"]), each["drift"], *drift["cost"]),
    )


def _drift(drift: Drift) -> dict[str, Any]:
    return {"layers": drift.layers, "cost": [drift.forward, drift.seconds]}
