"""An encoder behind a rule over several views of one picture, as test-time defences have it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.defended import Defence
from attacks.encoders.passes import Passes
from attacks.encoders.randomness import DefenceSeed, defence_seeds, split_draws
from attacks.encoders.rules import Rule, ViewConsistency
from attacks.encoders.tree import Encoder, Tree, optional
from attacks.runtime.plugins import given_name
from transforms import Compose, Stage
from transforms.doors import unchecked
from transforms.draws import Uniform, stream


@dataclass(frozen=True, eq=False)
class ScoredEncoder:
    """An encoder with a detector, called for its features and its score together (see `Panel`)."""

    encoder: Encoder

    def __call__(self, images: Tensor, **draws: Any) -> Tree:
        return unchecked(self.encoder)(images, with_score=True, **draws)


class ScoredModule(nn.Module):
    """The same of a module, as a module, which can be copied."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.training = encoder, False

    def forward(self, images: Tensor, **draws: Any) -> Tree:
        return ScoredEncoder(self.encoder)(images, **draws)


class Panel(Defence):
    """An encoder that encodes a picture and several views of it, and answers what a rule makes of all these features.

    All views of a picture follow from one number, which is a coordinate of the attack's own view: called with `draws`
    (N,k) in [0,1), the defence draws anew for each row; without, every picture has the same fixed views. So a run
    replays, and an attacker averages over that number but cannot choose what the defence will draw. A call costs
    1 + `views` passes. The picture itself is encoded last, so that hooks on layers see its features. Of a
    detector a call with `with_score=True` gives {"features": (N,D), "score": (N,1)}, from the same passes.

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
        >>> from transforms.geometry import Flip
        >>> mean = Panel(torch.nn.Flatten().eval(), lambda features: features.mean(1), [Flip(p=1.0)], views=1)
        >>> mean(torch.tensor([[[[0.0, 1.0]]]])).tolist()
        [[0.5, 0.5]]
    """

    def __init__(self, encoder: nn.Module, rule: Rule, stages: Compose | Sequence[Stage], views: int = 8) -> None:
        stages = stages if isinstance(stages, Compose) else Compose(stages)
        super().__init__(encoder, Compose([DefenceSeed()] if stages.dims else []))
        if not callable(rule) or isinstance(rule, type):
            raise ValueError(f"`rule` must be a function of features (N,1+views,D), or an object; got {rule!r}")
        if type(views) is not int or views < 1:
            raise ValueError(f"`views` must be a whole number, at least 1, besides the picture; got {views!r}")
        self.rule, self.stages, self.views, self.passes = rule, stages, views, Passes(1 + views, 1 + views)
        text = repr(rule) if hasattr(rule, "__dataclass_fields__") else given_name(rule)
        if optional(rule, "score") is not None:
            self.false_alarms = share = getattr(rule, "false_alarms", ViewConsistency.false_alarms)
            if not 0 < share < 1:
                raise ValueError(f"`false_alarms` must lie in (0, 1); got {share:g}: 0.05 is a usual share")
        self.parts = [f"{text} of the picture and {views} views", *map(repr, stages.stages)]

    def forward(self, images: Tensor, draws: Tensor | None = None, with_score: bool = False, **options: Any) -> Tree:
        features = self.features(images, draws, **options)
        answer, shape = self.rule(features), tuple(features[:, 0].shape)
        got = tuple(answer.shape) if isinstance(answer, Tensor) else type(answer).__name__
        if got != shape:
            raise ValueError(f"`rule` must make (N,D) of features (N,1+views,D): {shape}; got {got}")
        if not with_score:
            return answer
        if (rate := optional(self.rule, "score")) is None:
            raise ValueError(f"`rule` must have a `score` to rate pictures; {type(self.rule).__name__} has none")
        score = rate(features)
        if score.shape != shape[:1]:
            raise ValueError(f"`score` of `rule` must be {shape[:1]}, one a picture; got {tuple(score.shape)}")
        return {"features": answer, "score": score[:, None]}

    def features(self, images: Tensor, draws: Tensor | None = None, **options: Any) -> Tensor:
        """(N,1+views,D): the features of pictures, each its own first, then those of its views."""
        seeds, inner = split_draws(draws, self._draws, len(images))
        numbers, options = defence_seeds(seeds, len(images)), inner | options
        points = {n: Uniform()(self.views, self.stages.dims, seed=stream(0, "defence", n)) for n in {*numbers}}
        u = torch.stack([points[n] for n in numbers], 1).to(torch.promote_types(images.dtype, torch.float32))
        # View by view: a pass has as many rows as the caller's, who has chosen them to fit into memory.
        rows = [self.encode(unchecked(self.stages)(images, view), **options) for view in u]
        return torch.stack([self.encode(images, **options), *rows], 1)
