"""Defences: stages of `transforms` through which an encoder sees every picture, or that stand among the views."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attacks.encoders.engine.native_precision import in_native_precision
from attacks.encoders.randomness import EncoderDraws, StageGroup, encoder_randomness, join_draws, split_draws
from attacks.encoders.tree import PictureModule, Tree, adopt, check_mode, embedding
from transforms import Compose, Stage
from transforms.doors import unchecked
from transforms.draws.ranges import NoCoordinates
from transforms.sampling.straight_through import backward_through

Map = Callable[[Tensor], Tensor]


class Randomised(PictureModule):
    """An `encoder`, in evaluation mode, with its own draws beside those of the `coordinates`."""

    def __init__(self, encoder: nn.Module, coordinates: Compose) -> None:
        super().__init__()
        check_mode(encoder)
        self.encoder = in_native_precision(encoder)
        self.training = False
        self._draws = [EncoderDraws(coordinates) if coordinates.dims else None, encoder_randomness(encoder)]
        self.randomness = join_draws(self._draws)
        adopt(self, encoder)


class Defence(Randomised):
    """What every defended encoder has besides: `parts`, its defence in the words of a report."""

    parts: list[str]
    #: Whether it draws anew for each view, whatever `encoder.stochastic`.
    has_fresh_draws: ClassVar[bool] = True

    def encode(self, pictures: Tensor, **options: Any) -> Tensor:
        """The encoder's features (N,D). Raises ValueError for others."""
        label = f"the answer of the encoder of a `{type(self).__name__}`"
        return embedding(unchecked(self.encoder)(pictures, **options), label, len(pictures), tokens=False)

    def __repr__(self) -> str:
        return f"{self.encoder!r}\n  {'defence':<10} {placed_text(self.parts, None)}"


class Defended(Defence):
    """An encoder that sees pictures through stages: JPEG, blur, fewer bits, a resize. The forward pass is the real
    defence; the backward pass has each stage's gradient, or that of a surrogate where it has none (straight through a
    rounding, kornia's JPEG for Pillow's). So an attack on it is adaptive.

    Ranges stay at their middle unless it is called with `draws` (N,k) in [0,1), a row for each view (see
    `attacks.encoders.randomness`).

    Args:
        encoder: in evaluation mode.
        stages: of `transforms`, in order, or a `Compose` of them; other defences as a `Bpda`.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Defended
        >>> from transforms.camera import Quantise
        >>> encoder = Defended(torch.nn.Flatten().eval(), [Quantise(bits=1)])
        >>> encoder(torch.tensor([0.2, 0.4, 0.8]).view(1, 3, 1, 1)).tolist()
        [[0.0, 0.0, 1.0]]
    """

    has_fresh_draws = False

    def __init__(self, encoder: nn.Module, stages: Compose | Sequence[Stage]) -> None:
        stages = stages if isinstance(stages, Compose) else Compose(stages)
        super().__init__(encoder, stages)
        self.stages, self.parts = stages, list(map(repr, stages.stages))

    def forward(self, images: Tensor, draws: Tensor | None = None, **options: Any) -> Tree:
        stage_draws, inner = split_draws(draws, self._draws, len(images))
        wide = torch.promote_types(images.dtype, torch.float32)
        middle = images.new_full((len(images), self.stages.dims), 0.5, dtype=wide)
        pictures = unchecked(self.stages)(images, stage_draws.get("draws", middle))
        return unchecked(self.encoder)(pictures, **inner, **options)


@dataclass(frozen=True)
class ViewDefence(StageGroup):
    """A defence as a stage of the views: what a platform does to a file before its own resizer.

    Anchors and galleries, which have no views, do not pass through it. Its ranges are drawn for each view, and are
    not widened with those of the camera.

    Args:
        stages: of the defence.
        before: the key in `transforms.stages` of the stage behind it.
    """

    before: str
    label: ClassVar[str] = "defence"

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:
        return unchecked(self.stages)(images, u)

    def __str__(self) -> str:
        return placed_text(map(repr, self.stages.stages), self.before)


def placed_text(stages: Iterable[str], before: str | None) -> str:
    """The stages of a defence, and where among the views they stand; "none" without any."""
    return (", ".join(stages) or "none") + ("" if before is None else f" before {before} of the views")


def view_defence(views: object) -> ViewDefence | None:
    """The defence among the stages of a pipeline, if there is one."""
    stages = getattr(views, "stages", ())  # a custom pipeline may have none
    return next((stage for stage in stages if isinstance(stage, ViewDefence)), None)


def _identity(images: Tensor) -> Tensor:
    return images


@dataclass(frozen=True)
class Bpda(NoCoordinates):
    """A defence without a derivative as a stage: `forward` may use files or NumPy; the gradient is that of `backward`
    at the same pictures (backward pass differentiable approximation, Athalye et al. 2018).

    Args:
        forward: (N,C,H,W) in [0,1] -> (N,C,h,w) in [0,1], deterministic; called without a graph.
        backward: a differentiable approximation; the identity by default.

    Raises:
        ValueError: in a call, for the identity as approximation of a map that changes the size.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Bpda
        >>> picture = torch.tensor([[[[0.2, 0.8]]]], requires_grad=True)
        >>> view = Bpda(lambda images: (images > 0.5).float())(picture, torch.zeros(1, 0))
        >>> view.tolist(), torch.autograd.grad(view.sum(), picture)[0].tolist()
        ([[[[0.0, 1.0]]]], [[[[1.0, 1.0]]]])
    """

    forward: Map
    backward: Map = _identity

    def __call__(self, images: Tensor, u: Tensor) -> Tensor:  # noqa: ARG002
        return backward_through(images, self._real, self.backward)

    def _real(self, images: Tensor) -> Tensor:
        pictures = self.forward(images.detach())
        if self.backward is _identity and pictures.shape != images.shape:
            raise ValueError(
                f"`backward` must make pictures as large as `forward` does, {tuple(pictures.shape)}; the identity "
                f"makes {tuple(images.shape)}: give one that resizes"
            )
        return pictures.to(images)
