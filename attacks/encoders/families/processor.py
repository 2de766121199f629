"""An image processor of transformers as a `Preprocess`; a step that `Preprocess` lacks is refused by name."""

import inspect
from dataclasses import replace
from typing import Any

import torchvision

from attacks.encoders.preprocess import Preprocess

#: The files of a folder that describe it.
FILES = ("preprocessor_config.json", "processor_config.json")
#: Before 0.27 the processors themselves fall back to bicubic.
_LANCZOS = "lanczos" if int(torchvision.__version__.split(".")[1]) >= 27 else "bicubic"
#: Backend -> Pillow's number of a filter -> our kernel.
_KERNELS = {
    "torchvision": {0: "torch_nearest_exact"}
    | {i: f"torch_{name}_aa" for i, name in ((1, _LANCZOS), (2, "bilinear"), (3, "bicubic"))},
    "pil": {0: "pil_nearest"}
    | {i: f"pil_{name}" for i, name in ((1, "lanczos"), (2, "bilinear"), (3, "bicubic"), (4, "box"))},
}
#: It resizes floats, which it does not clamp afterwards; the others resize 8 bits.
_FLOAT = "DINOv3ViTImageProcessor"
_SPLIT = {
    *("preprocess", "_preprocess", "_prepare_images_structure", "resize", "split_images"),
    *("resize_for_vision_encoder", "pad", "to_dict", "get_number_of_image_patches"),
}
_ANYRES = {
    *("preprocess", "_preprocess", "_get_padding_size", "_resize_for_patching", "_pad_for_patching"),
    *("_get_image_patches", "_pad_for_batching"),
}
#: Processors whose padding makes a batch of pictures of several sizes.
_BATCHING = ("PixtralImageProcessor", *(f"{name}ImageProcessor" for name in ("Idefics3", "SmolVLM")))
_BATCHING += tuple(f"{name}ImageProcessor" for name in ("LlavaNext", "LlavaOnevision"))
#: Processors with methods of their own that `Preprocess` covers, or that an image does not pass through.
_METHODS = {
    "DINOv3ViTImageProcessor": {"_preprocess"},
    "ConvNextImageProcessor": {"_preprocess", "resize"},
    "LlavaImageProcessor": {"_preprocess", "pad_to_square"},  # pad_to_square is do_pad
    "BeitImageProcessor": {
        *("preprocess", "_preprocess", "_preprocess_image_like_inputs"),
        *("reduce_label", "post_process_semantic_segmentation"),
    },
    "Qwen2VLImageProcessor": {
        *("preprocess", "_preprocess", "_standardize_kwargs", "resize"),
        *("patchify", "get_number_of_image_patches"),
    },
    "Siglip2ImageProcessor": {"preprocess", "_preprocess", "_validate_preprocess_kwargs"},
    "Idefics3ImageProcessor": _SPLIT,
    "SmolVLMImageProcessor": _SPLIT,
    "LlavaNextImageProcessor": _ANYRES,
    "LlavaOnevisionImageProcessor": _ANYRES | {"pad_to_square"},  # for several pictures in a text
    "PixtralImageProcessor": {"preprocess", "_preprocess", "resize", "_pad_for_batching"},
}


def preprocessing(processor: Any) -> Preprocess:
    """The preprocessing of an image processor: torchvision's or Pillow's resize of a picture in 8 bits.

    Raises ValueError: with a step that `Preprocess` lacks.
    """
    name = type(processor).__name__
    steps = {
        step
        for kind in type(processor).__mro__[:-1]
        if not kind.__module__.startswith(("transformers.image_", "transformers.utils"))
        for step, member in vars(kind).items()
        if callable(member) and not inspect.isclass(member) and not step.startswith("__")
    }
    for step in sorted(steps - _METHODS.get(name, set())):
        raise _refusal(name, step)
    size = {key: value for key, value in dict(processor.size or {}).items() if value is not None}
    crop = None
    if processor.do_center_crop:
        crop = (processor.crop_size["height"], processor.crop_size["width"])
        if processor.backend == "pil" and (not processor.do_resize or min(size.values()) < max(crop)):
            raise _refusal(name, f"do_center_crop of a picture that may be smaller than {crop}")
    scale = 255.0 * (processor.rescale_factor if processor.do_rescale else 1.0)
    mean, std = (processor.image_mean, processor.image_std) if processor.do_normalize else ((0.0,) * 3, (1.0,) * 3)
    plain = Preprocess(
        None,
        "pil_bilinear",
        mean=tuple(value / scale for value in _triple(mean)),
        std=tuple(value / scale for value in _triple(std)),
        crop=crop,
        centre="down",
    )
    if processor.do_pad and name not in _BATCHING:
        raise _refusal(name, "do_pad")
    if not processor.do_resize:
        return plain
    resample = 2 if processor.resample is None else processor.resample
    kernels = _KERNELS[processor.backend]
    if resample not in kernels or (name == _FLOAT and resample not in (0, 2)):
        raise _refusal(name, f"resample={resample}")
    plain = replace(plain, kernel=kernels[resample], eight_bit=name != _FLOAT)
    if name == "Qwen2VLImageProcessor":
        limits = (size["shortest_edge"], size["longest_edge"])
        return replace(plain, fit="area", limits=limits, multiple=processor.patch_size * processor.merge_size)
    if name == "Siglip2ImageProcessor":
        return replace(plain, fit="patches", limits=(1, processor.max_num_patches), multiple=processor.patch_size)
    if _METHODS.get(name) is _SPLIT:
        if not processor.do_image_splitting:
            raise _refusal(name, "do_image_splitting=False")
        side, longest = processor.max_image_size["longest_edge"], size["longest_edge"]
        return replace(plain, size=(side, side), tiles="split", grids=((longest, longest),))
    if name in ("LlavaNextImageProcessor", "LlavaOnevisionImageProcessor"):
        return _anyres(plain, size, processor)
    if name == "PixtralImageProcessor":
        return _whole_patches(plain, size, processor.patch_size)
    if name == "ConvNextImageProcessor":
        short = size["shortest_edge"]
        if crop is not None:
            raise _refusal(name, "do_center_crop after its own crop")
        if short >= 384:
            return replace(plain, size=(short, short))
        return replace(plain, size=int(short / processor.crop_pct), fit="cover", crop=(short, short))
    if size.keys() == {"shortest_edge"}:
        return replace(plain, size=size["shortest_edge"], fit="cover")
    if size.keys() == {"height", "width"}:
        return replace(plain, size=(size["height"], size["width"]))
    raise _refusal(name, f"size={size}")


def _anyres(plain: Preprocess, size: dict[str, int], processor: Any) -> Preprocess:
    """LLaVA-NeXT's tiles, where the resize and the crop of each tile change nothing."""
    short = size.get("shortest_edge")
    box = (short, short) if short is not None else (size["height"], size["width"])
    if plain.crop not in (None, box) or box[0] != box[1]:
        raise _refusal(type(processor).__name__, f"crop_size of a tile, {plain.crop}, other than its size {box}")
    grids = tuple((height, width) for height, width in processor.image_grid_pinpoints)
    return replace(plain, size=box, crop=None, tiles="anyres", grids=grids)


def _whole_patches(plain: Preprocess, size: dict[str, int], patch: Any) -> Preprocess:
    """Pixtral's resize."""
    sides = dict(patch) if not isinstance(patch, int) else {"height": patch, "width": patch}
    if plain.crop is not None or sides["height"] != sides["width"]:
        step = "do_center_crop" if plain.crop is not None else f"patch_size={sides}"
        raise _refusal("PixtralImageProcessor", step)
    longest = size.get("longest_edge")
    box = (longest, longest) if longest is not None else (size["height"], size["width"])
    return replace(plain, size=box, fit="within", multiple=sides["height"])


def _triple(values: Any) -> tuple[float, ...]:
    return (float(values),) * 3 if isinstance(values, int | float) else tuple(values)


def _refusal(name: str, step: str) -> ValueError:
    return ValueError(
        f"the processor {name} has a step that `encoder.preprocess` cannot express: {step}; in a copy of the folder "
        f"without {' and '.join(FILES)} give `encoder.preprocess` whole"
    )
