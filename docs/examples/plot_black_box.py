"""
Can an encoder be attacked that can only be asked?
==================================================

A service answers with vectors and shows no gradient. `BlackBox` wraps a function of 8-bit pictures and remembers
its answers; the optimiser `NES` estimates a gradient from losses alone. Two pictures, 60 steps of 20 queries, one
view: a small run, with the bundled encoder in the part of the service.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from attacks import EOT, NES, Away, Linf, load_encoder, solve, tiles
from attacks.encoders.black_box.asked import BlackBox
from transforms import Compose

network = load_encoder("pocket")


@torch.no_grad()
def service(pictures: np.ndarray) -> np.ndarray:
    """8-bit pictures (N,H,W,3) -> vectors (N,D)."""
    return network(torch.from_numpy(pictures).permute(0, 3, 1, 2) / 255).numpy()


encoder, ball, originals = BlackBox(service, "my service"), Linf(16 / 255), tiles(64).spread(2).images
anchor = encoder(originals)
parts = {"encoder": encoder, "objective": Away(), "perturbation": ball, "eot": EOT(Compose(), views=20)}
noise = originals + ball.quantise(ball.noise(originals, torch.Generator().manual_seed(0)), originals)
best = solve(originals, anchor, optimiser=NES(), steps=60, **parts)
attacked_images = originals + ball.quantise(best.delta, originals)

figure, axes = plt.subplots(2, 3, figsize=(6, 4.4), layout="constrained")
for column, (name, images) in enumerate({"untouched": originals, "noise": noise, "NES": attacked_images}.items()):
    cosine = torch.cosine_similarity(encoder(images), anchor)
    for axis, picture, value in zip(axes[:, column], images, cosine, strict=True):
        axis.imshow(picture.permute(1, 2, 0).numpy())
        axis.set_title(f"{name}: cosine {value:.2f}", fontsize=9)
        axis.set_axis_off()
plt.show()

# %%
# Sixty steps of 20 queries lower the cosine of both pictures, where random noise of the same budget leaves it at
# 1.00. Nothing follows for camera views: this attack has seen the picture itself only.
