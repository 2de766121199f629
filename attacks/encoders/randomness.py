"""The randomness of an encoder, as coordinates of the view: a pipeline for it ends in a stage that leaves the
pictures unchanged and holds the coordinates, which are given to the encoder as `draws`."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from attacks.encoders.tree import optional
from transforms import Compose


@dataclass(frozen=True)
class Seed:
    """The number that seeds all random numbers of a pass."""

    label: ClassVar[str] = "dropout"
    dims: ClassVar[int] = 1
    names: ClassVar[tuple[str, ...]] = ("(seed)",)
    discrete: ClassVar[tuple[int, ...]] = (0,)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        return images


@dataclass(frozen=True)
class DefenceSeed(Seed):
    """The number from which a defence makes all views of a picture: an attacker averages over it and chooses none."""

    label: ClassVar[str] = "defence"


def defence_seeds(draws: Mapping[str, Tensor], rows: int) -> list[float]:
    """The seed of each row; without draws 0.5, so that galleries and anchors see one fixed bank of views."""
    return draws["draws"][:, 0].detach().double().tolist() if draws else [0.5] * rows


@dataclass(frozen=True)
class StageGroup:
    """A stage of the views that leaves pictures unchanged and whose coordinates are those of `stages`."""

    stages: Compose

    @property
    def dims(self) -> int:
        return self.stages.dims

    @property
    def names(self) -> tuple[str, ...]:
        return self.stages.names

    @property
    def discrete(self) -> tuple[int, ...]:
        return self.stages.discrete

    def values(self, u: Tensor) -> Tensor:
        return self.stages.values(u)

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        return images


@dataclass(frozen=True)
class EncoderDraws(StageGroup):
    """The stage at the end of a pipeline that holds the coordinates of the encoder.

    Args:
        stages: what the coordinates mean; they run in the encoder, not here.
    """

    label: ClassVar[str] = "encoder"


def encoder_randomness(encoder: object) -> EncoderDraws | None:
    """The coordinates of an encoder's draws, its attribute `randomness`; None for a deterministic one."""
    draws = optional(encoder, "randomness")
    return draws if isinstance(draws, EncoderDraws) else None


def randomised(transforms: Compose, encoder: object) -> Compose:
    """The pipeline with the encoder's coordinates at its end, so that views include the encoder's randomness; the
    pipeline itself for a deterministic encoder.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Stochastic, randomised
        >>> from transforms import Brightness, Compose
        >>> encoder = Stochastic(torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Flatten()).eval())
        >>> randomised(Compose([Brightness(0.1)]), encoder).names
        ('brightness added (of full scale)', 'encoder dropout (seed)')
    """
    draws = encoder_randomness(encoder)
    return transforms if draws is None else replace(transforms, stages=(*transforms.stages, draws))


def encoder_draws(transforms: Compose, u: Tensor) -> dict[str, Tensor]:
    """The encoder's coordinates among those of views (N,dims), as its keyword argument; empty where the pipeline has
    none."""
    stages = getattr(transforms, "stages", ())  # a custom pipeline may have none
    last = stages[-1] if stages else None
    return {"draws": u[:, -last.dims :]} if isinstance(last, EncoderDraws) else {}


def join_draws(parts: Iterable[EncoderDraws | None]) -> EncoderDraws | None:
    """The coordinates of several, side by side."""
    stages = [stage for part in parts if part is not None for stage in part.stages.stages]
    return EncoderDraws(Compose(stages)) if stages else None


def split_draws(draws: Tensor | None, parts: Sequence[EncoderDraws | None], rows: int) -> list[dict[str, Tensor]]:
    """The inverse: to each part its columns of `draws` (rows,k), as a keyword argument; nothing without draws. Raises
    ValueError for another number of rows or columns."""
    if draws is None:
        return [{} for _ in parts]
    sizes = [0 if part is None else part.dims for part in parts]
    if draws.shape != (rows, sum(sizes)):
        raise ValueError(
            f"`draws` must hold {sum(sizes)} coordinates of the encoder for each of {rows} views; got shape "
            f"{tuple(draws.shape)} (a pipeline made for it: randomised(transforms, encoder))"
        )
    return [{"draws": part} if part.shape[1] else {} for part in draws.split(sizes, dim=1)]
