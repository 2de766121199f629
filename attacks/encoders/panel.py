"""An encoder behind a rule over several views of one picture, as test-time defences have it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.engine.native_precision import in_native_precision
from attacks.encoders.passes import Passes
from attacks.encoders.randomness import (
    DefenceSeed,
    EncoderDraws,
    defence_seeds,
    encoder_randomness,
    join_draws,
    split_draws,
)
from attacks.encoders.rules import Rule
from attacks.encoders.tree import PictureModule, adopt, embedding, optional
from attacks.runtime.plugins import given_name
from transforms import Compose, Stage
from transforms.doors import unchecked
from transforms.draws import Uniform, stream


class Panel(PictureModule):
    """An encoder that encodes a picture and several views of it, and answers what a rule makes of all these features.

    All views of a picture follow from one number, which is a coordinate of the attack's own view: called with `draws`
    (N,k) in [0,1), the defence draws anew for each row; without, every picture has the same fixed views. So a run
    replays, and an attacker averages over that number but cannot choose what the defence will draw. A call costs
    1 + `views` passes. The picture itself is encoded last, so that hooks on layers see its features.

    Args:
        encoder: in evaluation mode: pictures -> (N,D).
        rule: the features (N,1+views,D), a picture's own first -> (N,D); see `attacks.encoders.rules`.
        stages: of `transforms`, in order, or a `Compose` of them, which make the views.
        views: of a picture, besides itself, at least 1.

    Raises:
        ValueError: another argument than said here; in a call, features that are no (N,D), or an answer of the rule
            that is not shaped as a picture's features.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Panel
        >>> from transforms import Flip
        >>> mean = Panel(torch.nn.Flatten().eval(), lambda features: features.mean(1), [Flip(p=1.0)], views=1)
        >>> mean(torch.tensor([[[[0.0, 1.0]]]])).tolist()
        [[0.5, 0.5]]
    """

    def __init__(self, encoder: nn.Module, rule: Rule, stages: Compose | Sequence[Stage], views: int = 8) -> None:
        super().__init__()
        if encoder.training:
            raise ValueError("`encoder` is in training mode, so its output changes from call to call; call .eval()")
        if not callable(rule) or isinstance(rule, type):
            raise ValueError(f"`rule` must be a function of features (N,1+views,D), or an object; got {rule!r}")
        if type(views) is not int or views < 1:
            raise ValueError(f"`views` must be a whole number, at least 1, besides the picture; got {views!r}")
        self.encoder, self.rule, self.views = in_native_precision(encoder), rule, views
        self.stages = stages if isinstance(stages, Compose) else Compose(stages)
        self.training = False
        self.passes = Passes(1 + views, 1 + views)
        seed = EncoderDraws(Compose([DefenceSeed()])) if self.stages.dims else None
        self._draws = [seed, encoder_randomness(encoder)]
        self.randomness = join_draws(self._draws)
        adopt(self, encoder)

    def forward(self, images: Tensor, draws: Tensor | None = None, **options: Any) -> Tensor:
        features = self.features(images, draws, **options)
        answer = self.rule(features)
        if not isinstance(answer, Tensor) or answer.shape != features[:, 0].shape:
            got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
            raise ValueError(
                f"`rule` must make (N,D) of features (N,1+views,D): {tuple(features[:, 0].shape)}; got {got}"
            )
        return answer

    def features(self, images: Tensor, draws: Tensor | None = None, **options: Any) -> Tensor:
        """(N,1+views,D): the features of pictures, each its own first, then those of its views."""
        seeds, inner = split_draws(draws, self._draws, len(images))
        label, count = "the answer of the encoder of a `Panel`", len(images)

        def encode(pictures: Tensor) -> Tensor:
            return embedding(unchecked(self.encoder)(pictures, **inner, **options), label, count, tokens=False)

        # View by view: a pass has as many rows as the caller's, who has chosen them to fit into memory.
        rows = [encode(unchecked(self.stages)(images, u)) for u in self._points(defence_seeds(seeds, count), images)]
        return torch.stack([encode(images), *rows], 1)

    def score(self, images: Tensor, draws: Tensor | None = None) -> Tensor:
        """(N,): the score of a rule that is a detector, lower where it suspects an attack."""
        rate: Callable[[Tensor], Tensor] | None = optional(self.rule, "score")
        if rate is None:
            raise ValueError(f"`rule` must have a `score` to rate pictures; {type(self.rule).__name__} has none")
        return rate(self.features(images, draws))

    def _points(self, seeds: Sequence[float], images: Tensor) -> Tensor:
        """(views,N,dims) in [0,1): of each picture its points of the cube, from its seed."""
        points = {seed: Uniform()(self.views, self.stages.dims, seed=stream(0, "defence", seed)) for seed in {*seeds}}
        return torch.stack([points[seed] for seed in seeds], 1).to(torch.promote_types(images.dtype, torch.float32))

    @property
    def parts(self) -> list[str]:
        """The rule, the number of views and their stages, for a report."""
        rule = repr(self.rule) if hasattr(self.rule, "__dataclass_fields__") else given_name(self.rule)
        return [f"{rule} of the picture and {self.views} views", *map(repr, self.stages.stages)]

    def __repr__(self) -> str:
        return f"{self.encoder!r}\n  {'defence':<10} {', '.join(self.parts)}"
