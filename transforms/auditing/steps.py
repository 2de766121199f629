"""The steps of a pipeline (fused geometry, a pixel stage, a foreign callable), and repeatable runs of a step."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from transforms.compose import Compose, Geometry, Stage
from transforms.devices import HOST
from transforms.doors import unchecked

RESAMPLING = ("grid_sampler", "upsample_")


@dataclass(frozen=True)
class AuditStep:
    """`stage` is one of this package and takes (images, u); `function` is any callable of one picture or a batch."""

    name: str
    stage: Compose | None = None
    function: Callable[[Any], Any] | None = None

    @property
    def dims(self) -> int:
        return self.stage.dims if self.stage is not None else 0

    def call(self, images: Any, u: Tensor) -> Any:
        if self.stage is not None:
            return unchecked(self.stage)(images, u)
        assert self.function is not None
        return self.function(images)


class StepResult(NamedTuple):
    """What a step returned, how often it resampled, and, where it refused a tensor that requires a gradient and took
    a poorer form of the picture, the error that it raised."""

    result: Any
    resamples: int
    refusal: Exception | None


def split_steps(pipeline: Any) -> tuple[AuditStep, ...]:
    """The steps of a `Compose`, a stage, a list, a torchvision `Compose`, an `nn.Sequential` (kornia's containers
    too) or a function; names are unique. Raises ValueError for what cannot be called."""
    steps = list(_steps(pipeline))
    names = [step.name for step in steps]
    counts = [names[: i + 1].count(name) for i, name in enumerate(names)]
    return tuple(replace(s, name=f"{s.name} {n}" if n > 1 else s.name) for s, n in zip(steps, counts, strict=True))


def _steps(pipeline: Any) -> Iterator[AuditStep]:
    if isinstance(pipeline, type) or not (callable(pipeline) or isinstance(pipeline, list | tuple)):
        raise ValueError(f"`pipeline` must be a stage, a callable or a list of them; got {pipeline!r}")
    if isinstance(pipeline, Compose):
        yield from _runs(pipeline)
    elif isinstance(pipeline, Stage):
        yield from _runs(Compose((pipeline,)))
    elif (parts := _parts(pipeline)) is not None:
        for part in parts:
            yield from _steps(part)
    else:
        name = getattr(pipeline, "__name__", type(pipeline).__name__)
        yield AuditStep("lambda" if name == "<lambda>" else name, function=pipeline)


def _runs(compose: Compose) -> Iterator[AuditStep]:
    for fused, run in itertools.groupby(compose.stages, key=lambda stage: isinstance(stage, Geometry)):
        stages = tuple(run)
        if fused:
            label = " + ".join(type(stage).__name__.lower() for stage in stages)
            yield AuditStep(f"{label} (one resample)", stage=replace(compose, stages=stages))
            continue
        for stage in stages:
            if isinstance(stage, Compose):
                yield from _runs(stage)
            else:
                yield AuditStep(type(stage).__name__.lower(), stage=replace(compose, stages=(stage,)))


def _parts(pipeline: Any) -> Sequence[Any] | None:
    """The parts of a container that runs all of them in order; a container that chooses is a step of its own."""
    if isinstance(pipeline, list | tuple):
        return pipeline
    parts = getattr(pipeline, "transforms", None)
    if type(pipeline).__name__ == "Compose" and isinstance(parts, list | tuple):
        return parts
    if isinstance(pipeline, nn.Sequential) and not getattr(pipeline, "random_apply", False):
        plain = type(pipeline).forward is nn.Sequential.forward
        if plain or type(pipeline).__module__.startswith("kornia."):
            return list(pipeline.children())
    return None


@contextmanager
def seeded(seed: int, device: torch.device = HOST) -> Iterator[None]:
    """The generators of torch, numpy and Python start from `seed` inside, and afterwards go on as they were."""
    python_state, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002 - other libraries draw from it
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(legacy)  # noqa: NPY002


def run_step(step: AuditStep, value: Any, u: Tensor, seed: int, *, raw: Any = None) -> StepResult:
    """Call a step on images (N,3,H,W) in the richest form that it takes: a batch with a graph, one picture of it, the
    same detached, `raw` (what the step before really returned), a PIL image, a numpy array (H,W,3) of 8 bits.
    Raises ValueError, with its name and first error, where it accepts none of them."""
    refusal: Exception | None = None
    for in_graph, form in _forms(step, value, raw):
        counter = _Resamples()
        result: Any
        try:
            with seeded(seed, u.device), counter:
                result = step.call(form, u)
        except Exception as error:  # foreign code may raise anything
            refusal = refusal or error
            continue
        if isinstance(result, Tensor):
            result = result.as_subclass(Tensor)
            single = not isinstance(form, Tensor) or form.dim() == 3
            result = result[None] if single and result.dim() == 3 else result
        elif not (isinstance(result, np.ndarray) or type(result).__module__.startswith("PIL.")):
            raise ValueError(f"stage `{step.name}` must return images; got {type(result).__name__}")
        return StepResult(result, counter.count, None if in_graph else refusal)
    raise ValueError(f"stage `{step.name}` fails on a picture: {error_line(refusal)}")


def _forms(step: AuditStep, value: Any, raw: Any) -> Iterator[tuple[bool, Any]]:
    """What to offer, and whether it is in the graph. Copies, because a step may write into what it is given."""
    if not (isinstance(value, Tensor) and value.is_floating_point()):
        if step.stage is None:
            yield False, value
        value = floating(value, unit=step.stage is not None)
    yield True, value.clone()
    if step.stage is not None:
        return
    single = len(value) == 1 and value.dim() == 4
    if single:
        yield True, value[0].clone()
    yield False, value.detach().clone()
    if raw is not None and not (isinstance(raw, Tensor) and raw.is_floating_point()):
        yield False, raw
    if single:
        yield False, value[0].detach().clone()
    if single and value.shape[1] == 3:
        from PIL import Image

        top = 1 if value.max() <= 1 else 255
        array = (value[0].detach().cpu() * (255 / top)).clamp(0, 255).round().to(torch.uint8)
        yield False, Image.fromarray(array.permute(1, 2, 0).contiguous().numpy())
        yield False, array.permute(1, 2, 0).contiguous().numpy()


def floating(value: Any, *, unit: bool = False) -> Tensor:
    """Any picture as a detached floating tensor with a batch; NaN and inf become numbers. A PIL image and an 8-bit
    array (H,W,3) come in [0,1]; an 8-bit tensor keeps its range (the next step divides it) unless `unit`."""
    if isinstance(value, Tensor):
        copy = value.detach().clone()
        return copy.nan_to_num() if copy.is_floating_point() else copy.float() / (255 if unit else 1)
    array = np.asarray(value)
    tensor = torch.from_numpy(array / (255 if array.dtype == np.uint8 else 1)).float()
    tensor = tensor[..., None] if tensor.dim() == 2 else tensor
    return tensor.permute(2, 0, 1)[None].contiguous() if tensor.dim() == 3 else tensor


def chain(steps: Sequence[AuditStep], image: Tensor, rows: Sequence[Tensor], seeds: Sequence[int]) -> list[Any]:
    """The values between the steps, from `image` (1,3,H,W) itself to the view. Floating values carry one graph; where
    a step cuts it, a new one begins, so that what follows can still be looked at."""
    values: list[Any] = [image]
    for step, row, seed in zip(steps, rows, seeds, strict=True):
        value = run_step(step, values[-1], row, seed).result
        if isinstance(value, Tensor) and value.is_floating_point() and not value.requires_grad:
            value = value.detach().clone().requires_grad_()
        values.append(value)
    return values


def error_line(error: Exception | None) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


class _Resamples(TorchDispatchMode):
    """Counts what reads an image between its pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        self.count += any(word in name for word in RESAMPLING) and "backward" not in name
        return func(*args, **(kwargs or {}))
