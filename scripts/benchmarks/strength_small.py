"""A small convolutional encoder that is trained on the spot, on procedural pictures, for comparisons of attacks."""

import importlib
import itertools
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from attacks.runtime.progress import Progress
from transforms import Affine, Brightness, Compose, Contrast, resize
from transforms.draws import Uniform

#: Procedural pictures, steps, cells of a step: about two minutes of one core. The seed is not the pocket encoder's.
PICTURES, STEPS, BATCH, SEED = 120, 250, 96, 7
AUGMENT = Compose([Affine(degrees=20, scale=(0.8, 1.3), translate=0.1), Brightness(0.1), Contrast((0.75, 1.25))])


class Small(nn.Module):
    """(N,3,H,W) in [0,1], any size from 24 pixels on -> (N,96)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 24, 48, 72, 96)
        self.layers = nn.Sequential(
            *(
                layer
                for a, b in itertools.pairwise(widths)
                for layer in (nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.SiLU())
            ),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(4 * widths[-1], 96),
        )

    def forward(self, images: Tensor) -> Tensor:
        embedding: Tensor = self.layers(2 * images - 1)
        return embedding


def small(folder: Path) -> nn.Module:
    """The encoder in evaluation mode, from the file `folder`/small.safetensors, which is written if it is missing."""
    file, network = folder / "small.safetensors", Small()
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        save_file(trained().state_dict(), part)
        part.rename(file)
    network.load_state_dict(load_file(file))
    return network.eval()


def trained(pictures: int = PICTURES, steps: int = STEPS) -> Small:
    """Contrastive (InfoNCE) between a cell of a procedural picture and a view of it, as in the pocket
    encoder's training. The same on the same machine."""
    training = importlib.import_module(f"{__package__.rpartition('benchmarks')[0]}pocket.training")
    drawn = torch.from_numpy(np.stack([training.render((SEED, i)) for i in range(pictures)]))
    cells = training.Cells(drawn, torch.Generator().manual_seed(SEED))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        network = Small().train()
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    with Progress("training the small encoder", steps) as progress:
        for step in range(steps):
            shown = resize(cells.batch(BATCH), (64, 64), "pil_bilinear")
            views = AUGMENT(shown, Uniform()(BATCH, AUGMENT.dims, seed=SEED, step=step))
            loss: Tensor = training.contrast(*network(torch.cat([shown, views])).split(BATCH))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            progress.step(loss=float(loss.detach()))
    return network
