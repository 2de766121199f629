"""A defence that perturbs the picture itself before it is encoded."""

from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.defended import Defence
from attacks.encoders.passes import Passes
from attacks.encoders.randomness import DefenceSeed, defence_seeds, split_draws
from transforms import Compose
from transforms.draws import stream
from transforms.sampling.straight_through import saturate


class Counterattack(Defence):
    """An encoder of pictures that are first moved away from their own features (TTC, Xing et al. 2025): from a random
    point within `eps`, so many steps along the sign of the gradient of the squared distance. Where the random point
    alone moves the features by less than `threshold` of their length, the mean of the moves counts, later ones more;
    else the random point.

    The backward pass takes the move as a constant (BPDA, Athalye et al. 2018): the gradient is that of the encoder at
    the moved picture. The noise follows from one coordinate of the view, as in a `Panel`. A call costs 2 + `steps`
    forward passes and `steps` backward ones, and one more backward where the picture requires a gradient.

    Args:
        encoder: in evaluation mode, with a gradient: pictures -> (N,D).
        eps: the largest change of a pixel.
        step: the length of a step.
        steps: at least 1.
        threshold: of the random change of the features, as a share of their length; `inf` moves every picture.

    Examples:
        >>> import torch
        >>> from attacks.encoders import Counterattack
        >>> encoder = Counterattack(torch.nn.Flatten().eval(), eps=0.1, step=0.1, steps=1, threshold=torch.inf)
        >>> picture = torch.full((1, 1, 1, 2), 0.5)
        >>> bool((encoder(picture) - 0.5).abs().max() <= 0.1)
        True
    """

    def __init__(
        self, encoder: nn.Module, eps: float = 4 / 255, step: float = 1 / 255, steps: int = 2, threshold: float = 0.2
    ) -> None:
        super().__init__(encoder, Compose([DefenceSeed()]))
        for name, value in (("eps", eps), ("step", step)):
            if not 0 < value <= 1:
                raise ValueError(f"`{name}` must be above 0 and at most 1, such as 4/255; got {value:g}")
        if type(steps) is not int or steps < 1:
            raise ValueError(f"`steps` must be a whole number, at least 1; got {steps!r}")
        self.eps, self.step, self.steps, self.threshold = eps, step, steps, threshold
        self.passes = Passes(2 + steps, 1 + steps, steps)
        numbers = f"eps={eps:.4g}, step={step:.4g}, steps={steps}, threshold={threshold:g}"
        self.parts = [f"Counterattack({numbers}; attacked by BPDA, its move a constant)"]

    def forward(self, images: Tensor, draws: Tensor | None = None, **options: Any) -> Tensor:
        seeds, inner = split_draws(draws, self._draws, len(images))
        pictures, options = images.detach(), inner | options
        numbers = [
            torch.rand(images.shape[1:], generator=torch.Generator().manual_seed(stream(0, "ttc", seed) % 2**32))
            for seed in defence_seeds(seeds, len(images))
        ]
        noise = (2 * torch.stack(numbers).to(pictures) - 1) * self.eps
        return self.encode(saturate(images + self._move(pictures, noise, **options)), **options)

    def _move(self, pictures: Tensor, noise: Tensor, **options: Any) -> Tensor:
        """The change of each picture, from a random one."""

        def limited(change: Tensor) -> Tensor:
            return (pictures + change.detach().clamp(-self.eps, self.eps)).clamp(0, 1) - pictures

        with torch.no_grad():
            start = self.encode(pictures, **options)
        moves, distances = [limited(noise)], []
        for _ in range(self.steps):
            with torch.enable_grad():
                change = moves[-1].clone().requires_grad_()
                distance = (self.encode(pictures + change, **options) - start).square().sum(-1)
                if not distance.requires_grad:
                    raise ValueError("`defence=ttc` follows the encoder's gradient, and it has none: use another one")
                (slope,) = torch.autograd.grad(distance.sum(), change)
            distances.append(distance.detach())
            moves.append(limited(change + self.step * slope.sign()))
        weights = (2 * torch.arange(len(moves), dtype=pictures.dtype, device=pictures.device)).softmax(0)
        mean = torch.einsum("s,snchw->nchw", weights, torch.stack(moves))
        stable = distances[0].sqrt() < self.threshold * start.norm(dim=-1)
        return torch.where(stable[:, None, None, None], mean, moves[0])
