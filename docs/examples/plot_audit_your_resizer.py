"""
Is my resizer open to hidden pictures?
======================================

`viewproof audit --resizers` says how well each kernel hides a picture from people; here is the same function in
Python. No attack on an encoder is needed: the figures follow from one photograph and the resizer's weights.
"""

import matplotlib.pyplot as plt

from attacks.data.gallery import photographs
from attacks.resizers.openness import openness_table

# %%
# The kernels of three libraries, at four source pixels per pixel: how much of the hidden picture does a person see,
# who looks at an antialiased thumbnail?

photo = photographs()["astronaut"]
rows = openness_table(photo, ratios=[4])
colours = {"open": "tab:red", "hard": "tab:orange", "closed": "tab:green"}
plt.figure(figsize=(6.5, 4), layout="constrained")
plt.barh([r.kernel for r in rows], [r.figures.seen for r in rows], color=[colours[r.figures.verdict] for r in rows])
plt.xlabel("share of the hidden picture that is seen (red: open, green: closed)")
plt.gca().invert_yaxis()
plt.show()

# %%
# At this ratio every kernel without antialiasing hides nearly all of the picture from the viewer (bars near zero), and
# every antialiased one shows most of it.
