"""Recall@1 of the pocket encoder by photograph."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from attacks import Linf, bank, evaluate
from attacks.data.gallery import HELD_OUT, tiles
from attacks.encoders.tree import Encoder
from attacks.evaluation.clusters import by_cluster
from attacks.run import compose
from attacks.runtime.tables import read_rows
from attacks.study.pipeline import pipeline

#: Held-out views of a tile.
VIEWS = 64
#: The arms of a run, in the order of the table.
ARMS = ("clean", "noise", "no_eot", "one_view", "eot")


def report(encoder: Encoder) -> str:
    """Recall@1 of all judged tiles under the quickstart's views, clean and with noise, among all tiles."""
    pictures = tiles(128)
    rows = [i for i, photo in enumerate(pictures.clusters) if photo in HELD_OUT]
    images, truth = pictures.images[rows], torch.tensor(rows)[:, None]
    noisy = images + Linf(16 / 255).noise(images, torch.Generator().manual_seed(1))
    u = bank(pipeline(compose("quickstart").transforms), VIEWS, seed=1, purpose="train_pocket")
    with torch.no_grad():
        gallery = encoder(pictures.images)
    hits = {
        name: evaluate(arm, gallery[rows], gallery, encoder=encoder, bank=u).nearest == truth
        for name, arm in {"clean": images, "noise 16/255": noisy}.items()
    }
    recalls = {name: rates.double().mean(1) for name, rates in hits.items()}
    head = f"{len(rows)} tiles, a gallery of {len(gallery)}, {VIEWS} views each; recall@1"
    return "\n".join([head, *_table(recalls, [pictures.clusters[row] for row in rows])])


def attack_rates(runs: Sequence[Path]) -> str:
    """Recall@1 of the pictures of finished runs, in each arm."""
    lines = []
    for run in runs:
        rows = [row for row in read_rows(run / "per_image.csv") if row["bank"] == "same"]
        by_arm = {arm: [row for row in rows if row["arm"] == arm] for arm in ARMS}
        recalls = {
            arm: torch.tensor([float(row["recall_at_1"]) for row in photo_tiles])
            for arm, photo_tiles in by_arm.items()
            if photo_tiles
        }
        lines += [f"{run}: recall@1", *_table(recalls, [row["cluster"] for row in by_arm["clean"]])]
    return "\n".join(lines)


def _table(recalls: Mapping[str, Tensor], photos: Sequence[str]) -> list[str]:
    """A row for each photograph, and the means over photographs and over tiles, from the recall (N,) of each tile."""
    lines = [" ".join([f"{'photograph':20} tiles", *(f"{name:>12}" for name in recalls)])]
    means = torch.stack([by_cluster(rates, photos) for rates in recalls.values()], 1)
    names = list(dict.fromkeys(photos))
    lines += [_row(name, photos.count(name), values) for name, values in zip(names, means, strict=True)]
    lines.append(_row("mean of photographs", len(names), means.mean(0)))
    return [*lines, _row("mean of tiles", len(photos), torch.stack([rates.mean() for rates in recalls.values()]))]


def _row(name: str, count: int, shares: Tensor) -> str:
    return " ".join([f"{name:20} {count:5}", *(f"{share:12.3f}" for share in shares.tolist())])
