"""Cases of the stages: each of the registry with random ranges, alone and composed, and tensors of all kinds."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from transforms.registry import STAGES
from transforms.resizing.kernels import NAMES

Case = dict[str, Any]

#: Of a share, a factor and so on: the ends that are allowed, and what lies between them.
BOUNDS: dict[str, dict[str, tuple[float, float]]] = {
    "affine": {"degrees": (-720, 720), "scale": (0.01, 100), "shear": (-89, 89), "translate": (-3, 3)},
    "viewpoint": {
        "yaw": (-89, 89),
        "pitch": (-89, 89),
        "roll": (-360, 360),
        "distance": (0.01, 100),
        "fov": (0.1, 179),
    },
    "crop": {"scale": (0.01, 1), "ratio": (0.01, 100)},
    "lens": {"k1": (-1, 1), "k2": (-1, 1)},
    "cylinder": {"arc": (0, 360), "turn": (-180, 180), "tilt": (-60, 60), "distance": (1, 1000)},
    "rolling_shutter": {"pan": (-1, 1), "wobble": (0, 1), "cycles": (0, 20)},
    "brightness": {"amount": (-1, 1)},
    "contrast": {"factor": (0, 100)},
    "gain": {"factor": (0, 100)},
    "channel_gain": {"gain": (0, 100), "offset": (-1, 1)},
    "gamma": {"gamma": (0.05, 20)},
    "saturation": {"factor": (0, 100)},
    "hue": {"degrees": (-360, 360)},
    "exposure": {"stops": (-16, 16)},
    "white_balance": {"red": (-16, 16), "blue": (-16, 16)},
    "vignette": {"strength": (0, 0.99)},
    "shading": {"strength": (-16, 16)},
    "shadow": {"darkness": (0, 1), "angle": (-360, 360), "position": (-2, 2), "softness": (1e-3, 5)},
    "moire": {"strength": (0, 1), "period": (0.01, 5), "angle": (-360, 360), "phase": (-5, 5)},
    "cutout": {"size": (0, 1)},
    "gaussian_blur": {"sigma": (0, 20)},
    "defocus": {"radius": (0, 12)},
    "motion_blur": {"length": (0, 40), "angle": (-360, 360)},
    "sensor_noise": {"read": (0, 1), "shot": (0, 1)},
    "resize_pad": {"scale": (0.01, 3)},
}


def numbers(low: float, high: float) -> SearchStrategy[float]:
    """Mostly the ends, and 0 and 1 where they are allowed."""
    marked = [value for value in (low, high, 0.0, 1.0) if low <= value <= high]
    return st.sampled_from(marked) | st.floats(low, high, allow_subnormal=False)


def ranges(low: float, high: float) -> SearchStrategy[list[float]]:
    """(low, high) in order, often of one point."""
    return numbers(low, high).map(lambda at: [at, at]) | st.tuples(numbers(low, high), numbers(low, high)).map(sorted)


def whole(low: int, high: int) -> SearchStrategy[Any]:
    """A whole number, or a range of them."""
    return st.integers(low, high) | st.tuples(st.integers(low, high), st.integers(low, high)).map(sorted)


#: What is no range.
OTHERS: dict[str, dict[str, SearchStrategy[Any]]] = {
    "perspective": {"jitter": st.floats(0, 0.499)},
    "flip": {"p": numbers(0, 1), "vertical": st.booleans()},
    "thin_plate": {"jitter": st.floats(0, 0.11), "grid": st.integers(2, 10)},
    "shading": {"grid": st.integers(1, 6)},
    "cutout": {"value": numbers(0, 1)},
    "quantise": {"bits": st.integers(1, 16)},
    "jpeg": {"quality": whole(1, 100), "subsampling": st.sampled_from(["4:4:4", "4:2:2", "4:2:0"])},
    "webp": {"quality": whole(1, 100)},
    "downscale": {"size": whole(1, 60), "kernel": st.sampled_from(NAMES), "eight_bit": st.booleans()},
    "resize_pad": {"kernel": st.sampled_from(NAMES), "value": numbers(0, 1)},
}
CHOICES = ("sometimes", "one_of")
PLAIN = tuple(name for name in STAGES if name not in CHOICES)


def arguments(name: str) -> SearchStrategy[dict[str, Any]]:
    """Arguments of a stage, all or some of them; a few draws break a rule between two of them and are refused."""
    ranged = {key: ranges(*ends) for key, ends in BOUNDS.get(name, {}).items()}
    others = OTHERS.get(name, {})
    if name == "downscale":
        return st.fixed_dictionaries(
            {"size": others["size"]}, optional={k: v for k, v in others.items() if k != "size"}
        )
    return st.fixed_dictionaries({}, optional={**ranged, **others})


def one(name: str) -> SearchStrategy[dict[str, Any]]:
    """{name: arguments}."""
    return arguments(name).map(lambda given: {name: given})


def several(depth: int, most: int = 3) -> SearchStrategy[dict[str, Any]]:
    """Up to `most` stages in order, choices among them."""
    label = st.sampled_from(PLAIN if depth <= 1 else (*PLAIN, *CHOICES, *CHOICES))

    def numbered(names: list[str]) -> SearchStrategy[dict[str, Any]]:
        labels = [f"{name}{i + 1 if i else ''}" for i, name in enumerate(names)]
        made = {
            label: chosen(name, depth) if name in CHOICES else arguments(name)
            for label, name in zip(labels, names, strict=True)
        }
        return st.fixed_dictionaries(made)

    return st.lists(label, min_size=1, max_size=most).flatmap(numbered)


def chosen(name: str, depth: int) -> SearchStrategy[dict[str, Any]]:
    """The arguments of a choice among stages, which may be choices."""
    inner = several(depth - 1, 2)
    if name == "sometimes":
        return st.fixed_dictionaries({"stages": inner}, optional={"p": numbers(0, 1)})
    return st.fixed_dictionaries({"stages": inner}).flatmap(
        lambda given: st.fixed_dictionaries(
            {"stages": st.just(given["stages"])},
            optional={"weights": st.lists(numbers(0, 5), min_size=(n := len(given["stages"])), max_size=n)},
        )
    )


#: What somebody may write in the place of a number or a range.
WRONG = (
    st.sampled_from(
        [
            None,
            True,
            "",
            "20",
            "nan",
            [],
            [1],
            [1, 2, 3],
            [2, 1],
            [0.5, -0.5],
            {},
            {"a": 1},
            "${seed}",
            [[1, 2], [3, 4]],
        ]
    )
    | st.sampled_from([-1, 0, 1e9, -1e9, 1e39, 1e300, 10**400, -1e-9, 1e-9, 101, 0.5, [1e9, 1e39], [-1e300, 1e300]])
    | st.sampled_from(
        [[0, 1e9], [1e-300, 1e-300], [-1e9, 1e9], [True, False], ["1", "2"], [None, None], 2**31, 2**63, [1, 2**40]]
    )
)


@st.composite
def spoiled(draw: st.DrawFn) -> Case:
    """One argument of one stage is something else than it should be."""
    name = draw(st.sampled_from(PLAIN))
    given = draw(arguments(name))
    keys = sorted({*BOUNDS.get(name, {}), *OTHERS.get(name, {})}) or ["bits"]
    key = draw(st.sampled_from(keys))
    case = draw(tensors())
    return {**case, "stages": {name: {**given, key: draw(WRONG)}}, "spoiled": key}


def tensors() -> SearchStrategy[Case]:
    """What a pipeline is called with, and how it samples."""
    return st.fixed_dictionaries(
        {
            "pictures": st.integers(1, 5),
            "views": st.sampled_from([1, 1, 2, 3]),  # of each picture
            "channels": st.sampled_from([1, 3]),
            "height": st.integers(1, 50),
            "width": st.integers(1, 70),
            "content": st.sampled_from(["random", "random", "white", "black", "grey", "edges"]),
            "dtype": st.sampled_from(["float32", "float64", "bfloat16", "float16"]),
            "layout": st.sampled_from(["plain", "expanded", "last", "strided"]),
            "u": st.sampled_from(["random", "random", "zero", "top", "mixed"]),
            "kernel": st.sampled_from(["bilinear", "bilinear", "bicubic", "nearest"]),
            "border": st.sampled_from(["constant", "replicate", "reflect", "reflect101"]),
            "value": numbers(0, 1),
            "antialias": st.booleans(),
            "seed": st.integers(0, 2**16),
        }
    )


@st.composite
def single(draw: st.DrawFn) -> Case:
    """One stage by itself, every one as often."""
    name = draw(st.sampled_from(tuple(STAGES)))
    given = draw(chosen(name, 2) if name in CHOICES else arguments(name))
    return {**draw(tensors()), "stages": {name: given}}


@st.composite
def composed(draw: st.DrawFn) -> Case:
    """Several, up to four deep."""
    return {**draw(tensors()), "stages": draw(several(draw(st.integers(1, 4))))}


CASES: SearchStrategy[Case] = st.one_of(single(), composed(), spoiled())
