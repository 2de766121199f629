"""What a tower of transformers takes in place of a picture: patches, their grid, masks. Their numbers follow from the
picture's size alone; their values are the picture's."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.encoders.tiles import Tiles

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
    if kind in ("LlavaNextImageProcessor", "LlavaOnevisionImageProcessor"):
        return _anyres if kind == "LlavaNextImageProcessor" else _with_count
    return _with_size if kind == "PixtralImageProcessor" else plain_pixels


def plain_pixels(pictures: Tensor) -> Mapping[str, Any]:
    """The pictures themselves."""
    return {"pixel_values": pictures}


def _with_size(pictures: Tensor) -> Mapping[str, Any]:
    """Pixtral's: the pictures and their sizes."""
    return {"pixel_values": pictures, "image_sizes": [tuple(pictures.shape[2:])] * len(pictures)}


def _split(tiles: Tiles) -> Mapping[str, Any]:
    """Idefics3's: the tiles, and their masks, which leave nothing out."""
    mask = torch.ones(*tiles.pixels.shape[:2], *tiles.pixels.shape[3:], dtype=torch.int64, device=tiles.pixels.device)
    return {"pixel_values": tiles.pixels, "pixel_attention_mask": mask}


def _anyres(tiles: Tiles) -> Mapping[str, Any]:
    """LLaVA-NeXT's: the tiles, and the sizes of the pictures, whose borders it leaves out."""
    sizes = torch.tensor([tiles.size] * len(tiles.pixels), device=tiles.pixels.device)
    return {"pixel_values": tiles.pixels, "image_sizes": sizes}


def _with_count(tiles: Tiles) -> Mapping[str, Any]:
    """LLaVA-OneVision's: also one picture in each text."""
    return {**_anyres(tiles), "batch_num_images": [1] * len(tiles.pixels)}


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
