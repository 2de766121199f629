"""
Does my patch survive paper and a camera?
=========================================

A patch is optimised, printed on a sheet of A4 in true size, and photographed by the built-in simulator; the
photographs are scored with the encoder of the run. The same three commands, `viewproof print`, `simulate` and
`score`, work with a printer and a camera of your own. 24 gradients and three photographs are few: this run only
shows the way.
"""

import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

from attacks import robustness
from attacks.commands import main

folder = Path(tempfile.mkdtemp())
run, photos = folder / "run", folder / "photos"
small = {"attack.gradients": 24, "sanity": "none", "evaluate.views": 16, "evaluate.refine": 0}
printable = {"perturbation.card": True, "perturbation.width_mm": 100}
robustness(preset="patch_quickstart", out=run, **small, **printable)
assert main(["print", str(run), "--dpi", "150"]) == 0
assert main(["simulate", str(run), str(photos), "--count", "3", "--size", "640x480"]) == 0

# %%
# The photographs one by one, then beside the digital figures of the same patch:

assert main(["score", str(run), str(photos)]) == 0

# %%
# The card as it is printed, with its fiducials and its colour chart, and the simulated photographs:

results = json.loads((run / "photos" / "photos.json").read_text())["photos"]
figure, axes = plt.subplots(1, 4, figsize=(9, 2.6), layout="constrained")
axes[0].imshow(Image.open(run / "print" / "card.png"))
axes[0].set_title("the card, made for chelsea-0-0", fontsize=9)
for axis, result in zip(axes[1:], results, strict=True):
    axis.imshow(Image.open(photos / result["photo"]))
    axis.set_title(f"taken for {result['nearest']}", fontsize=9)
for axis in axes:
    axis.set_axis_off()
plt.show()

# %%
# All three simulated photographs are taken for the picture that the patch was made for. That is one scene, one
# target and a simulated printer; the table's interval for three photographs is wide.
