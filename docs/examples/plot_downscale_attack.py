"""
Can people see one picture and the encoder another?
===================================================

A resizer that reads few of the pixels can be given a picture that looks like one thing at full size and resizes to
another. Here a photograph of 512 pixels is to be taken for the cat by the bundled encoder, behind OpenCV's linear
resize to 96 pixels. The same file is then resized with OpenCV's area kernel, which is antialiased.
"""

import cv2
import matplotlib.pyplot as plt
import torch

from attacks import EOT, L2, Toward, Wiener, load_encoder, solve, tiles
from transforms import Compose, Downscale

encoder, ball = load_encoder("pocket"), L2(10 ** (-28 / 20) * (3 * 512 * 512) ** 0.5)  # at least 28 dB
photo = tiles(512, ["astronaut"]).images
pictures = tiles(128)
with torch.no_grad():
    gallery = encoder(pictures.images)
target = pictures.names.index("chelsea-0-1")

views = Compose([Downscale(96, kernel="cv2_linear", eight_bit=True)])
parts = {"encoder": encoder, "objective": Toward(), "perturbation": ball, "optimiser": Wiener()}
best = solve(photo, gallery[target][None], **parts, eot=EOT(views, views=1), steps=40)
file = ((photo + ball.quantise(best.delta, photo))[0].permute(1, 2, 0) * 255).round().byte().numpy()

figure, axes = plt.subplots(1, 3, figsize=(8, 3.4), layout="constrained")
axes[0].imshow(file)
axes[0].set_title("the file, 512 pixels", fontsize=9)
for axis, kernel in zip(axes[1:], ("INTER_LINEAR", "INTER_AREA"), strict=True):
    small = cv2.resize(file, (96, 96), interpolation=getattr(cv2, kernel))  # the library's own call
    with torch.no_grad():
        feature = encoder(torch.from_numpy(small).permute(2, 0, 1)[None] / 255)
    cosine = torch.cosine_similarity(feature, gallery)
    axis.imshow(small)
    axis.set_title(f"{kernel}: nearest {pictures.names[cosine.argmax()]}\ncosine {cosine[target]:.2f}", fontsize=9)
for axis in axes:
    axis.set_axis_off()
plt.show()

# %%
# Behind the linear kernel the encoder takes the file for the cat, though at full size it still looks like the
# photograph. Behind the area kernel its embedding is far from the cat's: in this one case an antialiased resize
# takes the attack away.
