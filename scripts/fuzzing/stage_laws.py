"""The laws of a pipeline, whatever its stages, ranges, pictures and coordinates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attacks.experiment.build.pipeline import pipeline, stages
from attacks.schema.groups import ViewsConfig
from fuzzing.target import Broken, one_line
from transforms import Compose, OneOf, Sometimes
from transforms.camera.codec import _Coded
from transforms.compose import Stage
from transforms.geometry.affine import Crop
from transforms.ranges import Ranged
from transforms.sampling.straight_through import tolerance

#: The last coordinate below 1 that float32 holds.
TOP = 1 - 2**-24
#: Stages that round: a difference in the last digit may become one of a whole level, or of a whole block of a file.
ROUNDING = ("quantise", "jpeg", "webp")
#: Stages beyond whose edge, a fold or a horizon, nothing is seen: a pixel on it may fall to either side.
EDGES = ("perspective", "viewpoint", "lens", "cylinder")
#: Stages whose slope may be in the hundreds or more.
STEEP = (
    "contrast",
    "gain",
    "channel_gain",
    "gamma",
    "saturation",
    "exposure",
    "white_balance",
    "shading",
    "sensor_noise",
)


#: Views of more values than that (a line of pixels, enlarged by fifty) are not taken apart: float64 and gradients of
#: a chain of stages would need more memory than a case may have.
MOST = 2**20


def check(case: dict[str, Any]) -> None:
    """Raise `Broken` where a case breaks a law; a refusal in one line, at the beginning, breaks none."""
    made = built(case)
    if made is None:
        return
    images, u = pictures(case), coordinates(case, made.dims)
    before = images.clone(), u.clone()
    try:
        views = made(images, u)
    except ValueError as error:
        allowed(error, case)
        return
    law(torch.equal(images, before[0]) and torch.equal(u, before[1]), "changed its input in place")
    looks(views, images, u)
    law(torch.equal(views, made(images, u)), "the same call gave other values")
    described(made, u)
    if views.numel() > MOST:
        return
    apart(case, made, images, u)
    descends(case, made, images, u)


def law(holds: bool, otherwise: str) -> None:
    """Raise `Broken` unless it holds."""
    if not holds:
        raise Broken(otherwise)


def built(case: dict[str, Any]) -> Compose | None:
    """The pipeline of a case; None where it is refused as it should be."""
    chosen = {key: case[key] for key in ("kernel", "border", "value", "antialias")}
    try:
        return pipeline(ViewsConfig("fuzz", case["stages"], **chosen))
    except ValueError as error:
        one_line(error, *([case["spoiled"]] if "spoiled" in case and not refused_anyway(case) else []))
        return None


def refused_anyway(case: dict[str, Any]) -> bool:
    """Whether the other arguments of a spoiled stage break a rule between them."""
    ((name, given),) = case["stages"].items()
    try:
        stages({name: {key: value for key, value in given.items() if key != case["spoiled"]}}, "stages")
    except ValueError as error:
        return "missing" not in str(error)
    return False


#: What can only be refused when a pipeline meets its pictures.
LATE = ("all outcomes of a choice must have one shape", "`size` must be at least 1 pixel")


def allowed(error: ValueError, case: dict[str, Any]) -> None:
    """Refusals that depend on the size of the pictures."""
    one_line(error)
    if not any(late in str(error) for late in LATE) or "spoiled" in case:
        raise Broken(f"refused when called, not when made: {error}") from error


def pictures(case: dict[str, Any]) -> Tensor:
    """(N,C,H,W) in [0,1], in the memory layout that the case asks for."""
    generator = torch.Generator().manual_seed(case["seed"])
    n, c, h, w = (case[key] for key in ("pictures", "channels", "height", "width"))
    match case["content"]:
        case "white":
            values = torch.ones(n, c, h, w)
        case "black":
            values = torch.zeros(n, c, h, w)
        case "grey":
            values = torch.full((n, c, h, w), 0.5)
        case "edges":
            values = (torch.rand(n, c, h, w, generator=generator) > 0.5).float()
        case _:
            values = torch.rand(n, c, h, w, generator=generator)
    values = values.to(getattr(torch, case["dtype"]))
    match case["layout"]:
        case "expanded":
            return values[:1].expand(n, -1, -1, -1)
        case "last":
            return values.contiguous(memory_format=torch.channels_last)
        case "strided":
            return values.repeat_interleave(2, -1)[..., ::2]
    return values


def coordinates(case: dict[str, Any], dims: int) -> Tensor:
    """(N k, dims) in [0,1), in the dtype that draws have, or in that of the pictures where it is finer."""
    generator = torch.Generator().manual_seed(case["seed"] + 1)
    shape = case["pictures"] * case["views"], dims
    u = torch.rand(shape, generator=generator).clamp(max=TOP)
    if case["u"] == "zero":
        u = torch.zeros(shape)
    elif case["u"] == "top":
        u = torch.full(shape, TOP)
    elif case["u"] == "mixed":
        u = torch.where(u < 0.3, 0.0, torch.where(u > 0.7, TOP, u))
    return u.double() if case["dtype"] == "float64" else u


def looks(views: Tensor, images: Tensor, u: Tensor) -> None:
    """Views are pictures: as many, as many channels, of the same dtype, finite, in [0,1]."""
    law(
        views.shape[:2] == (len(u), images.shape[1]), f"{tuple(views.shape)} for {tuple(images.shape)}, {len(u)} rows"
    )
    law(views.dtype == images.dtype, f"{views.dtype} from {images.dtype}")
    law(bool(views.isfinite().all()), "a view is not finite")
    slack = tolerance(views.dtype)  # the weights of a resample add up to 1 but for rounding
    law(
        bool(views.min() >= -slack and views.max() <= 1 + slack),
        f"a view leaves [0,1]: {views.min()} to {views.max()}",
    )


def described(made: Compose, u: Tensor) -> None:
    """`describe` gives a value for each coordinate, and each lies in the range that the configuration gave."""
    for row in made.describe(u):
        law(len(row) == made.dims, f"{made.dims} coordinates, and {len(row)} names: {', '.join(made.names)}")
        for (name, value), (low, high) in zip(row.items(), limits(made), strict=True):
            # Values are taken in the precision of `u`: 1e-5 of the largest end is a hundred roundings of float32,
            # which has no number below 1e-45.
            slack = 1e-5 * max(abs(low), abs(high)) + 1e-37
            law(low - slack <= value <= high + slack, f"{name} is {value}, not within [{low}, {high}]")


def limits(stage: Stage) -> list[tuple[float, float]]:
    """The range of each coordinate, from the stage's own arguments."""
    match stage:
        case Compose():
            return [ends for inner in stage.stages for ends in limits(inner)]
        case Sometimes():
            return [(0.0, 1.0), *limits(stage.stage)]
        case OneOf():
            return [(0.0, len(stage.stages) - 1.0), *(ends for inner in stage.stages for ends in limits(inner))]
        case Crop():
            return [stage.scale, stage.ratio, (0.0, 1.0), (0.0, 1.0)]
        case Ranged():
            return list(stage._bounds())
        case _Coded():
            return [stage.quality] if isinstance(stage.quality, tuple) else []
    given = vars(stage)
    if "jitter" in given:
        return [(-given["jitter"], given["jitter"])] * stage.dims
    if "strength" in given:
        return [stage._bounds()] * stage.dims  # type: ignore[attr-defined]
    return [given["size"] if isinstance(given.get("size"), tuple) else (0.0, 1.0)] * stage.dims


def kinds(stages: dict[str, Any]) -> list[str]:
    """The names of all stages, those inside choices too, without their numbers."""
    found = []
    for label, given in stages.items():
        found += [label.rstrip("0123456789"), *kinds((given or {}).get("stages", {}))]
    return found


def apart(case: dict[str, Any], made: Compose, images: Tensor, u: Tensor) -> None:
    """A view depends on its own row alone: one by one they are the same.

    In float64, so that what is left of rounding is far below what a mix-up of rows would do. The order of sums may
    differ with the size of a batch, and steep stages multiply that: 1e-16, times 100 for a gain, times 2^16 of light
    under the root of sRGB, times 20 for a gamma. Where values are rounded to levels a single one may fall to the
    other side; there the mean must agree.
    """
    k = len(u) // len(images)
    fine = [images[i // k : i // k + 1].double() for i in range(len(u))]
    whole = made(torch.cat(fine), u.double())
    rows = torch.cat([made(image, u[i : i + 1].double()) for i, image in enumerate(fine)])
    gap = (whole - rows).abs()
    rounded = (
        any(kind in ROUNDING for kind in kinds(case["stages"]))
        or "eight_bit" in str(case)
        or case["kernel"] == "nearest"
    )
    edges = 3 + gap.numel() / 100 if any(kind in EDGES for kind in kinds(case["stages"])) else 0
    law(
        bool(gap.mean() < 1e-2) if rounded else int((gap > 1e-5).sum()) <= edges,
        f"alone, a view differs by {gap.max():.2g}",
    )
    if k > 1:  # the views of one picture share its pyramid
        shared = made(images.double(), u.double())
        law(
            bool((shared - whole).abs().mean() < (1e-2 if rounded else 1e-6)),
            "views of one picture, and of its copies, differ",
        )


def descends(case: dict[str, Any], made: Compose, images: Tensor, u: Tensor) -> None:
    """Gradients are finite, and none is zero where the view changes with its picture."""
    leaf, at = images.detach().clone().requires_grad_(), u.clone().requires_grad_()
    views = made(leaf, at)
    weights = torch.randn(views.shape, generator=torch.Generator().manual_seed(0)).to(views.dtype)
    if not views.requires_grad:
        raise Broken("views have no gradient at all")
    found = torch.autograd.grad(views, (leaf, at), weights, allow_unused=True)
    # Of the same function, in float64, a little inside of black and white.
    inner, fine = images.double().clamp(1e-3, 1 - 1e-3), u.double()
    leaf = inner.clone().requires_grad_()
    (gradient,) = torch.autograd.grad((made(leaf, fine) * weights.double()).sum(), leaf)
    for each, what in zip(found, ("picture", "coordinates"), strict=True):
        # float16 ends at 65504: 16 stops of light, or several gains, have a gradient that it cannot hold.
        beyond = images.dtype == torch.float16 and any(kind in STEEP for kind in kinds(case["stages"]))
        law(each is None or beyond or bool(each.isfinite().all()), f"the gradient of the {what} is not finite")
    turn = torch.randn(inner.shape, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        steps = [made(inner + size * turn, fine) - made(inner - size * turn, fine) for size in (1e-4, 1e-5)]
    slopes = [
        (step * weights.double()).flatten(1).abs().sum(1) / size
        for step, size in zip(steps, (1e-4, 1e-5), strict=True)
    ]
    k = len(u) // len(images)
    for row in range(len(u)):
        alive = (
            min(float(slope[row]) for slope in slopes) > 1e-3
            and abs(slopes[0][row] - slopes[1][row]) < 0.1 * slopes[0][row]
        )
        law(
            not alive or bool(gradient[row // k].any()), "the gradient is zero, and the view changes with the picture"
        )
