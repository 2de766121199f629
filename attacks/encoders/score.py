"""A score and its threshold as two logits: below and above."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.engine.native_precision import in_native_precision
from attacks.encoders.randomness import encoder_randomness
from attacks.encoders.tree import PictureModule, embedding
from transforms.doors import unchecked


class ScoreEncoder(PictureModule):
    """An encoder whose answer is a score, as two logits (N,2), 1 - d and 1 + d, where d is the score minus the
    `threshold`: the second is higher where the score is above. The ones give the pair a direction that turns with d,
    so that a cosine of two answers changes with the score everywhere.

    Args:
        encoder: in evaluation mode: pictures -> (N,K).
        column: which of the K numbers is the score; None where there is one.

    Raises ValueError for a threshold that is no number and, in a call, for a column that the answer has not.

    Examples:
        >>> import torch
        >>> from attacks.encoders import ScoreEncoder
        >>> brightness = torch.nn.Sequential(torch.nn.AvgPool2d(2), torch.nn.Flatten()).eval()
        >>> encoder = ScoreEncoder(brightness, threshold=0.5, column=0)
        >>> encoder(torch.full((1, 3, 2, 2), 0.75)).tolist()
        [[0.75, 1.25]]
    """

    def __init__(self, encoder: nn.Module, threshold: float, column: int | None = None) -> None:
        super().__init__()
        if not math.isfinite(threshold):
            raise ValueError(f"`threshold` must be a number, on the scale of the score; got {threshold}")
        self.encoder, self.threshold, self.column = in_native_precision(encoder), threshold, column
        self.randomness = encoder_randomness(encoder)
        self.training = False

    def forward(self, images: Tensor, *args: Any, **options: Any) -> Tensor:
        rows = embedding(unchecked(self.encoder)(images, *args, **options), "the score", tokens=False)
        if (self.column is None and rows.shape[1] > 1) or (self.column or 0) >= rows.shape[1]:
            raise ValueError(
                f"`column` must be 0..{rows.shape[1] - 1}: which of the {rows.shape[1]} numbers that the encoder "
                f"answers is the score; got {self.column}"
            )
        above = rows[:, self.column or 0] - self.threshold
        return torch.stack([1 - above, 1 + above], 1)

    def __repr__(self) -> str:
        column = "" if self.column is None else f"number {self.column} of the answer, "
        return f"{self.encoder!r}\n  {'score':<10} {column}threshold {self.threshold:g}"
