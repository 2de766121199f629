"""Train the pocket encoder.

    python scripts/train_pocket.py OUT.safetensors
    python scripts/train_pocket.py --judge attacks/data/pocket.safetensors
    python scripts/train_pocket.py --runs RUN_DIRECTORY ...

Contrastive (InfoNCE) between a picture and a camera view of it, with the project's transforms as augmentation. The
pictures are procedural: no photograph is read in training. The same command gives the same file on the same machine.
"""

import argparse
import math
import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from attacks import load_encoder
from attacks.encoders import untrained
from attacks.encoders.pocket import Pocket
from transforms import Affine, Brightness, Compose, Contrast, Downscale, Perspective, resize
from transforms.doors import unchecked
from transforms.draws import Uniform

from .judging import attack_rates, report
from .procedural import render_procedural

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
#: The side of a cell in training: that of the encoder's input.
SIDE = 96
#: The sides that cells are cut with from a picture of 384 pixels, and the most cells of one picture in a batch.
PITCH, CELLS_OF_PICTURE = (60, 150), 20
#: A picture's contrast is multiplied by a factor from this range; cells with a smaller deviation are left out.
FADE, FAINT = (0.18, 1.3), 0.025


class Cells:
    """Batches of distinct cells (n,3,SIDE,SIDE), many of each picture: they are each other's hardest negatives.

    `pictures` is (N,S,S,3) in 8 bits. Cells of a batch never overlap, so none is a false negative.
    """

    def __init__(self, pictures: Tensor, generator: torch.Generator) -> None:
        self.pictures, self.generator = pictures, generator

    def _uniform(self, low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand((), generator=self.generator))

    def _int(self, low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=self.generator))

    def batch(self, n: int) -> Tensor:
        """n cells, all of one picture recoloured alike."""
        parts: list[Tensor] = []
        rows = torch.randperm(len(self.pictures), generator=self.generator).tolist()
        while sum(map(len, parts)) < n:
            cells = self.recolour(self.cut(self.pictures[rows.pop()].permute(2, 0, 1)))
            parts.append(cells[cells.flatten(1).std(dim=1) > FAINT])
        return torch.cat(parts)[:n]

    def cut(self, picture: Tensor) -> Tensor:
        """The picture cut by a grid of a random pitch and offset, at most MOST of its cells in random order."""
        pitch = self._int(*PITCH)
        top, left = (self._int(0, length % pitch) for length in picture.shape[1:])
        grid = picture[:, top:, left:].unfold(1, pitch, pitch).unfold(2, pitch, pitch)
        cells = grid.permute(1, 2, 0, 3, 4).flatten(0, 1)
        cells = cells[torch.randperm(len(cells), generator=self.generator)[:CELLS_OF_PICTURE]] / 255
        return resize(cells, (SIDE, SIDE), "pil_bicubic").clamp(0, 1)

    def recolour(self, cells: Tensor) -> Tensor:
        """Flip, turn, permute channels, change their curves and the contrast: more instances from few pictures."""
        if self._uniform(0, 1) < 0.5:
            cells = cells.flip(3)
        cells = torch.rot90(cells, self._int(0, 3), (2, 3))[:, torch.randperm(3, generator=self.generator)]
        if self._uniform(0, 1) < 0.15:
            cells = cells.mean(dim=1, keepdim=True).expand(-1, 3, -1, -1)
        gamma, centre = self._uniform(0.5, 2.0), self._uniform(0.15, 0.85)
        fade = math.exp(self._uniform(*map(math.log, FADE)))
        cells = cells**gamma
        return (centre + fade * (cells - cells.mean())).clamp(0, 1)


def pictures_of_noise(count: int, seed: int) -> Tensor:
    """`count` procedural pictures (N,S,S,3) in 8 bits; two processes draw them."""
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pictures = pool.map(render_procedural, [(seed, i) for i in range(count)], chunksize=8)
    return torch.from_numpy(np.stack(pictures))


def augment(pictures: Tensor, seed: int, step: int, generator: torch.Generator) -> Tensor:
    """One of the views `AUGMENT` of each picture, under coloured light that changes slowly over the picture.

    Without the light the encoder lives on large patches of colour, and any attack on them survives any camera: views
    would not matter, and the encoder would not represent one that looks at structure.
    """
    window_views = AUGMENT(pictures, Uniform()(len(pictures), AUGMENT.dims, seed=seed, step=step))
    gain = 1 + GAIN * (2 * torch.rand(len(pictures), 3, 1, 1, generator=generator) - 1)
    field = unchecked(resize)(torch.randn(len(pictures), 3, 4, 4, generator=generator), (96, 96), "pil_bicubic")
    strength = SHADING * torch.rand(len(pictures), 1, 1, 1, generator=generator)
    return (window_views * gain + strength * field).clamp(0, 1)


def contrastive_loss(first: Tensor, second: Tensor, temperature: float = 0.06) -> Tensor:
    """InfoNCE in both directions (van den Oord et al. 2018)."""
    logits = F.normalize(first, dim=1) @ F.normalize(second, dim=1).T / temperature
    target = torch.arange(len(logits))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def train(cells: Cells, steps: int, batch: int, seed: int) -> Pocket:
    """A pocket encoder after `steps` steps of `batch` cells; prints the loss every 100 steps."""
    start = time.perf_counter()
    encoder = untrained(seed).train().to(memory_format=torch.channels_last)  # a third faster
    optimiser = torch.optim.AdamW(encoder.parameters(), weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        pictures = cells.batch(batch)
        embeddings = encoder(torch.cat([pictures, augment(pictures, seed, step, cells.generator)]))
        loss = contrastive_loss(*embeddings.split(batch))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step == 0 or step % 100 == 99 or step + 1 == steps:
            print(f"step {step + 1}: loss {loss:.3f}, {time.perf_counter() - start:.0f} s", flush=True)
    return encoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="+", metavar="OUT")
    parser.add_argument("--pictures", type=int, default=1000, help="procedural pictures to draw")
    parser.add_argument("--steps", type=int, default=1150)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judge", action="store_true", help="train nothing, print the figures of the file OUT")
    parser.add_argument("--runs", action="store_true", help="likewise, recall@1 of the finished runs OUT by arm")
    options = parser.parse_args()
    (out, *_) = options.out
    if options.judge or options.runs:
        print(attack_rates(options.out) if options.runs else report(load_encoder("pocket", weights=out)))
        return
    torch.use_deterministic_algorithms(True)
    start = time.perf_counter()
    cells = Cells(pictures_of_noise(options.pictures, options.seed), torch.Generator().manual_seed(options.seed))
    print(f"{options.pictures} pictures drawn, {time.perf_counter() - start:.0f} s", flush=True)
    network = train(cells, options.steps, options.batch, options.seed)
    state = {k: v for k, v in network.state_dict().items() if not k.endswith("num_batches_tracked")}
    save_file({k: v.half().contiguous() for k, v in state.items()}, out)
    print(report(load_encoder("pocket", weights=out)))
