"""The vision tower inside a vision-language model of transformers, with its projector: the library's own class
without its language model, called as `get_image_features`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.families.patches import Inputs


def has_tower(config: Any, kind: type) -> bool:
    """Whether the configuration is that of a model with a vision tower inside and a language model beside it."""
    return hasattr(config, "vision_config") and hasattr(config, "text_config") and hasattr(kind, "get_image_features")


def without_language(kind: Any) -> Any:
    """A model's class whose instances lack the language model."""

    class Tower(kind):  # type: ignore[misc]
        all_tied_weights_keys: dict[str, str]

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            text = type(config.text_config)
            tied = self.all_tied_weights_keys
            for name in [name for name, part in self.named_children() if isinstance(_config(part), text)]:
                delattr(self, name)
                tied = {to: source for to, source in tied.items() if not to.startswith(f"{name}.")}
            self.all_tied_weights_keys = tied

    return Tower


def tower_parts(kind: Any, config: Any) -> frozenset[str]:
    """The names of the parts of a class `without_language`: one of them is in the name of each of its tensors, in
    memory and in files of every version of the library."""
    with torch.device("meta"):
        return frozenset(name.partition(".")[0] for name in kind(config).state_dict())


class VisionTower(nn.Module):
    """Normalised pictures (N,3,H,W), or their tiles -> the library's output. Layers have the library's names.

    Args:
        network: a model with `get_image_features`, or a vision model by itself.
        inputs: its arguments for such pictures.
    """

    #: The layers' outputs hold the rows of all pictures one after the other, as many for each.
    is_packed = True

    def __init__(self, network: Any, inputs: Inputs) -> None:
        super().__init__()
        self.network, self.inputs = network, inputs

    def forward(self, pictures: Any) -> Any:
        features = getattr(self.network, "get_image_features", self.network)
        return features(**self.inputs(pictures))


@torch.no_grad()
def tower_pool(tower: nn.Module, pictures: Any, pool: str | None, label: str) -> Callable[[Any], Tensor]:
    """The function from the tower's output to features: what the library pools, or the mean of the tokens that the
    language model reads. Chosen from the output for some normalised pictures.

    Raises ValueError: a picture that does not go through, or a pool that there is not.
    """
    try:
        tokens = _features(tower(pictures))
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"`encoder.model` {label} does not take a picture by itself, as its processor gives it "
            f"({' '.join(str(error).split())[:200]})"
        ) from None
    natural, form = ("pooled", "a row") if tokens.dim() == 2 else ("mean", "tokens")
    if pool not in (None, natural):
        raise ValueError(
            f"`encoder.pool`: {label} gives {form} for a picture, so take {natural}, or layers by encoder.features; "
            f"got {pool}"
        )
    return _features if natural == "pooled" else lambda answer: _features(answer).mean(1)


def _features(answer: Any) -> Tensor:
    """The library's features of the pictures: (N,D), or (N,T,D)."""
    features = answer.pooler_output
    if features is None:
        raise ValueError("it pools nothing itself")
    return torch.stack(tuple(features)) if isinstance(features, tuple | list) else features


def _config(part: nn.Module) -> Any:
    return getattr(part, "config", None)
