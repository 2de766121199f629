"""
Can a picture be mistaken for one that I choose?
================================================

The objective `Toward` draws the views of a picture to the embedding of another one. Three bundled pictures, each to
be taken for the same tile of the cat, with the budget 16/255 and 60 steps of two views: a small run.
"""

import matplotlib.pyplot as plt
import torch

from attacks import EOT, Linf, Toward, Wiener, bank, evaluate, load_encoder, solve, tiles
from transforms import Affine, Compose, Downscale, Perspective

camera = Compose([Affine(degrees=20, scale=(0.75, 1.3)), Perspective(0.15), Downscale((48, 96))])
encoder, pictures, ball = load_encoder("pocket"), tiles(128), Linf(16 / 255)
with torch.no_grad():
    gallery = encoder(pictures.images)
target = pictures.names.index("chelsea-0-1")
rows = torch.tensor([pictures.names.index(name) for name in ("astronaut-0-1", "coffee-1-2", "rocket-1-2")])
originals, anchor = pictures.images[rows], gallery[target].expand(3, -1)

parts = {"encoder": encoder, "objective": Toward(), "perturbation": ball, "optimiser": Wiener()}
best = solve(originals, anchor, **parts, eot=EOT(camera, views=2), steps=60)
attacked_images = originals + ball.quantise(best.delta, originals)

views = bank(camera, 64, seed=0, purpose="evaluate")
clean, scores = (evaluate(x, anchor, gallery, encoder=encoder, bank=views) for x in (originals, attacked_images))
figure, axes = plt.subplots(1, 4, figsize=(8, 2.6), layout="constrained")
axes[0].imshow(pictures.images[target].permute(1, 2, 0).numpy())
axes[0].set_title("the target", fontsize=9)
for i, axis in enumerate(axes[1:]):
    hits, cosines = (scores.nearest[i] == target).float().mean(), (clean.cosine[i].mean(), scores.cosine[i].mean())
    axis.imshow(attacked_images[i].permute(1, 2, 0).numpy())
    axis.set_title(f"taken for it: {hits:.2f}\ncosine {cosines[0]:.2f} to {cosines[1]:.2f}", fontsize=9)
for axis in axes:
    axis.set_axis_off()
plt.show()

# %%
# All three pictures come nearer to the target, but how often they are taken for it differs, from never to nearly
# always: report several pictures and targets, and for a stronger attack take more steps.
