"""How close a view is to a failure: the score whose sign is the judge's verdict."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from attacks.eot.bank import Bank
from attacks.evaluation.judge import Judge
from attacks.evaluation.proposal import Floats
from transforms import Compose, Shown

#: Whose failure: of the encoder, which takes a view of the untouched picture for something else; or of the attack,
#: because a view of the attacked picture is not taken for what the attacker wants.
Arm = Literal["clean", "eot"]
#: The largest coordinate below 1 in single precision.
LAST = 1 - 2**-24


def score_of(judge: Judge, shown: Shown, row: int, views: Compose, arm: Arm) -> Callable[[Floats], Floats]:
    """The score (n,) of views u (n,d) of one picture; 0 or less is a failure.

    It is a difference of cosines: the largest to rows of the gallery with which the view is no failure, minus the
    largest to the others. So its sign follows `Judge.success`.

    Args:
        shown: what the views are sampled from, of one picture.
        row: the picture's number among those of the judge.
    """
    gallery = F.normalize(judge.embeddings, dim=1)
    rows = torch.arange(len(gallery))
    target = judge.truth[row] if judge.goal is None else judge.goal[row]
    same = judge.known.same(rows, target).to(gallery.device)
    good = same if (arm == "clean") == (judge.goal is None) else ~same

    def score(u: Floats) -> Floats:
        points = torch.from_numpy(np.ascontiguousarray(u)).to(gallery).clamp(max=LAST)
        features = Bank(views, points).features(shown, judge.encoder, judge.chunk)[0]
        unit = F.normalize(features if judge.signature is None else judge.signature(features), dim=1)
        similar = unit @ gallery.T
        margin: Floats = (similar[:, good].amax(1) - similar[:, ~good].amax(1)).double().cpu().numpy()
        return margin

    return score
