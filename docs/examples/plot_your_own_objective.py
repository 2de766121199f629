"""
Can I attack what my system does with the embedding?
====================================================

An objective is any class with a loss for each view. Here a system has a score of its own: a linear direction that
parts tiles of the cat from all others. The attack raises that score on four tiles of other photographs, in all
camera views. It is a small run, with a score made of few pictures.
"""

from dataclasses import dataclass

import matplotlib.pyplot as plt
import torch

from attacks import EOT, Linf, Wiener, bank, load_encoder, solve, tiles
from attacks.eot.protocols import Objective
from transforms import Affine, Compose, Downscale


@dataclass(frozen=True, eq=False)
class CatScore(Objective):
    """Minus the score: lower is better for the attacker. The anchor is not used."""

    direction: torch.Tensor

    def __call__(self, features: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return -torch.nn.functional.normalize(features) @ self.direction


encoder, ball, pictures = load_encoder("pocket"), Linf(12 / 255), tiles(128)
camera = Compose([Affine(degrees=10, scale=(0.85, 1.15)), Downscale((64, 96))])
with torch.no_grad():
    features = torch.nn.functional.normalize(encoder(pictures.images))
cat = torch.tensor([name.startswith("chelsea") for name in pictures.names])
direction = torch.nn.functional.normalize(features[cat].mean(0) - features[~cat].mean(0), dim=0)
originals = pictures.only((~cat).nonzero()[:, 0].tolist()).spread(4).images

parts = {"encoder": encoder, "objective": CatScore(direction), "perturbation": ball, "optimiser": Wiener()}
best = solve(originals, encoder(originals), **parts, eot=EOT(camera, views=2), steps=30)
attacked_images = originals + ball.quantise(best.delta, originals)

test_bank = bank(camera, 32, seed=0, purpose="evaluate")
groups = {"other pictures": originals, "attacked": attacked_images, "tiles of the cat": pictures.images[cat][:4]}
plt.figure(figsize=(6, 2.8), layout="constrained")
for name, images in groups.items():
    views = torch.nn.functional.normalize(test_bank.features(images, encoder, chunk=64), dim=-1)
    plt.hist((views @ direction).flatten().numpy(), bins=30, range=(-1, 1), alpha=0.6, label=name)
plt.xlabel("score in unseen views")
plt.legend()
plt.show()

# %%
# In unseen views the attacked pictures score as high as tiles of the cat, or higher; untouched, most score lower.
# Four pictures, and a score that was made of the tiles it is judged with: only the way is shown.
