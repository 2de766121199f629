"""
How does a build fail when an encoder is not robust enough?
===========================================================

A policy fixes the bars before the run; its verdict is PASS, FAIL or UNDECIDED, and its exit code ends the build. In
continuous integration that is one line, ``viewproof run config=evaluate perturbation.eps=16/255
require=policy.yaml``; here is the same in Python, on six pictures and 8 steps.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from attacks import robustness

folder = Path(tempfile.mkdtemp())
(folder / "policy.yaml").write_text("""
claim: A manipulated picture is still recognised in most views.
date: 2026-11-24
threat: {perturbation: linf, perturbation.eps: 16/255}
requirements:
  - {measure: success, arm: clean, at_most: 0.5}
  - {measure: success, arm: eot, at_most: 0.05}
""")
small = {"data.count": 6, "attack.steps": 8, "evaluate.views": 16, "evaluate.refine": 0, "evaluate.one_view": False}
small["require"] = str(folder / "policy.yaml")  # in the record before the first step
result = robustness("pocket", preset="smoke", out=folder / "run", **small)

# %%
# The verdict of the policy on that run, without a note: its record shows that the bars were fixed beforehand.

verdict = result.gate(folder / "policy.yaml")
print(verdict)
print("exit code of the build:", verdict.exit_code)

# %%
# Each requirement is decided on the whole interval, which is drawn here with its bar:

plt.figure(figsize=(6, 2), layout="constrained")
for arm, bar in (("clean", 0.5), ("eot", 0.05)):
    value = result.arms[arm]["success"]
    plt.plot([value["low"], value["high"]], [arm, arm], color="tab:grey", linewidth=4)
    plt.plot(value["mean"], arm, "o", color="tab:blue")
    plt.plot(bar, arm, "|", color="tab:red", markersize=28)
plt.xlim(-0.02, 1.02)
plt.margins(y=0.4)
plt.xlabel("success; red: the largest that the policy allows")
plt.show()

# %%
# The whole interval of the attack lies above its bar, so the build fails with exit code 3. The other interval lies
# below its bar, but stays undecided: no requirement passes on a run that has not checked its attack, as this small
# one (``sanity=none``).
