"""
How robust is my own module?
============================

Any module in eval mode that maps pictures (N,3,H,W) in [0,1] to features (N,D) can be evaluated in one call. Here
it is a network of random weights that resizes its pictures to 32 pixels itself, and the run is small: six bundled
pictures, 8 steps, 16 views. For numbers to cite, leave out ``small``.
"""

import tempfile

import matplotlib.pyplot as plt
import torch

from attacks import robustness

torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 5, stride=2), torch.nn.ReLU(), torch.nn.Flatten())
module = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(32), network).eval()
small = {"data.count": 6, "attack.steps": 8, "evaluate.views": 16, "evaluate.refine": 0, "evaluate.one_view": False}
result = robustness(module, preset="smoke", out=f"{tempfile.mkdtemp()}/run", **small)

# %%
# ``result.folder`` holds the report, ``result.table()`` the table of the arms. The attacker's success in
# held-out views, with 95 % intervals over the photographs:

success = {arm: row["success"] for arm, row in result.arms.items()}
plt.figure(figsize=(6, 2.4), layout="constrained")
for arm, interval in success.items():
    plt.plot([interval["low"], interval["high"]], [arm, arm], color="tab:grey")
    plt.plot(interval["mean"], arm, "o", color="tab:blue")
plt.xlim(-0.02, 1.02)
plt.margins(y=0.2)
plt.xlabel("attacker's success")
plt.show()

# %%
# This network loses nearly half of the views without any attack, and the intervals of all arms overlap: six
# pictures do not show that the attack makes it worse. The printed lines warn of both.
