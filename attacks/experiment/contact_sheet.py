"""The contact sheet: views of one picture in every arm."""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from attacks.data.images import to_bytes
from attacks.experiment.batch import SAME
from attacks.experiment.outcome import Outcome
from attacks.report.words import ARMS as NAMES
from attacks.runtime.files import atomic
from transforms import scene_of
from transforms.compose import view

#: The contact sheet shows so many views, the first of the held-out bank.
SHOWN = 6


def typical(outcome: Outcome) -> int:
    """The index of the judged picture with the median mean cosine under attack."""
    rows = outcome.bench.parts.queries.judged
    cosine = outcome.scores[SAME]["eot"].cosine[rows]
    return rows[int(cosine.mean(1).argsort()[(len(cosine) - 1) // 2])]


def contact_sheet(path: str | Path, outcome: Outcome) -> None:
    """Save views of the typical picture, one row per arm: the file itself, then held-out views with their cosine to
    the clean embedding. The frame is red where the encoder retrieves another picture."""
    picture, bench = typical(outcome), outcome.bench
    parts, bank, exhibits = bench.parts, bench.banks[SAME], bench.exhibits.alone
    u = bank.u[:SHOWN]
    figure = Figure(figsize=(1.45 * (len(u) + 1), 1.72 * len(outcome.arms)), dpi=110)
    axes = figure.subplots(len(outcome.arms), len(u) + 1)
    direct = "the file" if parts.perturbation.texture_size is None else "head-on"
    for row, arm in zip(axes, outcome.arms, strict=True):
        _show(row[0], exhibits.pictures(arm, [picture])[0], direct, "#888888")
        row[0].set_ylabel(NAMES[arm], fontsize=9)
        views = view(bank.transforms, scene_of(exhibits.shown(arm, [picture])), u).cpu()
        scores = outcome.scores[SAME][arm]
        for axis, seen, cosine, nearest in zip(
            row[1:], views, scores.cosine[picture], scores.nearest[picture], strict=False
        ):
            known = bool(parts.gallery.same(nearest, parts.truth[picture]))
            aimed = parts.goal is not None and bool(parts.gallery.same(nearest, parts.goal[picture]))
            note = "" if known else "  the target" if aimed else "  not known"
            _show(axis, seen, f"{cosine:.2f}{note}", "#2f855a" if known else "#c53030")
    figure.tight_layout(pad=0.4)
    with atomic(path) as temporary:
        figure.savefig(temporary, format="png", metadata={"Software": None})


def _show(axis: Axes, image: Tensor, title: str, colour: str) -> None:
    axis.imshow(to_bytes(image))
    axis.set_title(title, fontsize=8, color=colour)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=2)
