"""The vision tower inside a vision-language model of transformers, with its projector: the library's own class
without its language model, called as `get_image_features`."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.tiles import Tiles

#: Models with an image and a text tower, by model_type, and the padding of their texts.
TEXT_PADDING = {"clip": True, "altclip": True, "metaclip_2": True, "siglip": "max_length"}
#: Normalised pictures (N,3,H,W), or their tiles -> the arguments of the tower.
Inputs = Callable[[Any], Mapping[str, Any]]


def tower_inputs(processor: Any) -> Inputs:
    """The arguments as the image processor makes them; the pictures themselves for most of them."""
    kind = type(processor).__name__
    if kind == "Qwen2VLImageProcessor":
        patch, merge, frames = processor.patch_size, processor.merge_size, processor.temporal_patch_size
        return lambda pictures: _merge(pictures, patch, merge, frames)
    if kind == "Siglip2ImageProcessor":
        side, limit = processor.patch_size, processor.max_num_patches
        return lambda pictures: _mask(pictures, side, limit)
    if kind in ("Idefics3ImageProcessor", "SmolVLMImageProcessor"):
        return _split
    if kind == "LlavaNextImageProcessor":
        return _anyres
    if kind == "LlavaOnevisionImageProcessor":  # also one picture in each text
        return lambda tiles: {**_anyres(tiles), "batch_num_images": [1] * len(tiles.pixels)}
    if kind == "PixtralImageProcessor":
        return lambda pictures: {"pixel_values": pictures, "image_sizes": [(*pictures.shape[2:],)] * len(pictures)}
    return plain_pixels


def plain_pixels(pictures: Tensor) -> Mapping[str, Any]:
    return {"pixel_values": pictures}


def _split(tiles: Tiles) -> Mapping[str, Any]:
    """Idefics3's: the tiles, and their masks, which leave nothing out."""
    mask = torch.ones(*tiles.pixels.shape[:2], *tiles.pixels.shape[3:], dtype=torch.int64, device=tiles.pixels.device)
    return {"pixel_values": tiles.pixels, "pixel_attention_mask": mask}


def _anyres(tiles: Tiles) -> Mapping[str, Any]:
    """LLaVA-NeXT's: the tiles, and the sizes of the pictures, whose borders it leaves out."""
    sizes = torch.tensor([tiles.size] * len(tiles.pixels), device=tiles.pixels.device)
    return {"pixel_values": tiles.pixels, "image_sizes": sizes}


def _merge(pictures: Tensor, patch: int, merge: int, frames: int) -> Mapping[str, Any]:
    """Qwen2-VL's: patches as rows, the `merge` x `merge` ones that are merged later beside each other, repeated for
    each of the `frames` of a video; and the grid (1, rows, columns) of each picture."""
    count, channels, height, width = pictures.shape
    rows, columns = height // patch, width // patch
    cut = pictures.reshape(count, channels, rows // merge, merge, patch, columns // merge, merge, patch)
    cut = cut.permute(0, 2, 5, 3, 6, 1, 4, 7).unsqueeze(6).expand(-1, -1, -1, -1, -1, -1, frames, -1, -1)
    grid = torch.tensor([[1, rows, columns]] * count, device=pictures.device)
    return {"pixel_values": cut.reshape(count * rows * columns, -1), "image_grid_thw": grid}


def _mask(pictures: Tensor, patch: int, limit: int) -> Mapping[str, Any]:
    """SigLIP2's: patches as rows, filled up with zeros to `limit`; the mask of the true ones; and their grid."""
    count, channels, height, width = pictures.shape
    rows, columns = height // patch, width // patch
    cut = pictures.reshape(count, channels, rows, patch, columns, patch).permute(0, 2, 4, 3, 5, 1)
    spare = limit - rows * columns
    mask = torch.arange(limit, device=pictures.device) < rows * columns
    return {
        "pixel_values": F.pad(cut.reshape(count, rows * columns, -1), (0, 0, 0, spare)),
        "pixel_attention_mask": mask.int().expand(count, -1),
        "spatial_shapes": torch.tensor([[rows, columns]] * count, device=pictures.device),
    }


def has_tower(config: Any, kind: type) -> bool:
    """Whether the configuration is that of a model with a vision tower inside and a language model beside it."""
    parts = hasattr(config, "vision_config") and hasattr(config, "text_config")
    return parts and hasattr(kind, "get_image_features") and config.model_type not in TEXT_PADDING


def without_language(kind: Any) -> Any:
    """A model's class whose instances lack the language model."""

    class Tower(kind):  # type: ignore[misc]
        all_tied_weights_keys: dict[str, str]

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            text = type(config.text_config)
            tied = self.all_tied_weights_keys
            for name, part in [*self.named_children()]:
                if isinstance(getattr(part, "config", None), text):
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
    language model reads. Chosen from the output for some normalised `pictures`. Raises ValueError for pictures that
    do not go through, or a pool that there is not."""
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
