"""Laws of any pipeline of stages, on any pictures and coordinates, and past findings of fuzzing."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import strategies as st

from attacks.schema.groups import ViewsConfig
from attacks.study.pipeline import pipeline, stages
from tests.helpers.fuzzing import every_effort, hold, one_line
from transforms.colour import Gamma
from transforms.registry import STAGES
from transforms.resizing.kernels import NAMES
from transforms.sampling.straight_through import straight_through, tolerance

#: Stage -> argument -> the ends of what is useful, where that is less than what is allowed.
USEFUL = {
    "affine": {"translate": (-3, 3)},
    "crop": {"scale": (0.01, 1), "ratio": (0.01, 100)},
    "cylinder": {"arc": (0, 360), "turn": (-180, 180), "tilt": (-60, 60), "distance": (1, 1000)},
    "shading": {"strength": (-16, 16)},
    "shadow": {"position": (-2, 2), "softness": (0.001, 5)},
    "moire": {"period": (0.01, 5), "phase": (-5, 5)},
    "gaussian_blur": {"sigma": (0, 20)},
    "defocus": {"radius": (0, 12)},
    "motion_blur": {"length": (0, 40)},
    "resize_pad": {"scale": (0.01, 3)},
}
#: Stage -> argument -> the ends of the ranges that are tried.
RANGES = {
    name: {c.field: (max(c.low, -360), min(c.high, 360 if c.low < 0 else 100)) for c in fields if c.field}
    | USEFUL.get(name, {})
    for name, fields in ((name, getattr(stage, "coordinates", ())) for name, stage in STAGES.items())
}


def numbers(low, high):
    """Mostly the ends, and 0 and 1 if they are allowed."""
    ends = [value for value in (low, high, 0.0, 1.0) if low <= value <= high]
    return st.sampled_from(ends) | st.floats(low, high, allow_subnormal=False)


def ranges(low, high):
    return numbers(low, high).map(lambda at: [at, at]) | st.tuples(numbers(low, high), numbers(low, high)).map(sorted)


def integers(low, high):
    return st.integers(low, high) | st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)


#: Arguments that are not ranges.
ARGUMENTS = {
    "perspective": {"jitter": st.floats(0, 0.499)},
    "flip": {"p": numbers(0, 1), "vertical": st.booleans()},
    "thin_plate": {"jitter": st.floats(0, 0.11), "grid": st.integers(2, 10)},
    "dense_grid": {"grid": st.sampled_from([[[[0.5, -3]]], [[[1, 1], [-1, 100]]]])},
    "shading": {"grid": st.integers(1, 6)},
    "moire": {"shift": st.floats(0, 1)},
    "cutout": {"value": numbers(0, 1)},
    "quantise": {"bits": st.integers(1, 16)},
    "jpeg": {"quality": integers(1, 100), "subsampling": st.sampled_from(["4:4:4", "4:2:2", "4:2:0"])},
    "webp": {"quality": integers(1, 100)},
    "downscale": {"size": integers(1, 60), "kernel": st.sampled_from(NAMES), "eight_bit": st.booleans()},
    "resize_pad": {"kernel": st.sampled_from(NAMES), "value": numbers(0, 1)},
    "pixel_crop": {"margin": st.integers(0, 8)},
    "median_pool": {"size": st.integers(1, 60)},
}
CHOICES = ("sometimes", "one_of")
#: Stages whose size has no default.
WITH_SIZE = ("downscale", "median_pool")
PLAIN = tuple(name for name in STAGES if name not in CHOICES)
#: Arguments that no case varies: `codec` is a map with tests of its own; `choice` makes those of the choices.
LEFT_OUT = {"jpeg": {"codec"}, "downscale": {"then_size", "then_kernel", "of"}}
LEFT_OUT |= {"one_of": {"stages", "weights"}, "sometimes": {"stage", "p"}}
#: Values that a user may write in place of a number or a range.
WRONG = [None, True, "", "20", "nan", [], [1], [1, 2, 3], [2, 1], [0.5, -0.5], {}, {"a": 1}, "${seed}"]
WRONG += [[[1, 2], [3, 4]], -1, 0, 1e9, -1e9, 1e39, 1e300, 10**400, -1e-9, 1e-9, 101, 0.5, [1e9, 1e39]]
WRONG += [[-1e300, 1e300], [0, 1e9], [1e-300, 1e-300], [-1e9, 1e9], [True, False], ["1", "2"], [None, None]]
WRONG += [2**31, 2**63, [1, 2**40]]


def arguments(name):
    """Some of a stage's arguments; a few draws break a rule between two of them."""
    optional = {key: ranges(*ends) for key, ends in RANGES.get(name, {}).items()} | ARGUMENTS.get(name, {})
    return st.fixed_dictionaries({"size": optional.pop("size")} if name in WITH_SIZE else {}, optional=optional)


def several(depth, count=3):
    """Up to `most` stages in order, choices among them."""

    def with_labels(names):
        labels = [f"{name}{i + 1 if i else ''}" for i, name in enumerate(names)]
        values = [choice(name, depth) if name in CHOICES else arguments(name) for name in names]
        return st.fixed_dictionaries(dict(zip(labels, values, strict=True)))

    names = st.sampled_from(PLAIN if depth <= 1 else (*PLAIN, *CHOICES, *CHOICES))
    return st.lists(names, min_size=1, max_size=count).flatmap(with_labels)


@st.composite
def choice(draw, name, depth):
    """The arguments of a choice among stages, which may be choices."""
    inner = draw(several(depth - 1, 2))
    weights = st.lists(numbers(0, 5), min_size=len(inner), max_size=len(inner))
    optional = {"p": numbers(0, 1)} if name == "sometimes" else {"weights": weights}
    return {"stages": inner} | draw(st.fixed_dictionaries({}, optional=optional))


#: Inputs of a pipeline, and its sampling options.
CALLS = {
    "pictures": st.integers(1, 5),
    "views": st.sampled_from([1, 1, 2, 3]),  # of each picture
    "channels": st.sampled_from([1, 3]),
    "height": st.integers(1, 50),
    "width": st.integers(1, 70),
    "content": st.sampled_from(["random", "random", "white", "black", "grey", "edges"]),
    "dtype": st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    "layout": st.sampled_from(["plain", "expanded", "last", "strided"]),
    "u": st.sampled_from(["random", "random", "zero", "top", "mixed"]),
    "kernel": st.sampled_from(["bilinear", "bilinear", "bicubic", "nearest"]),
    "border": st.sampled_from(["constant", "replicate", "reflect", "reflect101"]),
    "value": numbers(0, 1),
    "antialias": st.booleans(),
    "seed": st.integers(0, 2**16),
}


@st.composite
def cases(draw, kind):
    """A call of one stage alone, of several up to four deep, or of one with a spoiled argument."""
    call, argument = {key: draw(strategy) for key, strategy in CALLS.items()}, None
    if kind == "composed":
        return SimpleNamespace(**call, spoiled=None, stages=draw(several(draw(st.integers(1, 4)))))
    name = draw(st.sampled_from(tuple(STAGES) if kind == "single" else PLAIN))
    values = draw(choice(name, 2) if name in CHOICES else arguments(name))
    if kind == "spoiled":
        argument = draw(st.sampled_from([*RANGES.get(name, {}), *ARGUMENTS.get(name, {})] or ["bits"]))
        values |= {argument: draw(st.sampled_from(WRONG))}
    return SimpleNamespace(**call, spoiled=argument, stages={name: values})


#: The last coordinate below 1 that float32 holds.
TOP = 1 - 2**-24
#: Stages that round; those with an edge, a fold or a horizon, where a pixel may fall to either side; steep ones.
ROUNDING, EDGES = {"quantise", "jpeg", "webp"}, {"perspective", "viewpoint", "lens", "cylinder"}
STEEP = {"contrast", "gain", "channel_gain", "gamma", "saturation", "exposure", "white_balance", "shading"}
STEEP |= {"sensor_noise"}
#: Views of more values are not compared in float64, nor differentiated: that needs more memory than a case may have.
MAX_VALUES = 2**20
#: Errors that depend on the size of the pictures.
LATE = ("all outcomes of a choice must have one shape", "`size` must be at least 1 pixel", "`margin` must be less")


def check(case):
    """The laws of a pipeline; an error of one line when it is made breaks none."""
    compose = build(case)
    if compose is None:
        return
    images, u = pictures(case), coordinates(case, compose.dims)
    copies = images.clone(), u.clone()
    try:
        views = compose(images, u)
    except ValueError as error:
        one_line(error)
        assert any(late in str(error) for late in LATE) and not case.spoiled, f"not refused when made: {error}"
        return
    assert torch.equal(images, copies[0]) and torch.equal(u, copies[1]), "changed its input in place"
    assert views.shape[:2] == (len(u), images.shape[1]) and views.dtype == images.dtype
    slack = tolerance(views.dtype)  # the weights of a resample add up to 1 but for rounding
    assert views.isfinite().all() and views.min() >= -slack and views.max() <= 1 + slack
    assert torch.equal(views, compose(images, u)), "the same call gave other values"
    assert all(map(math.isfinite, itertools.chain.from_iterable(row.values() for row in compose.describe(u))))
    if views.numel() <= MAX_VALUES:
        names = kinds(case.stages)
        rows_are_independent(case, names, compose, images, u)
        gradients_are_alive(names, compose, images, u)


def build(case):
    """The pipeline, or None where it is refused in one line that names the spoiled argument."""
    try:
        return pipeline(ViewsConfig("fuzz", case.stages, case.kernel, case.border, case.value, case.antialias))
    except ValueError as error:
        one_line(error, *([case.spoiled] if case.spoiled and not refused_anyway(case) else []))
        return None


def refused_anyway(case):
    """Whether the other arguments of a spoiled stage break a rule between them."""
    ((name, values),) = case.stages.items()
    try:
        stages({name: {key: value for key, value in values.items() if key != case.spoiled}}, "stages")
    except ValueError as error:
        return "missing" not in str(error)
    return False


def pictures(case):
    """(N,C,H,W) in [0,1], in the memory layout of the case."""
    generator = torch.Generator().manual_seed(case.seed)
    values = torch.rand(case.pictures, case.channels, case.height, case.width, generator=generator)
    level = {"white": 1.0, "black": 0.0, "grey": 0.5}.get(case.content)
    values = (values > 0.5).float() if case.content == "edges" else values if level is None else values * 0 + level
    values = values.to(case.dtype)
    if case.layout == "expanded":
        return values[:1].expand(case.pictures, -1, -1, -1)
    if case.layout == "strided":
        return values.repeat_interleave(2, -1)[..., ::2]
    return values.contiguous(memory_format=torch.channels_last) if case.layout == "last" else values


def coordinates(case, dims):
    """(N k, dims) in [0,1), float64 for float64 pictures, else float32."""
    generator = torch.Generator().manual_seed(case.seed + 1)
    u = torch.rand(case.pictures * case.views, dims, generator=generator).clamp(max=TOP)
    if case.u in ("zero", "top"):
        u = torch.full_like(u, 0.0 if case.u == "zero" else TOP)
    elif case.u == "mixed":
        u = torch.where(u < 0.3, 0.0, torch.where(u > 0.7, TOP, u))
    return u.double() if case.dtype == torch.float64 else u


def kinds(stages_by_label):
    """The names of all stages, also inside choices."""
    inner = (kinds((values or {}).get("stages", {})) for values in stages_by_label.values())
    return {label.rstrip("0123456789") for label in stages_by_label}.union(*inner)


def rows_are_independent(case, names, compose, images, u):
    """A view depends on its own row alone: one by one they are the same.

    In float64: the order of sums may differ with the batch by 1e-16, times 100 for a gain, 2^16 of light under the
    root of sRGB, 20 for a gamma. Where values are rounded one may fall to the other side; there the mean must agree.
    """
    k = len(u) // len(images)
    fine = [images[i // k : i // k + 1].double() for i in range(len(u))]
    batch = compose(torch.cat(fine), u.double())
    gap = (batch - torch.cat([compose(image, u[i : i + 1].double()) for i, image in enumerate(fine)])).abs()
    rounded = names & ROUNDING or "eight_bit" in str(case.stages) or case.kernel == "nearest"
    edge = 3 + gap.numel() / 100 if names & EDGES else 0
    assert gap.mean() < 1e-2 if rounded else (gap > 1e-5).sum() <= edge, f"alone, a view differs by {gap.max():.2g}"
    if k > 1:  # the views of one picture share its pyramid
        shared = compose(images.double(), u.double())
        assert (shared - batch).abs().mean() < (1e-2 if rounded else 1e-6), "a picture and its copies differ"


def gradients_are_alive(names, compose, images, u):
    """Gradients are finite, and none is zero where differences at two step sizes show that the view changes."""
    leaf, at = images.detach().clone().requires_grad_(), u.clone().requires_grad_()
    views = compose(leaf, at)
    assert views.requires_grad, "views have no gradient at all"
    weights = torch.randn(views.shape, generator=torch.Generator().manual_seed(0)).to(views.dtype)
    # float16 ends at 65504: 16 stops of light, or several gains, have a gradient that it cannot hold.
    if images.dtype != torch.float16 or not names & STEEP:
        for grad in torch.autograd.grad(views, (leaf, at), weights, allow_unused=True):
            assert grad is None or grad.isfinite().all(), "a gradient is not finite"
    # The same function in float64, a little inside of black and white.
    inner, fine, weights = images.double().clamp(1e-3, 1 - 1e-3), u.double(), weights.double()
    leaf = inner.clone().requires_grad_()
    (grad,) = torch.autograd.grad((compose(leaf, fine) * weights).sum(), leaf)
    turn = torch.randn(inner.shape, generator=torch.Generator().manual_seed(1)).double()
    with torch.no_grad():
        coarse, small = (
            ((compose(inner + h * turn, fine) - compose(inner - h * turn, fine)) * weights).flatten(1).abs().sum(1)
            / h
            for h in (1e-4, 1e-5)
        )
    moves = (torch.minimum(coarse, small) > 1e-3) & ((coarse - small).abs() < 0.1 * coarse)
    alive = grad.flatten(1).any(1).repeat_interleave(len(u) // len(images))
    assert not (moves & ~alive).any(), "the gradient is zero, and the view changes with the picture"


@every_effort
@pytest.mark.parametrize("kind", ["single", "composed", "spoiled"])
def test_the_laws_hold(kind, times):
    hold(check, cases(kind), 10, times)


def test_every_argument_of_every_stage_is_varied():
    for name, stage in STAGES.items():
        fields = {field.name for field in dataclasses.fields(stage) if field.init}
        assert {*RANGES.get(name, {}), *ARGUMENTS.get(name, {})} == fields - LEFT_OUT.get(name, set()), name


def late(*_):
    raise ValueError("`gamma` is wrong after all")


FAULTS = {
    "changes its input": lambda _, images, u: images.mul_(0.5),
    "mixes rows": lambda _, images, u: images.roll(1, 0) * 0.5 + 0.0 * u.sum(),
    "has no gradient": lambda _, images, u: images.detach() * 0.5 + 0.0 * images,
    "is not finite": lambda _, images, u: images / 0,
    "has an infinite gradient": lambda _, images, u: straight_through(images, images * torch.inf),
    "changes the dtype": lambda _, images, u: images.double(),
    "leaves [0,1]": lambda _, images, u: images * 1.5,
    "is random": lambda _, images, u: images * torch.rand(()),
    "is refused late": late,
}


CALL = {"pictures": 3, "views": 1, "channels": 3, "height": 5, "width": 7, "content": "random", "layout": "plain"}
CALL |= {"dtype": torch.float32, "u": "random", "kernel": "bilinear", "border": "constant", "value": 0.5}
CALL |= {"antialias": True, "seed": 0}


@pytest.mark.parametrize("method", FAULTS)
def test_a_stage_that_breaks_a_law_fails_the_check(method, monkeypatch):
    case = SimpleNamespace(**CALL, spoiled=None, stages={"gamma": {"gamma": [0.5, 0.9]}})
    check(case)
    monkeypatch.setitem(STAGES, "gamma", type("Wrong", (Gamma,), {"__call__": FAULTS[method]}))
    with pytest.raises(AssertionError):
        check(case)


def test_boolean_border_value_is_refused():
    with pytest.raises(ValueError, match=r"`transforms.value` must be a number"):
        pipeline(ViewsConfig("x", {}, value=True))
