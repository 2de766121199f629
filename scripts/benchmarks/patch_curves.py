"""Success of a patch against its share of the picture, and against distance.

Success depends on the picture and even more on the target, so every figure is a mean over pairs of them, drawn with a
fixed seed: pictures that the encoder was not trained on, targets from other photographs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attacks import EOT, InfoNCE, Patch, Wiener, bank, evaluate, interval, load_encoder, solve
from attacks.data.gallery import HELD_OUT, Pictures, tiles
from attacks.evaluation.scores import embed
from attacks.experiment.build.pipeline import preset
from attacks.perturbations.patch.placement import Quad
from transforms import Affine, Compose, Shown, stream

from .contest import done, processes
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


@lru_cache(maxsize=1)
def known() -> tuple[nn.Module, Pictures, Tensor]:
    """The pocket encoder, frozen; every tile of every photograph; their embeddings."""
    encoder, everything = load_encoder().requires_grad_(False), tiles(SIZE)
    embeddings = embed(everything.images, encoder, torch.device("cpu"))
    assert isinstance(embeddings, Tensor)
    return encoder, everything, embeddings


def pairs(names: Sequence[str], pictures: int, targets: int) -> list[tuple[int, int]]:
    """Rows of (picture, target): pictures from each held-out photograph in turn, and for each `targets` pictures of
    other photographs. Raises ValueError if there are fewer."""
    draw, chosen = random.Random(stream(0, "curves")), []
    photo = [name.rsplit("-", 2)[0] for name in names]
    order = draw.sample(HELD_OUT, len(HELD_OUT))
    queues = {
        one: draw.sample(rows := [i for i, each in enumerate(photo) if each == one], len(rows)) for one in order
    }
    for i in range(pictures):
        queue = queues[order[i % len(order)]]
        if not queue:
            raise ValueError(f"`--pictures` asks for more than the photographs hold; got {pictures}")
        picture = queue.pop()
        others = [row for row, one in enumerate(photo) if one != photo[picture]]
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
    encoder, everything, gallery = known()
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
    image = known()[1].images[job.picture, None]
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
    encoder, _, gallery = known()
    views = bank(camera, job.views, seed=0, purpose="evaluate")
    scores = evaluate(shown, gallery[job.picture, None], gallery, encoder=encoder, bank=views)
    return (scores.nearest[0] == row).double()


def run(pictures: int, targets: int, evals: int, views: int, workers: int = 1) -> list[Table]:
    """Two tables: success by area, and by distance. The figures do not depend on the number of `workers`."""
    everything = known()[1]
    drawn = pairs(everything.names, pictures, targets)
    jobs = [Job(*pair, area, evals, views) for area in AREAS for pair in drawn]
    with processes(workers) as spread:
        outcomes = done("curves", work, jobs, lambda outcome: {"success": float(outcome[0]["eot"][0].mean())}, spread)
    by_area = [[near for near, _ in outcomes[i : i + len(drawn)]] for i in range(0, len(outcomes), len(drawn))]
    rows: dict[str, Row] = {}
    for arm, name in ARMS.items():
        rows |= _lines(name, [torch.stack([each[arm][0] for each in column]) for column in by_area])
    far = [each for _, each in outcomes if each]
    distant: dict[str, Row] = {}
    for arm, name in {**ARMS, KNOWN: KNOWN}.items():
        distant |= _lines(name, [torch.stack([each[arm][i] for each in far]) for i in range(len(SCALES))])
    names = [f"{everything.names[picture]} as {everything.names[target]}" for picture, target in drawn]
    spent = f"{len(drawn)} pairs of picture and target, {evals} gradients each, {views} held-out views"
    notes = ("pairs: " + ", ".join(names), spent)
    share = f"magnification; the patch covers {WHOLE:.0%} of the picture"
    return [
        Table(
            "Taken for the target, by area",
            {f"{100 * area:g}": ".2f" for area in AREAS},
            rows,
            "shares",
            notes,
            across="patch, % of the picture",
        ),
        Table(
            "Taken for the target, by distance", {f"{s:g}": ".2f" for s in SCALES}, distant, "shares", notes, share
        ),
    ]


def _lines(name: str, columns: Sequence[Tensor]) -> dict[str, Row]:
    """Mean and interval of each column's hits (pairs, V), as three rows."""
    intervals = [interval(column) for column in columns]
    return {
        name: tuple(each.mean for each in intervals),
        f"{name}, low": tuple(each.low for each in intervals),
        f"{name}, high": tuple(each.high for each in intervals),
    }
