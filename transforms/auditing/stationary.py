"""Zero gradient at delta = 0: a broken warp, or a loss at its extremum? One sign step of 1/255 separates the two."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

#: Below this share of the gradient at 1/255, the gradient at 0 is rounding noise.
NOISE = 1e-4
#: Loss -> its definition, from features and anchor (N,D).
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "1 - cosine": lambda features, anchor: 1 - F.cosine_similarity(features, anchor, dim=1),
    "squared distance": lambda features, anchor: (features - anchor).square().sum(1),
}


def norms(
    features_of: Callable[[Tensor, int], Tensor], image: Tensor, draws: int, seed: int
) -> dict[str, tuple[float, float]]:
    """Loss -> mean gradient norm at delta = 0 and at a random sign of 1/255. `features_of(image, draw)` gives the
    features (1,D) of the draw's view of `image` (1,3,H,W)."""
    generator = torch.Generator().manual_seed(seed)
    norms_at: dict[str, list[list[float]]] = {name: [[], []] for name in LOSSES}
    for draw in range(draws):
        signs = 2.0 * torch.randint(2, image.shape, generator=generator) - 1
        with torch.no_grad():
            anchor = features_of(image, draw).detach().flatten(1)
        for place, start in enumerate((image, image + signs.to(image) / 255)):
            for name, loss in LOSSES.items():
                leaf = start.detach().clone().requires_grad_()
                value = loss(features_of(leaf, draw).flatten(1), anchor).sum()
                norms_at[name][place].append(_norm(value, leaf))
    return {name: (sum(a) / draws, sum(b) / draws) for name, (a, b) in norms_at.items()}


def _norm(value: Tensor, leaf: Tensor) -> float:
    if not value.requires_grad:
        return 0.0
    try:
        (gradient,) = torch.autograd.grad(value, leaf, allow_unused=True)
    except Exception:  # a foreign backward; the probe of its step names it
        return 0.0
    return 0.0 if gradient is None else float(gradient.cpu().double().norm())


def is_stationary(norms_at: dict[str, tuple[float, float]]) -> bool:
    """Whether every loss is flat at 0 (exactly, or but for rounding) and has a sound gradient at 1/255."""
    return all(0 < near < float("inf") and at <= NOISE * near for at, near in norms_at.values())
