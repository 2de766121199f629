"""The perturbation of a finished run as a value: laid onto other pictures, or the start of another attack."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from attacks.data.gallery import Pictures
from attacks.data.table import TABLE
from attacks.eot.protocols import Perturbation
from attacks.experiment.directory import intact_run, misfit
from attacks.runtime.untrusted import count, mapping, short_path
from attacks.runtime.values import Damaged, reading
from attacks.schema.data import FolderConfig, ScenesConfig
from attacks.schema.validate import Run
from attacks.study.perturbation import perturb
from attacks.study.study import ARMS, Study

NAME = "perturbation.safetensors"
#: A norm exceeds eps by less, relatively.
NORM = 1e-4
#: What is read of metrics.json, besides what every reader needs.
SHAPE: dict[str, Any] = {
    "pixels": [str],
    "split": ({"fit": [str]}, None),
    "fit_pixels": (dict, None),
    "costs": {"eot": {"forward": int, "selection": int}},
}


@dataclass(frozen=True, eq=False)
class Result:
    """The perturbation of a finished run: its configuration `run`, whose encoder, views and objective it was made
    for; its set; by arm the deltas of `read_deltas`; and the `content` of metrics.json."""

    run: Run
    perturbation: Perturbation
    deltas: dict[str, list[Tensor]]
    content: dict[str, Any]

    @property
    def fit_pixels(self) -> dict[str, str]:
        """The names of the pictures that it was made from, by their `digest`."""
        names, on_disk = self.content["queries"], self.content.get("fit_pixels")
        if on_disk is not None:  # of minibatches
            return {pixels: name for name, pixels in on_disk.items()}
        fit = {*names} if self.content.get("split") is None else {*self.content["split"]["fit"]}
        pairs = zip(self.content["pixels"], names, strict=True)
        return {pixels: name for pixels, name in pairs if name in fit}

    @property
    def gradients(self) -> int:
        """Of each picture in the arm `eot`, with those of the runs that it started from."""
        cost, start = self.content["costs"]["eot"], mapping(self.content["threat"].get("start_from"))
        of_view = count(mapping(self.content.get("encoder")).get("passes")) or 1
        passes: int = (cost["forward"] - cost["selection"]) // of_view
        pictures = min(filter(None, (getattr(self.run.attack, "pictures", None), len(self.fit_pixels))), default=1)
        return math.ceil(passes / pictures) + (count(start.get("gradients")) or 0)

    def lay(self, arm: str, pictures: Pictures, device: torch.device | str) -> tuple[Perturbation, Tensor]:
        """The set of an arm on other pictures, and its delta as their 8-bit files hold it, on a device."""
        perturbation, images = perturb(self.run, pictures).for_arm(arm), pictures.images.to(device)
        return perturbation, perturbation.quantise(torch.stack(self.deltas[arm]).to(device), images)

    def pictures_at(self, path: str) -> FolderConfig | ScenesConfig:
        """The pictures of a path, read as large as the run reads its own; they are their gallery."""
        kind = ScenesConfig if isinstance(self.run.data, ScenesConfig) else FolderConfig
        return kind(path=path, size=self.run.data.size)


def read_deltas(
    out: Path, perturbation: Perturbation, arms: Sequence[str], shapes: Sequence[Sequence[int]]
) -> dict[str, list[Tensor]]:
    """By arm the deltas (3,H,W) of a run of pictures of these `shapes` (height, width) as the 8-bit files hold them,
    or the one that pictures share, (3,h,w), before it is rounded for a file. Raises Damaged."""
    sizes = [perturbation.texture_size or shapes[0]] if perturbation.shared else shapes
    counts = [3 * height * width for height, width in sizes]
    shape = [len(sizes), 3, *sizes[0]] if len({*map(tuple, sizes)}) == 1 else [sum(counts)]
    with reading(NAME), safe_open(out / NAME, framework="pt") as file:
        if sorted(names := file.keys()) != sorted(arms):
            raise ValueError(f"its arms are {short_path(', '.join(names))}; the run has {', '.join(arms)}")
        for arm in arms:  # before any is read
            part = file.get_slice(arm)
            if (part.get_dtype(), part.get_shape()) != ("F32", shape):
                raise ValueError(f"{arm} must be F32 of {shape}; it is {part.get_dtype()} of {part.get_shape()}")
        parts = {arm: file.get_tensor(arm).flatten().split(counts) for arm in arms}
        deltas = {
            arm: [part.view(3, *size) for part, size in zip(rows, sizes, strict=True)] for arm, rows in parts.items()
        }
        for arm, rows in deltas.items():
            is_finite = all(bool(delta.isfinite().all()) for delta in rows)
            sets = [
                perturbation if perturbation.shared else perturbation.take(torch.tensor([i]))
                for i in range(len(rows))
            ]
            norms = [float(part.norm(delta[None])) for part, delta in zip(sets, rows, strict=True)]
            norm = max(norms) if is_finite else math.inf
            if norm > perturbation.eps * (1 + NORM):
                raise ValueError(f"{arm} must be within eps, {perturbation.eps:g}; its norm is {norm:g}")
    return deltas


def read_result(folder: Path, *, shared: bool = False) -> Result:
    """The perturbation of a finished run whose files have their digests. Raises ValueError or OSError, in one line,
    for any other directory; with `shared` also for deltas that fit no other pictures than their own."""
    previous, content = intact_run(folder)
    run, side = previous.run, previous.run.data.size
    if side is None:
        raise ValueError(
            f"`{folder}`: its deltas, data.size=null, fit no pictures but its own: make a run with a data.size"
        )
    node, arms = run.perturbation, [arm for arm in ARMS[1:] if arm in content["arms"]]
    is_by_row = getattr(node, "eps", None) == TABLE
    shape = SHAPE | ({"threat": {"eps": float}} if is_by_row else {})
    try:
        if lacking := misfit({"split": None, "fit_pixels": None} | content, shape):
            raise Damaged(f"metrics.json: `{short_path(lacking)}` is missing or malformed")
        if getattr(node, "mask", None) == TABLE:  # masks, of the run's own pictures, change no shape
            node = replace(node, mask=None)
        node = replace(node, eps=repr(content["threat"]["eps"])) if is_by_row else node  # the largest
        perturbation = perturb(replace(run, perturbation=node), Pictures(("",), torch.zeros(1, 3, side, side)))
        if shared and not perturbation.shared:
            raise ValueError(
                f"`{folder}`: its deltas, perturbation.shared=false, fit no pictures but its own, in its "
                "pictures/: make a run with perturbation.shared=true, or of a patch"
            )
        deltas = read_deltas(folder, perturbation, arms, [(side, side)] * len(content["pixels"]))
    except Damaged as error:
        raise ValueError(f"`{folder}` is not what a run writes: {error}; restore it, or make the run again") from None
    return Result(run, perturbation, deltas, content)


def with_start(run: Run, study: Study) -> Study:
    """The study with the start that `attack.start_from` names. Raises ValueError where it does not fit."""
    if (place := getattr(run.attack, "start_from", None)) is None:
        return study
    try:
        result = read_result(Path(place))
    except (ValueError, OSError) as error:
        raise ValueError(f"`attack.start_from`: {error}") from None
    delta, queries, shared = torch.stack(result.deltas["eot"]), study.queries, study.perturbation.shared
    size = study.perturbation.texture_size or queries.images.shape[2:]
    kind = (run.perturbation.name, shared, *size)
    if kind != (other_kind := (result.run.perturbation.name, result.perturbation.shared, *delta.shape[2:])):
        raise ValueError(
            f"`attack.start_from` must be a run of the same set (perturbation, shared, height, width), {kind}; "
            f"{place} has {other_kind}: name another run"
        )
    names, fit = {queries.digests[row]: queries.names[row] for row in queries.attacked}, result.fit_pixels
    if study.fit is not None and (store := study.fit.queries.store) is not None:
        names |= dict(zip(store.digests, store.names, strict=True))
    # Of one that pictures share, none that led there may be held out here; and the next run trusts this one.
    if lacking := fit.keys() - names if shared else names.keys() - fit:
        name = min((names | fit)[pixels] for pixels in lacking)
        raise ValueError(
            f"`attack.start_from` must be a run of the same pictures, of which the same are held out; {name} is not "
            f"{'attacked here' if shared else f'in {place}'}: keep its data and seed"
        )
    if not shared:
        rows = {pixels: row for row, pixels in enumerate(result.content["pixels"])}
        delta = delta[[rows[pixels] for pixels in queries.digests]]
    words = {"run": place, "sha256": result.content["files"], "gradients": result.gradients}
    return replace(study, start=delta, threat=study.threat | {"start_from": words})
