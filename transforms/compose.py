"""Stages, deterministic functions of images and of `u` in [0,1)^dims, composed into views. A *geometric* stage maps
points, and neighbours fuse; a *pixel* stage changes values, or the size."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from transforms.devices import HOST, uploaded, wide_dtype
from transforms.doors import door, made, unchecked
from transforms.sampling.boxes import Boxes, boxes, overlay
from transforms.sampling.fusion import UNSEEN as UNSEEN
from transforms.sampling.fusion import Chain, Move, fuse
from transforms.sampling.homography import Pull, facing, half_pixels, invert, transform
from transforms.sampling.outline import Outline
from transforms.sampling.pyramid import levels
from transforms.sampling.read import Border, Kernel, Resampling, Value, copies, own_copies
from transforms.sampling.straight_through import saturate
from transforms.sampling.tone import Tone, apply_tone, first_tone
from transforms.sampling.warp import warp
from transforms.scene import Layer, Scene, count_pictures, premultiply, scene_of, size_of


@runtime_checkable
class Stage(Protocol):
    """A deterministic function of images and of points `u` of the unit cube. This is all that a stage must have; the
    other protocols here say what it may have besides, and a `label`: the word for it in names of coordinates, in
    place of the name of its class.

    Examples:
        >>> from transforms import Compose, Stage
        >>> class Invert(Stage):
        ...     names = ()
        ...     def __call__(self, images, u):
        ...         return 1 - images
        >>> Compose([Invert()])(torch.full((1, 1, 1, 1), 0.25), torch.zeros(1, 0)).item()
        0.75
    """

    @property
    def dims(self) -> int:
        """How many coordinates of `u` the stage consumes: as many as have names."""
        return len(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """What the coordinates mean, with the unit: "angle (deg)"."""

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        """(N,C,H,W) in [0,1] and (N,dims) -> (N,C,h,w) in [0,1]."""


@runtime_checkable
class Geometry(Stage, Protocol):
    """A stage that moves points: where does an output point look in the stage's input?

    Examples:
        >>> from transforms.compose import Geometry
        >>> class Smaller(Geometry):
        ...     names = ()
        ...     def pull(self, points, u):
        ...         return 2 * points.expand(len(u), -1, -1, -1)
        >>> Smaller()(torch.ones(1, 1, 8, 8), torch.zeros(1, 0))[0, 0, 4].round(decimals=4).tolist()
        [0.5, 0.5, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5]
    """

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        """Output points (1|N,h,w,2) -> input points (N,h,w,2), both in the stage frame; both coordinates `UNSEEN`
        where an output point sees nothing. The result must be finite, and so must its derivatives (see `hide`)."""

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        """One resample with the defaults of `Compose`."""
        return Compose((self,))(images, u)


@runtime_checkable
class Homography(Geometry, Protocol):
    """A geometric stage that is a matrix, so that it fuses by multiplication.

    Examples:
        >>> from transforms.compose import Homography
        >>> class Mirror(Homography):
        ...     names = ()
        ...     def matrix(self, u):
        ...         return torch.diag(u.new_tensor([-1.0, 1.0, 1.0])).expand(len(u), 3, 3)
        >>> Mirror()(torch.eye(2)[None, None], torch.zeros(1, 0))[0, 0].round(decimals=4).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """

    def matrix(self, u: Tensor) -> Tensor:
        """(N,dims) -> (N,3,3) from output points to input points, in the stage frame, of any scale and sign."""

    def pull(self, points: Tensor, u: Tensor) -> Tensor:
        """Points through the matrix; those beyond the horizon are not marked (`Compose` masks them)."""
        return transform(facing(self.matrix(u)), points)[0]


@runtime_checkable
class Linear(Stage, Protocol):
    """A pixel stage that is one line for all values of a view, clamped to [0,1], so that it fuses."""

    def line(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """(N,dims) -> gain >= 0 and offset, each (N,1,1,1): the stage is x -> clamp(gain x + offset, 0, 1)."""


@runtime_checkable
class Laying(Stage, Protocol):
    """A stage that acts on the layers above the picture, before the camera sees all of them together."""

    def lay(self, scene: Scene, u: Tensor) -> Scene:
        """A scene of N pictures and (V,dims) -> the scene whose layers above the bottom one are those of V views."""


@runtime_checkable
class Physical(Protocol):
    """A stage whose coordinates stand for physical values. Without, they are described as they are, in [0,1)."""

    def values(self, u: Tensor) -> Tensor:
        """(N,dims) in [0,1) -> (N,dims) physical values, in the units of `names`."""


@runtime_checkable
class Discrete(Protocol):
    """A stage with coordinates that choose (a size in pixels, a quality, a seed, which stage) rather than measure. A
    view is piecewise constant in them, so no gradient reaches them. Of a stage without this protocol all coordinates
    measure.

    A pipeline gives such a stage its coordinates on the host, whatever the device of the images: a choice by a number
    on a GPU would wait for all work that is queued there. Other pixel stages get theirs on the device of the images.
    """

    @property
    def discrete(self) -> tuple[int, ...]:
        """Which of the `dims` coordinates choose."""


@runtime_checkable
class Framed(Protocol):
    """A geometric stage that depends on the shape of the frame, not only on its shorter side."""

    def framed(self, size: tuple[int, int]) -> Geometry:
        """The stage for a frame of `size` (height, width)."""


def hide(points: Tensor, visible: Tensor) -> Tensor:
    """`points` (N,h,w,2) with `UNSEEN` where `visible` (N,h,w) is false; no gradient flows to those, which must be
    finite all the same (a derivative of NaN times zero is NaN)."""
    return torch.where(visible[..., None], points, UNSEEN)


class _Kind(NamedTuple):
    """The size of a stage and which of the protocols it has. Computed once: a protocol looks up its members each time
    it is checked."""

    dims: int
    geometric: bool
    linear: bool
    framed: bool
    laying: bool
    discrete: bool


@dataclass(frozen=True)
class Compose:
    """Stages in order; runs of geometric stages become one resample, and runs of `Linear` ones one line.

    Args:
        stages: each a `Stage`. Write geometry first: a pixel stage between two geometric ones costs a resample.
        kernel, border, value, antialias, deterministic: how the fused geometry is sampled (see
            `transforms.sampling.read.Resampling`). The default border is mid-grey: what lies beyond the picture is
            unknown, and black or a smear would be a cue. `value` is a number or a colour.

    Calling it takes images (B,C,H,W) in [0,1], or a `Scene`, and `u` (N,dims); the result is (N,C,h,w). N is a
    multiple of B: the first N / B rows of `u` are views of the first image, and so on, and views of one image share
    what can be shared. A stage with dims 0 and no stages at all are fine: an empty pipeline returns the images
    themselves. Keep `u` on the host (see `transforms.devices`): one that is not is copied back first.

    Examples:
        >>> from transforms import Affine, Brightness, Compose, Perspective, Sobol
        >>> camera = Compose([Affine(degrees=20), Perspective(0.1), Brightness(0.1)])
        >>> u = Sobol()(8, camera.dims, seed=0)  # eight views, four of each picture
        >>> camera(torch.full((2, 3, 24, 32), 0.5), u).shape, camera.resamples()
        (torch.Size([8, 3, 24, 32]), 1)
        >>> camera.describe(torch.full((camera.dims,), 0.75))[0]["affine angle (deg)"]
        10.0
    """

    stages: Sequence[Stage] = ()
    kernel: Kernel = "bilinear"
    border: Border = "constant"
    value: Value = 0.5
    antialias: bool = True
    deterministic: bool = False
    dims: int = field(init=False, repr=False)
    names: tuple[str, ...] = field(init=False, repr=False)
    _kinds: tuple[_Kind, ...] = field(init=False, repr=False, compare=False)
    _resampling: Resampling = field(init=False, repr=False, compare=False)
    # Whether a value that is read may lie beyond those of its neighbours.
    _overshoots: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        resampling = Resampling(self.kernel, self.border, self.value, self.antialias, self.deterministic)
        object.__setattr__(self, "_resampling", resampling)
        object.__setattr__(self, "_overshoots", self.kernel not in ("nearest", "bilinear"))
        if not isinstance(self.stages, Sequence):
            raise ValueError(f"`stages` must be a list, such as [Affine(degrees=20)]; got {self.stages!r}")
        for place, stage in enumerate(self.stages):
            made("stages", stage)
            if not isinstance(stage, Stage):
                raise ValueError(f"`stages` must hold stages such as Affine(...); got {stage!r}")
            if _lays(stage) and (place or not isinstance(stage, Laying)):
                raise ValueError(
                    "a stage that acts on the layers of a scene must come first, and in no other stage: from there "
                    "on the camera sees one picture"
                )
        object.__setattr__(self, "stages", tuple(self.stages))
        object.__setattr__(self, "dims", sum(stage.dims for stage in self.stages))
        pairs = zip(self.labels, self.stages, strict=True)
        object.__setattr__(self, "names", tuple(f"{label} {name}" for label, stage in pairs for name in stage.names))
        protocols = (Geometry, Linear, Framed, Laying, Discrete)
        kinds = tuple(_Kind(s.dims, *(isinstance(s, protocol) for protocol in protocols)) for s in self.stages)
        object.__setattr__(self, "_kinds", kinds)

    @door()
    def __call__(self, images: Tensor | Scene, u: Tensor) -> Tensor:
        scene = images if isinstance(images, Scene) else scene_of(images)
        self._check(scene, u)
        pending: list[Move] = []
        tone: Tone | None = None
        device = scene.layers[0].pixels.device
        parts = nears = self._split(u.to(HOST))
        if device != HOST:
            nears = self._split(uploaded(u, device))
        for kind, stage, part, near in zip(self._kinds, self.stages, parts, nears, strict=True):
            if kind.laying:
                scene = cast(Laying, stage).lay(scene, part)
                continue
            if kind.linear and not part.requires_grad:
                line = cast(Linear, stage).line(near)
                tone = first_tone(*line) if tone is None else tone.then(*line)
                continue
            if tone is not None or not kind.geometric:
                scene, pending, tone = scene_of(self._render(scene, pending, tone, len(u))), [], None
            if kind.geometric:
                geometry = cast(Framed, stage).framed(scene.size) if kind.framed else cast(Geometry, stage)
                pending.append((geometry, part))
            else:
                scene = scene_of(unchecked(stage)(scene.layers[0].pixels, part if kind.discrete else near))
        return self._render(scene, pending, tone, len(u))

    def values(self, u: Tensor) -> Tensor:
        """(N,dims) in [0,1) -> (N,dims) physical values, in the order and units of `names`."""
        parts = [
            stage.values(part) if isinstance(stage, Physical) else part
            for stage, part in zip(self.stages, self._split(u), strict=True)
        ]
        return torch.cat(parts, dim=-1) if parts else u

    def describe(self, u: Tensor) -> list[dict[str, float]]:
        """Physical values by name, for each row of `u` (N,dims) or (dims,): {"affine angle (deg)": -12.3, ...}."""
        rows = self.values(torch.atleast_2d(u)).tolist()
        return [dict(zip(self.names, row, strict=True)) for row in rows]

    @property
    def discrete(self) -> tuple[int, ...]:
        """The coordinates that choose rather than measure (see `transforms.compose.Discrete`)."""
        starts = itertools.accumulate((stage.dims for stage in self.stages), initial=0)
        parts = [(at, s) for at, s in zip(starts, self.stages, strict=False) if isinstance(s, Discrete)]
        return tuple(at + i for at, stage in parts for i in stage.discrete)

    def resamples(self) -> int:
        """How many times the geometry touches pixels: 1 for any number of neighbouring geometric stages."""
        return sum(geometric for geometric, _ in itertools.groupby(kind.geometric for kind in self._kinds))

    @property
    def labels(self) -> list[str]:
        """What the stages are called in `names`: by one word, their `label`, or without one by the class's name in
        lower case; numbered where several share it."""
        labels = [getattr(stage, "label", type(stage).__name__.lower()) for stage in self.stages]
        count = [labels[: i + 1].count(label) for i, label in enumerate(labels)]
        return [label if labels.count(label) == 1 else f"{label}{n}" for label, n in zip(labels, count, strict=True)]

    def _split(self, u: Tensor) -> tuple[Tensor, ...]:
        return u.split([kind.dims for kind in self._kinds], dim=-1) if self.stages else ()

    def _check(self, scene: Scene, u: Tensor) -> None:
        n = count_pictures(scene)
        if u.dim() != 2 or u.shape[1] != self.dims or len(u) % n or not len(u):
            raise ValueError(
                f"`u` must hold rows of {self.dims} coordinates, one (or the same number) for each of {n} images; "
                f"got shape {tuple(u.shape)} (u = Sobol()({n}, pipeline.dims, seed=0, step=0))"
            )

    def _render(self, scene: Scene, chain: Sequence[Move], tone: Tone | None, views: int) -> Tensor:
        """Sample each layer once, straight into the views, and composite bottom-up; then the tone."""
        base, *rest = scene.layers
        times = views // len(base.pixels)
        moves = base.pull.requires_grad or not torch.equal(base.pull, torch.eye(3).to(base.pull).expand_as(base.pull))
        if chain or moves or size_of(base.pixels) != scene.size:
            plain = Layer(base.pixels, None, base.pull)
            pull = self._chain(plain, scene.size, chain, views)
            view = self._sample(base.pixels, pull, scene.size, self._resampling, None if rest else tone)
        elif rest:  # nothing moves the picture, only the layers above it, which are laid over a copy
            view = own_copies(base.pixels, times)
        else:
            view = copies(base.pixels, times)
            return view if tone is None else apply_tone(view, tone)
        for layer in rest:
            view = self._lay(layer, view, chain)
        if rest and self._overshoots:  # ink and coverage are read apart: at an edge they may add up to more than 1
            view = saturate(view)
        return apply_tone(view, tone) if rest and tone is not None else view

    def _lay(self, layer: Layer, views: Tensor, chain: Sequence[Move]) -> Tensor:
        """Views (N,C,h,w), changed in place, with a layer over them: it is sampled where it may be seen."""
        # Premultiplied: colour and coverage go through the same filter, so edges do not darken and a black pixel is
        # not a hole (Porter & Duff 1984).
        ink = premultiply(layer)
        size, source, separate = size_of(views), size_of(ink), len(ink) == len(views)
        pull = self._chain(layer, size, chain, len(views))
        work = pull.first.dtype
        solid = not pull.moves and (layer.alpha is None or not layer.alpha.requires_grad)
        clear = replace(self._resampling, border="constant", value=0.0)
        level = levels(pull, size, source, "constant", work) if self.antialias else None
        at, overs = boxes(pull, len(views), size, source, level, separate or len(ink) == 1), []
        for box in at:
            pixels = ink.index_select(0, uploaded(box.rows, ink.device)) if separate else ink
            own_pull = pull.take(box.rows)
            overs.append(self._sample(pixels, own_pull, size, clear, outline=layer.outline, at=box, solid=solid))
        return overlay(views, overs, at, solid)

    def _chain(self, layer: Layer, size: tuple[int, int], chain: Sequence[Move], views: int) -> Chain:
        """From views of `size` through `chain`, the layer's place and its bends to its pixels."""
        work = torch.promote_types(layer.pixels.dtype, torch.float32)  # in half precision points would be pixels off
        pull = copies(layer.pull, views // len(layer.pull)).to(HOST, wide_dtype(layer.pixels))
        bends = [(stage, copies(u, views // len(u))) for stage, u in layer.bends]
        height, width = layer.pixels.shape[2:]
        to_source, out = half_pixels((height, width), pull), half_pixels(size, pull)
        return fuse(invert(out)[None], [*bends, pull, *chain], to_source[None], work)

    def _sample(
        self,
        pixels: Tensor,
        pull: Pull,
        size: tuple[int, int],
        resampling: Resampling,
        tone: Tone | None = None,
        outline: Outline | None = None,
        at: Boxes | None = None,
        solid: bool = False,
    ) -> Tensor:
        """The views (N,C,*size) of one opaque layer, or boxes of them."""
        first = None if self._overshoots else tone  # it is clamped before the tone
        view = warp(pixels, pull, size, resampling, tone=first, outline=outline, at=at, solid=solid)
        view = saturate(view) if self._overshoots else view
        return apply_tone(view, tone) if self._overshoots and tone is not None else view


def _lays(stage: Stage) -> bool:
    """Whether a stage acts on the layers of a scene, or one within it does."""
    parts = (getattr(stage, name, ()) for name in ("stage", "stages"))
    inner = itertools.chain.from_iterable(value if isinstance(value, Sequence) else (value,) for value in parts)
    return isinstance(stage, Laying) or any(map(_lays, inner))


def seen(scene: Scene) -> Tensor:
    """The pictures of a scene without any transform: (N,C,H,W)."""
    pixels = scene.layers[0].pixels
    return unchecked(Compose())(scene, torch.zeros(len(pixels), 0, dtype=pixels.dtype))  # coordinates are on the host


def view(transforms: Compose, scene: Scene, u: Tensor) -> Tensor:
    """Each picture of a scene from each of the views u (V,dims), picture by picture: (N*V,C,h,w)."""
    return unchecked(transforms)(scene, u.repeat(len(scene.layers[0].pixels), 1))
