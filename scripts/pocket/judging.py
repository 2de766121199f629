"""Recall@1 of the pocket encoder on the judged photographs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks import EOT, PGD, Away, Linf, bank, evaluate, solve
from attacks.data.gallery import HELD_OUT, Pictures, spread, tiles
from attacks.encoders.tree import Encoder
from attacks.experiment.build.pipeline import pipeline
from attacks.run import compose


@dataclass(frozen=True)
class Judged:
    """The judged tiles: `rows` of the gallery of all tiles, by the names of their photographs."""

    gallery: Pictures
    rows: tuple[int, ...]

    @property
    def photos(self) -> tuple[str, ...]:
        return tuple(photograph(self.gallery.names[row]) for row in self.rows)


def photograph(tile: str) -> str:
    return tile.split("-")[0]


def judged(most: int | None = None) -> Judged:
    """The tiles of HELD_OUT, or at most `most` of each photograph, spread evenly."""
    gallery, rows = tiles(128), []
    for photo in HELD_OUT:
        own = [i for i, name in enumerate(gallery.names) if photograph(name) == photo]
        rows += [own[i] for i in spread(len(own), None if most is None else min(most, len(own)))]
    return Judged(gallery, tuple(rows))


def recalls(encoder: Encoder, pictures: Judged, arms: dict[str, Tensor], views: int) -> str:
    """A table of recall@1 under the quickstart's views, in the gallery of all tiles: a row for each photograph."""
    u = bank(pipeline(compose("quickstart").transforms), views, seed=1, purpose="train_pocket")
    rows = list(pictures.rows)
    with torch.no_grad():
        gallery = encoder(pictures.gallery.images)
    hits = {}
    for name, images in arms.items():
        nearest = evaluate(images, gallery[rows], gallery, encoder=encoder, bank=u).nearest
        hits[name] = (nearest == torch.tensor(rows)[:, None]).double().mean(dim=1)
    lines = [f"{len(rows)} tiles, a gallery of {len(gallery)}, {views} views each; recall@1"]
    lines.append(" ".join([f"{'photograph':20} tiles", *(f"{name:>12}" for name in arms)]))
    photos, shares = list(dict.fromkeys(pictures.photos)), []
    for photo in photos:
        own = [i for i, one in enumerate(pictures.photos) if one == photo]
        shares.append(torch.stack([hits[name][own].mean() for name in arms]))
        lines.append(_row(photo, len(own), shares[-1]))
    lines.append(_row("mean of photographs", len(photos), torch.stack(shares).mean(dim=0)))
    lines.append(_row("mean of tiles", len(rows), torch.stack([hits[name].mean() for name in arms])))
    return "\n".join(lines)


def _row(name: str, count: int, shares: Tensor) -> str:
    return " ".join([f"{name:20} {count:5}", *(f"{share:12.3f}" for share in shares.tolist())])


def report(encoder: Encoder, views: int = 64) -> str:
    """Recall@1 of all judged tiles, clean and with noise."""
    pictures = judged()
    images = pictures.gallery.images[list(pictures.rows)]
    noisy = images + Linf(16 / 255).noise(images, torch.Generator().manual_seed(1))
    return recalls(encoder, pictures, {"clean": images, "noise 16/255": noisy}, views)


def attacked(encoder: Encoder, views: int = 64, steps: int = 100, most: int = 3) -> str:
    """Recall@1 of at most `most` tiles of each judged photograph after attacks without and with EOT."""
    pictures = judged(most)
    rows = list(pictures.rows)
    images = pictures.gallery.images[rows]
    with torch.no_grad():
        own = encoder(images)
    camera, arms = pipeline(compose("quickstart").transforms), {"clean": images}
    for eps in (8, 16):
        budget = Linf(eps / 255)
        for name, eot in (("no EOT", EOT(views=1)), ("EOT", EOT(camera))):
            torch.manual_seed(0)
            found = solve(
                images,
                own,
                encoder=encoder,
                objective=Away(),
                perturbation=budget,
                optimiser=PGD(),
                eot=eot,
                steps=steps,
            )
            arms[f"{name} {eps}/255"] = images + budget.quantise(found.delta, images)
    return recalls(encoder, pictures, arms, views)
