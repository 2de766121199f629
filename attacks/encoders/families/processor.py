"""An image processor of transformers as a `Preprocess`; a step that `Preprocess` lacks is refused by name."""

import inspect
from dataclasses import replace
from typing import Any

from attacks.encoders.preprocess import Preprocess

#: The files of a folder that describe it.
FILES = ("preprocessor_config.json", "processor_config.json")
#: Pillow's numbers of filters.
_KERNELS = {0: "pil_nearest", 1: "pil_lanczos", 2: "pil_bilinear", 3: "pil_bicubic", 4: "pil_box"}
#: Processors with methods of their own that `Preprocess` covers.
_KNOWN = {"DINOv3ViTImageProcessor": {"_preprocess"}, "ConvNextImageProcessor": {"_preprocess", "resize"}}


def preprocessing(processor: Any) -> Preprocess:
    """The preprocessing of an image processor in its default form, that of torchvision.

    Raises:
        ValueError: with a step that `Preprocess` lacks.
    """
    name = type(processor).__name__
    steps = {
        step
        for kind in type(processor).__mro__[:-1]
        if not kind.__module__.startswith(("transformers.image_", "transformers.utils"))
        for step, what in vars(kind).items()
        if callable(what) and not inspect.isclass(what) and not step.startswith("__")
    }
    for step in sorted(steps - _KNOWN.get(name, set())):
        raise _unsupported(name, step)
    size = {key: value for key, value in dict(processor.size or {}).items() if value is not None}
    crop = None
    if processor.do_center_crop:
        crop = (processor.crop_size["height"], processor.crop_size["width"])
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
    if processor.do_pad:
        raise _unsupported(name, "do_pad")
    if not processor.do_resize:
        return plain
    resample = 2 if processor.resample is None else processor.resample
    if resample not in _KERNELS:
        raise _unsupported(name, f"resample={resample}")
    plain = replace(plain, kernel=_KERNELS[resample])
    if name == "ConvNextImageProcessor":
        short = size["shortest_edge"]
        if crop is not None:
            raise _unsupported(name, "do_center_crop after its own crop")
        if short >= 384:
            return replace(plain, size=(short, short))
        return replace(plain, size=int(short / processor.crop_pct), fit="cover", crop=(short, short))
    if size.keys() == {"shortest_edge"}:
        return replace(plain, size=size["shortest_edge"], fit="cover")
    if size.keys() == {"height", "width"}:
        return replace(plain, size=(size["height"], size["width"]))
    raise _unsupported(name, f"size={size}")


def _triple(values: Any) -> tuple[float, ...]:
    return (float(values),) * 3 if isinstance(values, int | float) else tuple(values)


def _unsupported(name: str, step: str) -> ValueError:
    return ValueError(
        f"the processor {name} has a step that `encoder.preprocess` cannot express: {step}; in a copy of the folder "
        f"without {' and '.join(FILES)} give `encoder.preprocess` whole"
    )
