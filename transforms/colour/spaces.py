"""Colour maps of pixels, with gradients that are finite everywhere: sRGB to linear light and back, hue rotation."""

import math

import torch
from torch import Tensor

#: Luma weights (R, G, B), as Pillow and torchvision round ITU-R BT.601's; they sum to 0.9999.
LUMA = (0.2989, 0.587, 0.114)

# IEC 61966-2-1: a power law with an offset, and a line near black. The standard's rounded thresholds (0.04045 and
# 0.0031308) leave a gap of 1e-8 between the two pieces; they meet here, so that the map is one-to-one.
_KNEE = 0.040448236277107606
_SLOPE, _OFFSET, _POWER = 12.92, 0.055, 2.4


def at_least_float32(images: Tensor) -> Tensor:
    """Half-precision images in float32, others as they are: powers and sums in half precision would be visible."""
    return images.to(torch.promote_types(images.dtype, torch.float32))


def is_grey(images: Tensor) -> bool:
    """Whether (N,C,H,W) has one channel; raises ValueError unless it has one (grey) or three (RGB)."""
    if images.shape[1] not in (1, 3):
        raise ValueError(
            f"`images` must have 1 channel (grey) or 3 (RGB) for a stage that tells colours apart; got "
            f"{images.shape[1]} (drop an alpha channel: images[:, :3])"
        )
    return images.shape[1] == 1


def to_linear(images: Tensor) -> Tensor:
    """sRGB values in [0,1] -> linear light in [0,1] (IEC 61966-2-1); any shape."""
    power = ((images.clamp(min=_KNEE) + _OFFSET) / (1 + _OFFSET)).pow(_POWER)
    return torch.where(images > _KNEE, power, images / _SLOPE)


def to_srgb(light: Tensor) -> Tensor:
    """Linear light, 0 or more -> sRGB values; the inverse of `to_linear`."""
    # Clamped before the root, whose derivative at 0 is infinite: `where` would turn it into NaN.
    root = (1 + _OFFSET) * light.clamp(min=_KNEE / _SLOPE).pow(1 / _POWER) - _OFFSET
    return torch.where(light > _KNEE / _SLOPE, root, light * _SLOPE)


def luma(images: Tensor) -> Tensor:
    """RGB (N,3,H,W) -> (N,1,H,W), by `LUMA`."""
    r, g, b = images[:, :1], images[:, 1:2], images[:, 2:]
    return LUMA[0] * r + LUMA[1] * g + LUMA[2] * b


def rotate_hue(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn the hue of RGB images (N,3,H,W) in HSV by `degrees` (N,), from red towards green; value and saturation
    stay. Equal to torchvision's adjust_hue.

    With V the largest channel and K = V - (the smallest one), the result is V - K + clamp(2K - |K h|, 0, K), where h
    is the distance on the hexagon from the new hue to the channel's own. K h is a sum of channels, so nothing is
    divided: the map is piecewise linear in the image. Where channels tie, the gradient is the mean of both sides'.
    At grey the pieces meet in a cone, which has no derivative. The gradient there is that of the rotation about the
    grey axis by the same angle. The rotation equals the map at multiples of 120 degrees, and lies between its pieces
    elsewhere.
    """
    r, g, b = images.split(1, dim=1)
    top, low = torch.maximum(torch.maximum(r, g), b), torch.minimum(torch.minimum(r, g), b)
    chroma = top - low
    red, green, blue = (channel >= top for channel in (r, g, b))
    ties = red.to(images.dtype) + green + blue
    sector = torch.where(red, -2.0, 4.0).to(images)  # magenta is -1 and 5: the ways to it must agree to be averaged
    # K h is `offset` + `steps` K. The terms in `top` are 0; they give each side of a tie its own gradient.
    offset = (red * (g - b) + green * (2 * (g - top) + b - r) + blue * (sector * (b - top) + r - g)) / ties
    turn = (torch.remainder(degrees + 180, 360) - 180) / 60
    steps = (2 * green + sector * blue) / ties + turn.to(images)[:, None, None, None]
    steps = steps - images.new_tensor([0, 2, 4])[:, None, None]
    steps = steps - 6 * (steps.detach() / 6).round()
    # 2K - |K h|. From one step on |K h| is written out: rounding would break ties, and halve or end a gradient there.
    near, far = 2 * chroma - (offset + steps * chroma).abs(), (2 - steps.abs()) * chroma - steps.sign() * offset
    part = torch.where(steps.abs() < 1, near, far)
    # Not `clamp`, whose gradient is one-sided at a tie; these two halve it.
    part = torch.minimum(torch.maximum(part, images.new_zeros(())), chroma)
    at_grey = torch.einsum("nij,njhw->nihw", _about_grey(degrees).to(images), images - low)
    return low + torch.where(chroma > 0, part, at_grey)


def _about_grey(degrees: Tensor) -> Tensor:
    """Rotations of RGB about the axis (1,1,1), red towards green, by (N,) degrees -> (N,3,3) (Rodrigues)."""
    angle = degrees[:, None, None] * (math.pi / 180)
    cross = degrees.new_tensor([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) / math.sqrt(3)
    eye = torch.eye(3, dtype=degrees.dtype, device=degrees.device)
    return angle.cos() * eye + (1 - angle.cos()) / 3 + angle.sin() * cross
