"""Success of a patch against its share of the picture, and against distance.

Success depends on the picture and even more on the target, so every figure is a mean over pairs of them, drawn with a
fixed seed: pictures that the encoder was not trained on, targets from other photographs.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from attacks import EOT, InfoNCE, Patch, Wiener, bank, evaluate, rate, solve
from attacks.data.gallery import HELD_OUT
from attacks.experiment.build.pipeline import preset
from attacks.perturbations.patch.placement import Quad
from transforms import Affine, Compose, Shown, stream

from .case import known, photo
from .contest import outcomes
from .processes import processes
from .table import Row, Table

PIPELINE, SIZE, TEXTURE = preset("camera"), 128, 64
#: Shares of the picture, and the one whose patches are judged at fixed magnifications.
AREAS, WHOLE = (0.02, 0.05, 0.10, 0.15, 0.20, 0.25, 0.30), 0.25
SCALES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
#: Views of a step with EOT.
VIEWS = 8
ARMS = {"eot": "with EOT", "no_eot": "without EOT", "noise": "random texture"}
KNOWN = "no patch, known"


class Job(NamedTuple):
    """A picture and a target, rows of the gallery, and the patch's share of the picture."""

    picture: int
    target: int
    area: float
    evals: int
    views: int


#: By arm: for each column whether each held-out view is recognised as the target (V,).
Hits = dict[str, list[Tensor]]


def pairs(names: Sequence[str], pictures: int, targets: int) -> list[tuple[int, int]]:
    """Rows of (picture, target): pictures from each held-out photograph in turn, and for each `targets` pictures of
    other photographs. Raises ValueError if there are fewer."""
    draw, chosen = random.Random(stream(0, "curves")), []
    photos = [photo(name) for name in names]
    order = draw.sample(HELD_OUT, len(HELD_OUT))
    queues = {
        one: draw.sample(rows := [i for i, each in enumerate(photos) if each == one], len(rows)) for one in order
    }
    for i in range(pictures):
        queue = queues[order[i % len(order)]]
        if not queue:
            raise ValueError(f"`--pictures` must be at most what the photographs hold; got {pictures}")
        picture = queue.pop()
        others = [row for row, one in enumerate(photos) if one != photos[picture]]
        if targets > len(others):
            raise ValueError(f"`--targets` must be at most {len(others)}; got {targets}")
        chosen += [(picture, target) for target in draw.sample(others, targets)]
    return chosen


def centred(area: float) -> Quad:
    """The middle square that covers a share of the picture."""
    low, high = 0.5 - area**0.5 / 2, 0.5 + area**0.5 / 2
    return ((low, low), (high, low), (high, high), (low, high))


def at(scale: float) -> Compose:
    """The camera at one magnification, its other ranges kept."""
    stages = [
        replace(stage, scale=(scale, scale)) if isinstance(stage, Affine) else stage for stage in PIPELINE.stages
    ]
    return replace(PIPELINE, stages=tuple(stages))


def textures(job: Job, patch: Patch) -> dict[str, Tensor]:
    """The 8-bit texture of each arm; the two attacks have as many gradients."""
    encoder, everything, gallery = known(SIZE)
    image, row = everything.images[job.picture, None], torch.tensor([job.target])
    cameras = {"eot": EOT(PIPELINE, views=VIEWS), "no_eot": EOT(Compose(), views=1)}
    deltas = {}
    for arm, eot in cameras.items():
        deltas[arm] = solve(
            image,
            row,
            encoder=encoder,
            objective=InfoNCE(gallery, targeted=True),
            perturbation=patch,
            optimiser=Wiener(),
            eot=eot,
            steps=max(1, job.evals // eot.views),
            seed=stream(0, "curves", arm, *job[:2]),
        ).delta
    deltas["noise"] = patch.noise(image, torch.Generator().manual_seed(stream(0, "curves", "noise", *job[:2])))
    return {arm: patch.quantise(deltas[arm], image) for arm in ARMS}


def work(job: Job) -> tuple[Hits, Hits]:
    """The hits at the camera's own ranges, and, for patches of the area `WHOLE`, at each magnification."""
    image = known(SIZE)[1].images[job.picture, None]
    patch = Patch((TEXTURE, TEXTURE), centred(job.area))
    arms = textures(job, patch)
    near = {arm: [_hits(job, PIPELINE, patch.scene(image, arms[arm]), job.target)] for arm in ARMS}
    if job.area != WHOLE:
        return near, {}
    far = {arm: [_hits(job, at(s), patch.scene(image, arms[arm]), job.target) for s in SCALES] for arm in ARMS}
    far[KNOWN] = [_hits(job, at(s), image, job.picture) for s in SCALES]
    return near, far


def _hits(job: Job, camera: Compose, shown: Shown, row: int) -> Tensor:
    """Whether each held-out view is taken for a row of the gallery, (V,)."""
    encoder, _, gallery = known(SIZE)
    views = bank(camera, job.views, seed=0, purpose="evaluate")
    scores = evaluate(shown, gallery[job.picture, None], gallery, encoder=encoder, bank=views)
    return (scores.nearest[0] == row).double()


def run(pictures: int = 2, targets: int = 2, evals: int = 1600, held_out: int = 128, workers: int = 1) -> list[Table]:
    """Success of a patch against its area and against distance."""
    names = known(SIZE)[1].names
    drawn = pairs(names, pictures, targets)
    plan = {area: [Job(*pair, area, evals, held_out) for pair in drawn] for area in AREAS}
    with processes(workers) as spread:
        results = outcomes("curves", work, plan, lambda hits: {"success": float(hits[0]["eot"][0].mean())}, spread)
    near = {arm: [[hits[arm][0] for hits, _ in each] for each in results.values()] for arm in ARMS}
    at_whole = [hits for _, hits in results[WHOLE]]
    far = {arm: [[hits[arm][i] for hits in at_whole] for i in range(len(SCALES))] for arm in (*ARMS, KNOWN)}
    labelled = ", ".join(f"{names[picture]} as {names[target]}" for picture, target in drawn)
    spent = f"{len(drawn)} pairs of picture and target, {evals} gradients each, {held_out} held-out views"
    notes, areas = (f"pairs: {labelled}", spent), {f"{100 * area:g}": ".2f" for area in AREAS}
    share = f"magnification; the patch covers {WHOLE:.0%} of the picture"
    scales = {f"{s:g}": ".2f" for s in SCALES}
    return [
        Table("Taken for the target, by area", areas, _lines(near), "shares", notes, "patch, % of the picture"),
        Table("Taken for the target, by distance", scales, _lines(far), "shares", notes, share),
    ]


def _lines(hits: Mapping[str, Sequence[Sequence[Tensor]]]) -> dict[str, Row]:
    """Of each arm mean and interval of each column's hits, (V,) of each pair, as three rows."""
    rows: dict[str, Row] = {}
    for arm, columns in hits.items():
        name, intervals = ARMS.get(arm, arm), [rate(torch.stack(list(column))) for column in columns]
        rows[name] = tuple(each.mean for each in intervals)
        rows[f"{name}, low"] = tuple(each.low for each in intervals)
        rows[f"{name}, high"] = tuple(each.high for each in intervals)
    return rows
