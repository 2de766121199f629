"""Where does the gradient die? One call examines a pipeline of any library, stage by stage."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from transforms.auditing.coverage import (
    coverage,
    effective,
    gradient_norm,
    gradients_of,
    root_mean_square,
    sensitivity,
    unit_cotangent,
)
from transforms.auditing.probe import StepProbe, probe_step
from transforms.auditing.report import Report, repair_advice, summarise
from transforms.auditing.steps import AuditStep, chain, floating, split_steps
from transforms.doors import PastDoors, checked
from transforms.draws.samplers import Sobol, stream

#: The losses at delta = 0 are measured under at most this many views.
FLAT_DRAWS = 4
#: Below this share of the gradient at 1/255, the gradient at 0 is rounding noise.
NOISE = 1e-4
#: Loss -> its definition, from features and anchor (N,D).
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "1 - cosine": lambda features, anchor: 1 - F.cosine_similarity(features, anchor, dim=1),
    "squared distance": lambda features, anchor: (features - anchor).square().sum(1),
}


def audit(
    pipeline: Any, image: Any, encoder: Callable[[Tensor], Tensor] | None = None, *, draws: int = 16, seed: int = 0
) -> Report:
    """Look for a gradient that dies, pixels that get none, needless resamples, aliasing, and a loss without a slope.

    Args:
        pipeline: a `Compose`, a stage, a torchvision transform or `Compose`, an `nn.Sequential` (kornia's containers
            too), a function of images, or a list of any of these. Randomness of other libraries is seeded for each
            draw and stage, and the generators' states are restored. Each stage is called about ten times a draw.
        image: (3,H,W) or (1,3,H,W), floating, in [0,1]; a PIL image or an (H,W,3) array of 8 bits.
        encoder: images (N,3,h,w) -> features (N,D). With it the end loss is a random projection of the features, and
            `stationary` is answered; without it the end loss is a random projection of the view.
        draws: number of views.
        seed: of the views, of the stages' own randomness and of the random projections.

    Returns:
        A `Report`; print it.

    Raises:
        ValueError: not an image, not a pipeline, or a stage that fails on a picture, with its name.

    Examples:
        >>> from transforms import Affine, Compose, audit
        >>> picture = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> audit(Compose([Affine(degrees=20)]), picture, draws=2).first_dead is None
        True
        >>> audit([Affine(degrees=20), torch.round], picture, draws=2).first_dead
        'round'
    """
    if draws < 1:
        raise ValueError(f"`draws` must be at least 1; got {draws}")
    picture, steps = _picture(image), split_steps(pipeline)
    name = getattr(encoder, "__name__", type(encoder).__name__)
    all_steps = steps if encoder is None else (*steps, AuditStep(f"encoder {name}", function=encoder))
    dims = [step.dims for step in all_steps]
    points = Sobol()(draws, sum(dims), seed=seed).to(picture.device)
    rows = [row.split(dims, dim=1) for row in points.split(1)]  # draw by draw, stage by stage
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
            probes.append([probe_step(*place) for place in places])

        def features_of(images: Tensor, draw: int) -> Tensor:
            features = chain(all_steps, images, rows[draw], seeds[draw])[-1]
            return features if isinstance(features, Tensor) and features.is_floating_point() else floating(features)

        flat_draws = 0 if encoder is None else min(draws, FLAT_DRAWS)
        flat = _flatness(features_of, picture, flat_draws, stream(seed, "signs"))

    by_stage = enumerate(zip(all_steps, zip(*probes, strict=True), strict=True))
    stages = tuple(summarise(step, item, [flow[k : k + 2] for flow in flows]) for k, (step, item) in by_stage)
    warps = [stage.stretch for stage in stages if stage.stretch is not None]
    aliased = [stage.stretch for stage in stages if stage.stretch is not None and stage.aliases]
    weights, views = root_mean_square(maps), [coverage(item) for item in maps]
    sound = [0 < near < math.inf and at <= NOISE * near for at, near in flat.values()]
    stationary = all(sound) if flat else None  # flat at 0, with a gradient at 1/255
    return Report(
        stages=stages,
        first_dead=next((stage.name for stage in stages if stage.dead), None),
        coverage=coverage(weights),
        view_coverage=(sum(views) / draws, min(views)),
        effective_coverage=effective(weights),
        sensitivity=weights.cpu(),
        dead_zones=(weights == 0).cpu(),
        resamples=sum(stage.resamples for stage in stages[: len(steps)]),
        minification=(max(1.0, *warps), max(1.0, 1.0, *aliased)) if warps else None,
        stationary=stationary,
        flatness=flat,
        warnings=repair_advice(stages, weights, stationary, draws),
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


def _flow(values: list[Any], seed: int) -> list[float]:
    """The norm of a random end loss's gradient at every value of the pipeline; 0 where it does not reach."""
    end, inside = values[-1], [isinstance(value, Tensor) and value.requires_grad for value in values]
    if not inside[-1]:
        return [0.0] * len(values)
    leaves = [value for value, is_inside in zip(values, inside, strict=True) if is_inside]
    found = iter(gradients_of(end, leaves, unit_cotangent(end, seed)))
    return [gradient_norm(next(found)) if is_inside else 0.0 for is_inside in inside]


def _flatness(
    features_of: Callable[[Tensor, int], Tensor], image: Tensor, draws: int, seed: int
) -> dict[str, tuple[float, float]]:
    """Loss -> mean gradient norm at delta = 0 and at a random sign of 1/255."""
    generator = torch.Generator().manual_seed(seed)
    norms_at: dict[str, list[list[float]]] = {name: [[], []] for name in LOSSES} if draws else {}
    for draw in range(draws):
        signs = 2.0 * torch.randint(2, image.shape, generator=generator) - 1
        with torch.no_grad():
            anchor = features_of(image, draw).detach().flatten(1)
        for place, start in enumerate((image, image + signs.to(image) / 255)):
            for name, loss in LOSSES.items():
                leaf = start.detach().clone().requires_grad_()
                value = loss(features_of(leaf, draw).flatten(1), anchor).sum()
                norms_at[name][place].append(gradient_norm(*gradients_of(value, [leaf])))
    return {name: (sum(a) / draws, sum(b) / draws) for name, (a, b) in norms_at.items()}
