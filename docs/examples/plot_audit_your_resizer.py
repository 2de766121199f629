"""
Is my resizer open to hidden pictures?
======================================

`viewproof audit --resizers --callable my_module:prepare` names the kernel of your own preprocessing and says how
well it hides a picture from people; here are the same functions in Python. No attack on an encoder is needed: the
figures follow from one photograph and the resizer's weights.
"""

import cv2
import matplotlib.pyplot as plt
import numpy as np

from attacks.data.gallery import photographs
from attacks.report.resizer_text import preprocessing_text
from attacks.resizers.identify import identify
from attacks.resizers.openness import openness_table


def prepare(picture: np.ndarray) -> np.ndarray:
    """Your own preprocessing: an 8-bit array (H,W,3) in, an array out."""
    return cv2.resize(picture, (96, 96)) / 255.0


photo = photographs()["astronaut"]
print(preprocessing_text(identify(prepare, photo, size=(384, 512))))

# %%
# The kernels of three libraries, at four source pixels per pixel: how much of the hidden picture does a person see,
# who looks at an antialiased thumbnail?

rows = openness_table(photo, ratios=[4])
colours = {"open": "tab:red", "hard": "tab:orange", "closed": "tab:green"}
plt.figure(figsize=(6.5, 4), layout="constrained")
plt.barh([r.kernel for r in rows], [r.figures.seen for r in rows], color=[colours[r.figures.verdict] for r in rows])
plt.xlabel("share of the hidden picture that is seen (red: open, green: closed)")
plt.gca().invert_yaxis()
plt.show()

# %%
# The function is OpenCV's linear kernel, and open. At this ratio every kernel without antialiasing hides nearly all
# of the picture from the viewer (bars near zero), and every antialiased one shows most of it.
