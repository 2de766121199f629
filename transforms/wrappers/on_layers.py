"""Changes to the layers of a scene before the camera sees them: print, light, bend of the paper, placement."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

from torch import Tensor

from transforms.compose import Compose, Discrete, Framed, Geometry, Homography, Stage
from transforms.devices import uploaded, wide_dtype
from transforms.doors import Doored, unchecked
from transforms.sampling.read import copies
from transforms.scene import Layer, Scene, count_pictures, size_of


@dataclass(frozen=True)
class OnLayers(Doored):
    """Stages for every layer above the picture; the picture itself stays as it is. It must be the first stage of a
    pipeline.

    Args:
        stages: in the layer's own frame, pixel stages first (a printer's colours, light on the sheet), which change
            its values and not its size; then geometric ones (the paper's curvature), which fuse with all that follows
            into the layer's one resample.
        place: a homography in the frame of the scene, such as `Placement`, that moves the layer from where it lies.

    A pixel stage that draws makes a copy of the layer for each view; one without coordinates (dims 0) does not.

    Raises:
        ValueError: geometry before pixel stages, or a `place` that is not a homography.

    Examples:
        >>> from transforms import Compose
        >>> from transforms.colour import Gain
        >>> from transforms.scene import Layer, Scene, scene_of
        >>> from transforms.wrappers import OnLayers
        >>> base, half = scene_of(torch.full((1, 1, 8, 8), 0.5)), torch.diag(torch.tensor([2.0, 2.0, 1.0]))
        >>> white = Layer(torch.ones(1, 1, 4, 4), alpha=None, pull=half[None])  # half as large as the picture
        >>> view = Compose([OnLayers([Gain((0, 0))])])(Scene((*base.layers, white), base.size), torch.zeros(1, 1))
        >>> view[0, 0, 4].round(decimals=4).tolist()
        [0.5, 0.5, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5]
    """

    stages: Sequence[Stage] = ()
    place: Homography | None = None
    names: tuple[str, ...] = field(init=False, repr=False)
    label: ClassVar[str] = "layer"

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        kinds = [isinstance(stage, Geometry) for stage in self.stages]
        if kinds != sorted(kinds):
            raise ValueError(
                "`stages` of a layer must be in physical order: print and light, then bends (geometric stages)"
            )
        if self.place is not None and not isinstance(self.place, Homography):
            raise ValueError(f"`place` of a layer must be a homography, such as Placement(...); got {self.place!r}")
        object.__setattr__(self, "names", self._pipeline().names)

    @property
    def discrete(self) -> tuple[int, ...]:
        return self._pipeline().discrete

    def values(self, u: Tensor) -> Tensor:
        """(N,dims) in [0,1) -> physical values, those of `stages` and then those of `place`."""
        return self._pipeline().values(u)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        """Plain pictures have no layers above them."""
        return copies(images, len(u) // len(images))

    def lay(self, scene: Scene, u: Tensor) -> Scene:
        base, *rest = scene.layers
        count_pictures(scene)
        return Scene((base, *(self._lay_layer(layer, scene.size, u) for layer in rest)), scene.size)

    def _lay_layer(self, layer: Layer, size: tuple[int, int], u: Tensor) -> Layer:
        sizes = [*(stage.dims for stage in self.stages), self.place.dims if self.place else 0]
        *parts, place_u = u.split(sizes, dim=1)
        pixels, bends = layer.pixels, list(layer.bends)
        for stage, part in zip(self.stages, parts, strict=True):
            if isinstance(stage, Geometry):
                bends.append((stage.framed(size_of(pixels)) if isinstance(stage, Framed) else stage, part))
                continue
            shape = pixels.shape
            rows = len(u) if stage.dims else len(pixels)
            near = part if isinstance(stage, Discrete) else uploaded(part, pixels.device)
            pixels = unchecked(stage)(copies(pixels, rows // len(pixels)), near[:rows])
            if pixels.shape[1:] != shape[1:]:
                raise ValueError(
                    f"a stage of a layer must keep the size; {type(stage).__name__} makes "
                    f"{tuple(pixels.shape[2:])} of {tuple(shape[2:])} (it belongs to the camera)"
                )
        alpha = layer.alpha
        if alpha is not None and 1 < len(alpha) < len(pixels):  # one for each view, as the values are now
            alpha = copies(alpha, len(pixels) // len(alpha))
        return Layer(pixels, alpha, self._pull(layer, size, place_u), tuple(bends), layer.outline)

    def _pull(self, layer: Layer, size: tuple[int, int], u: Tensor) -> Tensor:
        if self.place is None:
            return layer.pull
        wide = wide_dtype(layer.pull)
        place = cast(Homography, self.place.framed(size) if isinstance(self.place, Framed) else self.place)
        return copies(layer.pull, len(u) // len(layer.pull)).to(wide) @ place.matrix(u.to(wide))

    def _pipeline(self) -> Compose:
        """All stages as one pipeline, for names and values only."""
        return Compose((*self.stages, *(() if self.place is None else (self.place,))))
