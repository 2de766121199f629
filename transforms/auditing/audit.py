"""Where does the gradient die? One call examines a pipeline of any library, stage by stage."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transforms.auditing.coverage import coverage, effective, root_mean_square, sensitivity
from transforms.auditing.probe import StepProbe, probe_step
from transforms.auditing.report import Report, StageReport
from transforms.auditing.stationary import is_stationary, norms
from transforms.auditing.steps import AuditStep, chain, floating, split_steps
from transforms.auditing.summary import repair_advice, summarise
from transforms.doors import PastDoors, checked
from transforms.draws.samplers import Sobol, stream

#: The losses at delta = 0 are measured under at most this many views.
FLAT_DRAWS = 4


def audit(
    pipeline: Any,
    image: Any,
    encoder: Callable[[Tensor], Tensor] | None = None,
    *,
    draws: int = 16,
    seed: int = 0,
    parameters: Mapping[str, Tensor] | None = None,
    straight_through: bool = False,
) -> Report:
    """Look for a gradient that dies, pixels that get none, needless resamples, aliasing, and a loss without a slope.

    Args:
        pipeline: a `Compose`, a stage, a torchvision transform or `Compose`, an `nn.Sequential` (kornia's containers
            too), a function of images, or a list of any of these. Randomness of other libraries is seeded for each
            draw and stage, and the generators' states are restored. Each stage is called about ten times a draw.
        image: (3,H,W) or (1,3,H,W), floating, in [0,1]; a PIL image or an (H,W,3) array of 8 bits.
        encoder: images (N,3,h,w) -> features (N,D). With it the end loss is a random projection of the features, and
            `stationary` is answered; without, a random projection of the view.
        draws: number of views.
        seed: of the views, of the stages' own randomness and of the random projections.
        parameters: name -> tensor that requires a gradient and that the pipeline ought to pass one to, such as the
            corners of a perspective.
        straight_through: also measure the "dense" gradient (see `transforms.auditing.dense_gradient`) of each stage
            that is a warp.

    Returns:
        A `Report`; print it.

    Raises:
        ValueError: not an image, not a pipeline, or a stage that fails on a picture, with its name.

    Examples:
        >>> import torch
        >>> from transforms import Affine, Compose, audit
        >>> picture = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> audit(Compose([Affine(degrees=20)]), picture, draws=2).first_dead is None
        True
        >>> audit([Affine(degrees=20), torch.round], picture, draws=2).first_dead
        'round'
    """
    if draws < 1:
        raise ValueError(f"`draws` must be at least 1; got {draws}")
    tensors_by_name = dict(parameters or {})
    for name, tensor in tensors_by_name.items():
        if not tensor.requires_grad:
            raise ValueError(f"`parameters` must require a gradient; `{name}` does not (use .requires_grad_())")
    picture, steps = _picture(image), split_steps(pipeline)
    name = getattr(encoder, "__name__", type(encoder).__name__)
    all_steps = steps if encoder is None else (*steps, AuditStep(f"encoder {name}", function=encoder))
    rows = _rows(all_steps, draws, seed, picture)
    seeds = [[stream(seed, "audit", draw, k) for k in range(len(all_steps))] for draw in range(draws)]

    probes: list[list[StepProbe]] = []  # draw by draw, stage by stage
    flows: list[list[float]] = []  # the norm of the end loss's gradient at each value between stages
    maps: list[Tensor] = []
    with torch.inference_mode(False), torch.enable_grad(), PastDoors():
        for draw in range(draws):
            values = chain(all_steps, picture.clone().requires_grad_(), rows[draw], seeds[draw])
            maps.append(sensitivity(values[0], values[len(steps)], stream(seed, "coverage", draw)))
            flows.append(_flow(values, stream(seed, "end", draw)))
            places = zip(all_steps, values[:-1], values[1:], rows[draw], seeds[draw], strict=True)
            tensors = tuple(tensors_by_name.values())
            probes.append([probe_step(*place, tensors, dense=straight_through) for place in places])

        def features_of(images: Tensor, draw: int) -> Tensor:
            features = chain(all_steps, images, rows[draw], seeds[draw])[-1]
            return features if isinstance(features, Tensor) and features.is_floating_point() else floating(features)

        flat = (
            norms(features_of, picture, min(draws, FLAT_DRAWS), stream(seed, "signs")) if encoder is not None else {}
        )

    by_stage = zip(all_steps, zip(*probes, strict=True), range(len(all_steps)), strict=True)
    stages = tuple(summarise(step, item, [flow[k : k + 2] for flow in flows]) for step, item, k in by_stage)
    weights, views = root_mean_square(maps), [coverage(item) for item in maps]
    norms_of = zip(tensors_by_name, zip(*(item.extra for draw in probes for item in draw), strict=True), strict=True)
    reach = {name: max((norm for norm in values if norm is not None), default=None) for name, values in norms_of}
    return Report(
        stages=stages,
        first_dead=next((stage.name for stage in stages if stage.dead), None),
        coverage=coverage(weights),
        view_coverage=(sum(views) / draws, min(views)),
        effective_coverage=effective(weights),
        sensitivity=weights.cpu(),
        dead_zones=(weights == 0).cpu(),
        resamples=sum(stage.resamples for stage in stages[: len(steps)]),
        minification=_minification(stages),
        stationary=is_stationary(flat) if flat else None,
        flatness=flat,
        parameters=reach,
        warnings=repair_advice(stages, weights, flat, reach, draws),
        draws=draws,
        seed=seed,
    )


def _picture(image: Any) -> Tensor:
    """(1,3,H,W), detached."""
    if isinstance(image, Tensor):
        tensor = image.detach()[None] if image.dim() == 3 else image.detach()
    else:
        array = np.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
        if array.ndim != 3 or array.dtype != np.uint8:
            raise ValueError(f"`image` must be an array (H,W,3) of 8 bits; got {array.dtype} of shape {array.shape}")
        tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)[None].float() / 255
    if len(checked(tensor, "image", slack=0, channels=3)) != 1:
        raise ValueError(f"`image` must be one picture, (3,H,W) or (1,3,H,W); got shape {tuple(tensor.shape)}")
    return tensor


def _rows(steps: Sequence[AuditStep], draws: int, seed: int, like: Tensor) -> list[tuple[Tensor, ...]]:
    """The points of our stages' coordinates: for each draw, (1,dims) for each step."""
    dims = [step.dims for step in steps]
    points = Sobol()(draws, sum(dims), seed=seed).to(like.device)
    return [row.split(dims, dim=1) for row in points.split(1)]


def _flow(values: list[Any], seed: int) -> list[float]:
    """The norm of a random end loss's gradient at every value of the pipeline; 0 where it does not reach."""
    end = values[-1]
    inside = [(i, value) for i, value in enumerate(values) if isinstance(value, Tensor) and value.requires_grad]
    norms = [0.0] * len(values)
    if not inside or inside[-1][1] is not end:
        return norms
    generator = torch.Generator().manual_seed(seed)
    cotangent = torch.randn(end.shape, generator=generator, dtype=torch.float64)
    try:
        gradients = torch.autograd.grad(
            end, [value for _, value in inside], (cotangent / cotangent.norm()).to(end), allow_unused=True
        )
    except Exception:  # a foreign backward may raise anything; the probe of its stage reports it
        return norms
    for (i, _), gradient in zip(inside, gradients, strict=True):
        norms[i] = 0.0 if gradient is None else float(gradient.cpu().double().norm())
    return norms


def _minification(stages: Sequence[StageReport]) -> tuple[float, float] | None:
    warps = [(stage.stretch, stage.aliases) for stage in stages if stage.stretch is not None]
    if not warps:
        return None
    return max([1.0, *(s for s, _ in warps)]), max([1.0, *(s for s, aliases in warps if aliases)])
