"""Train the pocket encoder.

    python scripts/train_pocket.py OUT.safetensors
    python scripts/train_pocket.py --judge attacks/data/pocket.safetensors

Contrastive (InfoNCE) between a picture and a camera view of it, with the project's transforms as augmentation. The
pictures are recoloured crops of the bundled photographs that are not held out, and random drawings. The same command
gives the same file on the same machine.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from attacks import Linf, bank, evaluate, interval, load_encoder
from attacks.data.gallery import FLAT, HELD_OUT, photographs, tiles
from attacks.encoders import untrained
from attacks.encoders.tree import Encoder
from attacks.experiment.build.pipeline import pipeline
from attacks.run import compose
from transforms import Affine, Brightness, Compose, Contrast, Downscale, Perspective, Uniform, resize

#: A little wider than the camera of `config=quickstart`.
AUGMENT = Compose(
    [
        Affine(degrees=25, scale=(0.7, 1.4), translate=0.12),
        Perspective(jitter=0.2),
        Brightness(0.15),
        Contrast((0.7, 1.3)),
        Downscale((40, 96)),
    ]
)
#: The coloured light: each channel's gain lies within 1 +- GAIN, a smooth field deviates by at most SHADING.
GAIN, SHADING = 0.06, 0.015
SIDE = 128


class Crops:
    """Batches of distinct pictures (n,3,SIDE,SIDE): crops of a batch never overlap, so none is a false negative."""

    def __init__(self, generator: torch.Generator) -> None:
        self.photos = [photo for name, photo in photographs().items() if name not in HELD_OUT]
        self.generator = generator

    def _rand(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator)

    def _int(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def cells(self) -> list[Tensor]:
        """Each photograph cut by a grid of a random pitch and offset; the cells of a call never overlap."""
        cells: list[Tensor] = []
        for photo in self.photos:
            pitch = self._int(56, min(224, *photo.shape[1:]))
            top, left = (self._int(0, (length - pitch) % pitch) for length in photo.shape[1:])
            for y in range(top, photo.shape[1] - pitch + 1, pitch):
                columns = range(left, photo.shape[2] - pitch + 1, pitch)
                cells += [photo[:, y : y + pitch, x : x + pitch] for x in columns]
        return [cell for cell in cells if cell.std() > FLAT]

    def cut(self, n: int) -> list[Tensor]:
        """n of the cells, in random order, as (3,SIDE,SIDE)."""
        cells = self.cells()
        order = torch.randperm(len(cells), generator=self.generator)[:n].tolist()
        return [resize(cells[i][None], (SIDE, SIDE), "pil_bicubic")[0].clamp(0, 1) for i in order]

    def draw(self) -> Tensor:
        """A random picture: a coloured noise with a 1/f spectrum, and a few translucent half-planes and discs."""
        y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
        picture = torch.full((3, SIDE, SIDE), 0.0) + self._rand(3, 1, 1)
        for side in (2, 4, 8, 16, 32):
            noise = self._rand(3, side, side) - 0.5
            octave = resize(noise[None], (SIDE, SIDE), "pil_bicubic")[0]
            picture = picture + octave * (1.6 / side**0.5) * self._rand(1)
        for _ in range(self._int(1, 6)):
            cx, cy, angle, radius, kind, edge = self._rand(6)
            u, v = (x - 2 * cx + 1) * torch.cos(6.28 * angle), (y - 2 * cy + 1) * torch.sin(6.28 * angle)
            distance = u + v if kind < 0.4 else ((x - 2 * cx + 1) ** 2 + (y - 2 * cy + 1) ** 2).sqrt() - radius
            if kind > 0.7:
                distance = torch.maximum((u + v).abs() - radius * 0.6, (x - 2 * cx + 1).abs() - radius)
            cover = torch.sigmoid(-distance * (20 + 100 * edge)) * (0.5 + 0.5 * self._rand(1))
            picture = picture * (1 - cover) + self._rand(3, 1, 1) * cover
        return picture.clamp(0, 1)

    def recolour(self, picture: Tensor) -> Tensor:
        """Flip, turn, permute channels and change their curves: more instances from few photographs."""
        if self._rand(1) < 0.5:
            picture = picture.flip(2)
        picture = torch.rot90(picture, self._int(0, 3), (1, 2))
        if self._rand(1) < 0.5:
            picture = picture[torch.randperm(3, generator=self.generator)]
        gamma, gain = 0.6 + 1.0 * self._rand(3, 1, 1), 0.7 + 0.5 * self._rand(3, 1, 1)
        return (picture.clamp(0, 1) ** gamma * gain).clamp(0, 1)

    def batch(self, n: int) -> Tensor:
        """n pictures, three quarters from photographs."""
        cut = self.cut(3 * n // 4)
        drawn = [self.draw() for _ in range(n - len(cut))]
        return torch.stack([self.recolour(picture) for picture in (*cut, *drawn)])


def augmented(pictures: Tensor, seed: int, step: int, generator: torch.Generator) -> Tensor:
    """One camera view of each picture, under coloured light that changes slowly over the picture.

    Without the light the encoder lives on large patches of colour, and any attack on them survives any camera: views
    would not matter, and the encoder would not represent one that looks at structure.
    """
    views = AUGMENT(pictures, Uniform()(len(pictures), AUGMENT.dims, seed=seed, step=step))
    gain = 1 + GAIN * (2 * torch.rand(len(pictures), 3, 1, 1, generator=generator) - 1)
    field = resize(torch.randn(len(pictures), 3, 4, 4, generator=generator), (96, 96), "pil_bicubic")
    strength = SHADING * torch.rand(len(pictures), 1, 1, 1, generator=generator)
    return (views * gain + strength * field).clamp(0, 1)


def contrast(first: Tensor, second: Tensor, temperature: float = 0.06) -> Tensor:
    """InfoNCE in both directions (van den Oord et al. 2018)."""
    logits = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / temperature
    target = torch.arange(len(logits))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def report(encoder: Encoder, views: int = 64) -> str:
    """Recall@1 and mean cosine of the quickstart's views of the held-out pictures, in the gallery of all tiles."""
    camera = pipeline(compose("quickstart").transforms)
    everything, u = tiles(SIDE), bank(camera, views, seed=1, purpose="train_pocket")
    rows = [i for i, name in enumerate(everything.names) if name.split("-")[0] in HELD_OUT]
    truth, images = torch.tensor(rows)[:, None], everything.images[rows]
    with torch.no_grad():
        gallery = encoder(everything.images)
    lines = [f"{len(rows)} held-out pictures, a gallery of {len(everything)}, {views} views each"]
    noisy = images + Linf(16 / 255).noise(images, torch.Generator().manual_seed(1))
    for name, arm in {"clean": images, "noise 16/255": noisy}.items():
        scores = evaluate(arm, gallery[rows], gallery, encoder=encoder, bank=u)
        recall = interval((scores.nearest == truth).double())
        lines.append(f"{name}: recall@1 {recall.mean:.3f} [{recall.low:.3f}, {recall.high:.3f}], ")
        lines[-1] += f"cosine {interval(scores.cosine).mean:.3f}"
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judge", action="store_true", help="train nothing, print the figures of the file OUT")
    options = parser.parse_args()
    if options.judge:
        print(report(load_encoder("pocket", weights=options.out)))
        return
    torch.use_deterministic_algorithms(True)
    encoder, start = untrained(options.seed).train(), time.perf_counter()
    optimiser = torch.optim.AdamW(encoder.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=options.steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(options.seed)
    crops = Crops(generator)
    for step in range(options.steps):
        pictures = crops.batch(options.batch)
        views = augmented(pictures, options.seed, step, generator)
        both = encoder(torch.cat([resize(pictures, 96, "pil_bilinear"), views]))
        loss = contrast(*both.split(len(pictures)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step == 0 or step % 100 == 99 or step + 1 == options.steps:
            print(f"step {step + 1}: loss {loss:.3f}, {time.perf_counter() - start:.0f} s", flush=True)
    half = {
        k: v.half().contiguous() for k, v in encoder.state_dict().items() if not k.endswith("num_batches_tracked")
    }
    save_file(half, options.out)
    print(report(load_encoder("pocket", weights=options.out)))


if __name__ == "__main__":
    main()
