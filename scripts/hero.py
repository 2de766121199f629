"""The first picture of the README: a cat in views, with EfficientNet-Lite0's classes, before and after two attacks.

python scripts/hero.py docs/hero.jpg
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from torchvision.models import ResNet18_Weights

WORDS = "encoder=pypi encoder.model=lite0 encoder.output=logits task=classification data=folder data.count=1"
WORDS += " perturbation.eps=8/255 attack.gradients=128 evaluate.views=32 evaluate.refine=0 evaluate.one_view=false"
WORDS += " objective.target=toaster engine=fixed"  # `auto` is timed: not the same pixels twice


def main(target: Path) -> None:
    names = ResNet18_Weights.DEFAULT.meta["categories"]  # of ImageNet, of which two are homonyms
    unique = [name if name not in names[:i] else f"{name} ({i})" for i, name in enumerate(names)]
    photograph = Path(__file__).parents[1] / "attacks" / "data" / "photos" / "chelsea.png"
    with tempfile.TemporaryDirectory() as folder:
        (classes := Path(folder) / "classes.txt").write_text("\n".join(unique))
        words = [*WORDS.split(), f"data.path={photograph}", f"task.classes={classes}", f"hydra.run.dir={folder}/run"]
        subprocess.run([sys.executable, "-m", "attacks.run", "config=quickstart", "sanity=none", *words], check=True)
        with Image.open(f"{folder}/run/views.png") as picture:
            rows = np.array_split(np.asarray(picture.convert("RGB")), 4)
        Image.fromarray(np.concatenate([rows[0], *rows[2:]])).save(target, quality=90)  # random noise is left out


if __name__ == "__main__":
    main(Path(sys.argv[1]))
