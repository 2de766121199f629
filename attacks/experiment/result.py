"""The perturbation of a finished run as a value: laid onto other pictures, or the start of another attack."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from attacks.eot.protocols import Perturbation
from attacks.experiment.directory import intact_run, misfit
from attacks.runtime.untrusted import count, mapping, short_path
from attacks.runtime.values import Damaged, reading
from attacks.schema.data import FolderConfig, ScenesConfig
from attacks.schema.validate import Run
from attacks.study.perturbation import perturb
from attacks.study.study import Study, WarmStart

NAME = "perturbation.safetensors"
#: A norm exceeds eps by less, relatively.
NORM = 1e-4
#: What is read of metrics.json, besides what every reader needs.
SHAPE = {"arms": dict, "pixels": [str], "costs": {"eot": dict.fromkeys(("forward", "selection"), int)}}


@dataclass(frozen=True, eq=False)
class Result:
    """The perturbation of a finished run: its configuration `run`, whose encoder, views and objective it was made
    for; its set; by arm the deltas of `read_deltas`; and the `content` of metrics.json, with the threat in words."""

    folder: Path
    run: Run
    perturbation: Perturbation
    deltas: dict[str, Tensor]
    content: dict[str, Any]

    @property
    def digest(self) -> str:
        """The SHA-256 of files.json, which has that of every other file."""
        return str(self.content["files"])

    @property
    def fit_pixels(self) -> list[str]:
        """The digests (see `pixel_digest`) of the pictures that it was made from, and those that it started from."""
        return [*self._own_pixels, *map(str, mapping(self.content["threat"].get("start_from")).get("pixels", ()))]

    @property
    def _own_pixels(self) -> list[str]:
        queries, pixels = self.content["queries"], self.content["pixels"]
        names = {*mapping(self.content.get("split")).get("fit", queries)}
        return [digest for name, digest in zip(queries, pixels, strict=True) if name in names]

    @property
    def gradients(self) -> int:
        """Of each picture in the arm `eot`, with those of the runs that it started from."""
        cost, start = self.content["costs"]["eot"], mapping(self.content["threat"].get("start_from"))
        passes: int = cost["forward"] - cost["selection"]
        return math.ceil(passes / max(1, len(self._own_pixels))) + (count(start.get("gradients")) or 0)

    def pictures_at(self, path: str) -> FolderConfig | ScenesConfig:
        """The pictures of a path, read as large as the run reads its own; they are their gallery."""
        kind = ScenesConfig if isinstance(self.run.data, ScenesConfig) else FolderConfig
        return kind(path=path, size=self.run.data.size)


def read_deltas(
    out: Path, perturbation: Perturbation, arms: Sequence[str], pictures: int, size: Sequence[int]
) -> dict[str, Tensor]:
    """By arm the deltas of a run of so many `pictures` of a `size` (height, width): (N,3,H,W) as the 8-bit files hold
    them, or the one that pictures share, (1,3,h,w), before it is rounded for a file. Raises Damaged."""
    shape = [1 if perturbation.shared else pictures, 3, *(perturbation.texture_size or size)]
    with reading(NAME), safe_open(out / NAME, framework="pt") as file:
        if sorted(names := file.keys()) != sorted(arms):
            raise ValueError(f"its arms are {short_path(', '.join(names))}; the run has {', '.join(arms)}")
        for arm in arms:  # before any is read
            part = file.get_slice(arm)
            if (part.get_dtype(), part.get_shape()) != ("F32", shape):
                raise ValueError(f"{arm} must be F32 of {shape}; it is {part.get_dtype()} of {part.get_shape()}")
        deltas = {arm: file.get_tensor(arm) for arm in arms}
        for arm, delta in deltas.items():
            if not bool(delta.isfinite().all()):
                raise ValueError(f"{arm} must be finite; it has NaN or infinite values")
            if (norm := float(perturbation.norm(delta).max())) > perturbation.eps * (1 + NORM):
                raise ValueError(f"{arm} must be within eps, {perturbation.eps:g}; its norm is {norm:g}")
    return deltas


def read_result(folder: Path) -> Result:
    """The perturbation of a finished run whose files have their digests. Raises ValueError or OSError, in one line,
    for any other directory."""
    previous, content = intact_run(folder)
    run, size = previous.run, (previous.run.data.size,) * 2
    shape: Any = SHAPE | ({"split": {"fit": [str]}} if content.get("split") is not None else {})
    perturbation = perturb(run, torch.zeros(1, 3, *size))
    try:
        if (lacking := misfit(content, shape)) is not None or len(content["pixels"]) != len(content["queries"]):
            raise Damaged(f"metrics.json: `{short_path(lacking or 'pixels')}` is missing or malformed")
        arms = [arm for arm in content["arms"] if arm != "clean"]
        deltas = read_deltas(folder, perturbation, arms, len(content["queries"]), size)
    except Damaged as error:
        raise ValueError(f"`{folder}` is not what a run writes: {error}; restore it, or make the run again") from None
    return Result(folder, run, perturbation, deltas, content)


def shared_result(folder: Path) -> Result:
    """The same of a perturbation that fits other pictures. Raises ValueError in one line for one that does not."""
    result = read_result(folder)
    if not result.perturbation.shared:
        raise ValueError(
            f"`{folder}` has a delta for each of its own pictures, perturbation.shared=false, which fits no other: "
            "make a run with perturbation.shared=true, or a patch"
        )
    return result


def with_start(run: Run, study: Study) -> Study:
    """The study with the start that `attack.start_from` names. Raises ValueError where it does not fit."""
    if (place := getattr(run.attack, "start_from", None)) is None:
        return study
    try:
        result = read_result(Path(place))
    except (ValueError, OSError) as error:
        raise ValueError(f"`attack.start_from`: {error}") from None
    delta, queries = result.deltas["eot"], study.queries
    size = study.perturbation.texture_size or queries.images.shape[2:]
    wanted, there = (
        f"perturbation={name}, {'one for all pictures' if part.shared else 'one for each picture'}, of {h} x {w}"
        for name, part, (h, w) in (
            (run.perturbation.name, study.perturbation, size),
            (result.run.perturbation.name, result.perturbation, delta.shape[2:]),
        )
    )
    if wanted != there:
        raise ValueError(f"`attack.start_from` must be a run with {wanted}; {place} has {there}: name another run")
    digests, fit = [pixel_digest(image) for image in queries.images], set(result.fit_pixels)
    if not study.perturbation.shared:
        numbers = {digest: row for row, digest in enumerate(result.content["pixels"])}
        if lacking := [row for row, digest in enumerate(digests) if digest not in numbers]:
            raise ValueError(
                f"`attack.start_from` must be a run of the same pictures; {place} has no delta of "
                f"{queries.names[lacking[0]]} with these pixels: attack its pictures, or begin with a shared one"
            )
        delta = delta[[numbers[digest] for digest in digests]]
    elif seen := [row for row in {*range(len(queries))} - {*queries.attacked} if digests[row] in fit]:
        raise ValueError(
            f"`attack.start_from` must not be made from pictures that are held out here; {place} was from "
            f"{queries.names[min(seen)]}: keep its seed and pictures, or name others with data.split"
        )
    start = WarmStart(delta, result.digest, result.gradients)
    words = {"run": place, "sha256": start.digest, "gradients": start.gradients}
    words["pixels"] = sorted(
        fit - {digests[row] for row in queries.attacked}
    )  # for the run that starts from this one
    return replace(study, start=start, threat=study.threat | {"start_from": words})


def pixel_digest(image: Tensor) -> str:
    """The SHA-256 of a picture's 8-bit values: pictures of one name may differ between runs."""
    return hashlib.sha256((image * 255).round().byte().cpu().contiguous().numpy().tobytes()).hexdigest()
