"""
Which of two encoders is more robust?
=====================================

Several encoders are attacked on the same pictures and views, each in a run of its own. Here the bundled encoder is
compared with itself behind a resize to 24 pixels. With six pictures, 8 steps and 16 views it is a small run.
"""

import tempfile

import matplotlib.pyplot as plt
import torch

from attacks import load_encoder, robustness

coarse = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(24), load_encoder("pocket")).eval()
small = {"data.count": 6, "attack.steps": 8, "evaluate.views": 16, "evaluate.refine": 0, "evaluate.one_view": False}
small |= {"transforms.stages.downscale.size": [48, 96]}  # pixels: the presets' shares differ with the encoder's input
pair = robustness({"pocket": "pocket", "coarse": coarse}, preset="smoke", out=f"{tempfile.mkdtemp()}/runs", **small)

# %%
# Both runs, the more robust encoder first:

print(pair.table())

# %%
# Success by arm. Intervals are over the photographs:

plt.figure(figsize=(6, 2.6), layout="constrained")
for shift, (name, run) in zip((-0.1, 0.1), pair.runs.items(), strict=True):
    values = [row["success"] for row in run.arms.values()]
    means, places = [v["mean"] for v in values], [i + shift for i in range(len(values))]
    errors = [[v["mean"] - v["low"] for v in values], [v["high"] - v["mean"] for v in values]]
    plt.errorbar(places, means, errors, fmt="o", capsize=3, label=name)
plt.xticks(range(len(values)), list(run.arms))
plt.ylabel("attacker's success")
plt.ylim(-0.03, 1.03)
plt.legend()
plt.show()

# %%
# The rows have the same letter (column *group*) and nearly the same success: on six pictures the two cannot be told
# apart, and less detail did not help. ``viewproof plan`` says how many pictures a comparison needs.
