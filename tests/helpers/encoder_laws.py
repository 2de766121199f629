"""Laws of encoders of every family."""

import pickle

import numpy as np
import pytest
import torch
from PIL import Image

from attacks import load_encoder
from attacks.data.gallery import photographs
from tests.helpers.slopes import assert_slope

#: Difference of Pillow's 8-bit resize from the same kernel in floating point, in levels: (maximum, mean).
PIL = {"pil_bilinear": (1.0, 0.30), "pil_bicubic": (5.0, 0.30), "pil_lanczos": (5.0, 0.35), "pil_nearest": (0.0, 0.0)}


class Bomb:
    """Loading its pickle runs code."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was read",))


def refusal(message, model=None, kind=ValueError, *, family, **options):
    """`load_encoder` refuses it in one short line, without a chain of causes. Returns the line."""
    with pytest.raises(kind, match=message) as error:
        load_encoder(family, model if model is None else str(model), **options)
    assert "\n" not in str(error.value) and len(str(error.value)) < 600
    assert error.value.__suppress_context__ or error.value.__context__ is None
    return str(error.value)


def assert_broken_files_are_refused(path, assert_line, message):
    """An empty file, a text, a part of the file and a pickle; a folder, and a missing file. Each line names it."""
    data = path.read_bytes()
    contents = {b"": "is an empty file", b"only text\n": message, data[: 3 * len(data) // 4]: message}
    for content, text in (contents | {pickle.dumps(Bomb()): message}).items():
        path.write_bytes(content)
        assert path.name in assert_line(text, path)
    path.write_bytes(data)
    for other, text in ((path.parent, "is a folder"), (path.parent / "none", "does not exist")):
        assert other.name in assert_line(text, other, FileNotFoundError)


def assert_same_weights(network, state):
    """Every tensor of a network equals that of a state, which may have more."""
    assert all(torch.equal(state[name], tensor) for name, tensor in network.state_dict().items())


def assert_random_weights_repeat(family, model):
    """Random weights are reproducible and frozen, and torch's generator is unchanged."""
    state = torch.random.get_rng_state()
    first, second = (load_encoder(family, str(model), weights="random") for _ in range(2))
    assert first.fingerprint() == second.fingerprint() and first.origin.file is None
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not first.training and not any(p.requires_grad for p in first.parameters())
    return first


def three_pictures():
    """Photographs of three aspects, (1,3,H,W) in [0,1] as float64: landscape, portrait, square."""
    photos = photographs()
    pictures = photos["coffee"], photos["chelsea"].transpose(1, 2), photos["astronaut"]
    return {name: p[None].double() for name, p in zip(("landscape", "portrait", "square"), pictures, strict=True)}


def as_pil(picture):
    """(1,3,H,W) -> an 8-bit Pillow picture."""
    return Image.fromarray((picture[0] * 255).round().byte().permute(1, 2, 0).numpy())


def levels(*shape):
    """Noise (N,3,H,W) of whole levels, half of it black and white: where a resize clips it between its two passes."""
    noise = torch.rand(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.where(noise < 0.5, (noise * 510).round() / 255, (noise > 0.75).double())


def in_range(values, preprocess):
    """Normalised values, clamped to [0,1] before the normalisation. Libraries do not clamp resized floats; their
    8-bit path does."""
    mean, std = (torch.tensor(v, dtype=values.dtype)[:, None, None] for v in (preprocess.mean, preprocess.std))
    return ((values * std + mean).clamp(0, 1) - mean) / std


def difference(values, expected, preprocess):
    """|values - expected| of normalised pictures, on the scale of [0,1]."""
    std = torch.tensor(preprocess.std, dtype=torch.float64)[:, None, None]
    return ((values.double() - expected.double()) * std).abs()


def three_answers(transform):
    """The name of each of three pictures, the picture, and what a library's own transform gives, as a batch."""
    for name, picture in three_pictures().items():
        expected = transform(picture)
        yield name, picture, expected if expected.dim() == 4 else expected[None]


def assert_as_tensor(preprocess, transform, limit=1e-5):
    """Our specification against a library's own transform of float tensors, on the scale of [0,1]."""
    for name, picture, expected in three_answers(transform):
        values = preprocess(picture)
        assert values.shape == expected.shape, (name, values.shape, expected.shape)
        assert float(difference(values, in_range(expected.double(), preprocess), preprocess).max()) <= limit, name


def assert_as_pil(preprocess, transform, limit=1e-6):
    """Our specification against a library's own transform of an 8-bit Pillow picture: equal with `eight_bit`; without
    it Pillow's rounding is all that lies between, and what it cuts of a bicubic overshoot between its two passes."""
    largest, average = PIL["pil_bilinear"]
    rounded = preprocess.replace({"eight_bit": True})
    for name, picture, expected in three_answers(lambda picture: transform(as_pil(picture))):
        assert float(difference(rounded(picture), expected, preprocess).max()) <= limit, name
        gap = 255 * difference(preprocess(picture), expected, preprocess)
        assert float(gap.mean()) <= average + 0.01, name
        assert preprocess.kernel in ("pil_bicubic", "pil_lanczos") or float(gap.max()) <= largest + 0.01, name


def assert_every_pixel_counts(preprocess, height=480, width=640):
    """The gradient reaches every pixel within the crop: coverage 1.0. Returns the crop's share of the picture."""
    generator = torch.Generator().manual_seed(0)
    picture = (0.1 + 0.8 * torch.rand(1, 3, height, width, generator=generator, dtype=torch.float64)).requires_grad_()
    output = preprocess(picture)
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((output * weights).sum(), picture)
    reach = (gradient[0] != 0).all(0)
    coverage = np.ones((height, width), bool)
    resized = preprocess.resized(height, width)
    sides = zip((height, width), resized, preprocess.crop or resized, strict=True)
    for axis, (side, long, cropped) in enumerate(sides):
        spare = max(0, long - cropped)
        start = round(spare / 2) if preprocess.centre == "nearest" else spare // 2
        centres = (np.arange(side) + 0.5) * long / side
        inside = (centres > start) & (centres < start + min(cropped, long))
        coverage &= inside[:, None] if axis == 0 else inside[None]
    assert bool(reach[torch.from_numpy(coverage)].all()), f"coverage {reach.numpy()[coverage].mean():.4f}"
    return float(coverage.mean())


def assert_gradient_is_exact(encoder, height=20, width=26):
    """`assert_slope` of a tiny encoder with its preprocessing; the encoder becomes float64, also where its library
    computes in float32 whatever the dtype."""
    picture = 0.2 + 0.6 * torch.rand(1, 3, height, width, generator=torch.Generator().manual_seed(0)).double()
    to = torch.Tensor.to

    def wide(tensor, *args, **options):
        options = {name: torch.float64 if value is torch.float32 else value for name, value in options.items()}
        return to(tensor, *(torch.float64 if value is torch.float32 else value for value in args), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "to", wide)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        assert_slope(encoder.double(), picture)
