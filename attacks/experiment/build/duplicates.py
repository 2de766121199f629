"""Near duplicates among the pictures to attack, which count as one."""

from collections.abc import Sequence

import torch
from torch import Tensor

from attacks.encoders.phash import Phash, bits

#: Two pictures are near duplicates where at most this many of the 64 bits of their perceptual hashes differ. Of the
#: bundled tiles no two differ in fewer than 12; a tile and its copy as JPEG 75, or of half the size, in 4 at most in
#: 95 % of cases.
DIFFERENT = 8


@torch.no_grad()
def near_duplicates(
    names: Sequence[str], images: Tensor, clusters: Sequence[str]
) -> tuple[tuple[str, ...], list[str]]:
    """The cluster of each picture (N,3,H,W) after the clusters of near duplicates have been joined, under the name
    of the one that comes first, and a note on each pair that joined two. Near duplicates: the same photograph
    re-encoded, resized or slightly retouched."""
    hashes = torch.cat([bits(Phash()(image[None])) for image in images]).float()
    result, notes = list(clusters), []
    for i, own in enumerate(hashes):
        for j in ((own - hashes[:i]).abs().sum(1) <= DIFFERENT).nonzero()[:, 0].tolist():
            if result[i] != result[j]:
                notes.append(f"{names[i]} and {names[j]} are near duplicates: they count as one picture")
                first, other = sorted((result[i], result[j]), key=result.index)
                result = [first if cluster == other else cluster for cluster in result]
    return tuple(result), notes
