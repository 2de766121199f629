"""The encoders of the comparison of attacks: real ones, some that are trained on the spot, and a hash."""

import importlib
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.models.convnext import CNBlockConfig, ConvNeXt

from attacks import load_encoder
from attacks.encoders.engine.batch_norm import fold
from attacks.runtime.files import atomic
from attacks.runtime.progress import Progress
from transforms import Affine, Brightness, Compose, Contrast, resize
from transforms.auditing.steps import seeded
from transforms.draws import Uniform

TRAINED_ENCODERS, REAL_ENCODERS = ("convnext", "vit"), ("lite0", "lite2")
#: Of their training: the side of a view, procedural pictures, steps, cells of a step, and the seed.
SIDE, PICTURES, STEPS, BATCH, SEED = 64, 120, 250, 64, 7
AUGMENT = Compose([Affine(degrees=20, scale=(0.8, 1.3), translate=0.1), Brightness(0.1), Contrast((0.75, 1.25))])


@lru_cache(maxsize=2)
def network(arch: str, folder: Path, logits: bool = False) -> nn.Module:
    """(N,3,H,W) -> (N,D), frozen: the pocket encoder; one that is trained once and kept in `folder`; a real one, from
    its package, or its `logits`; a perceptual hash, as its bits."""
    if arch == "pocket":
        return load_encoder(arch)
    if arch == "hash":
        return HashBits(load_encoder("phash")).eval()
    if arch in TRAINED_ENCODERS:
        return trained_network(arch, folder).requires_grad_(False)
    real = load_encoder("pypi", arch, output="logits" if logits else "features")
    fold(real)
    return real.to(memory_format=torch.channels_last)


class HashBits(nn.Sequential):
    """The signs of a hash's answers, without gradients."""

    def forward(self, images: Tensor) -> Tensor:
        answers: Tensor = super().forward(images)
        return answers.sign()


class Resized(nn.Module):
    """An encoder of pictures of one side, with values in [-1,1]."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] != SIDE:
            images = nn.functional.interpolate(images, (SIDE, SIDE), mode="bilinear", antialias=True)
        embedding: Tensor = self.encoder(2 * images - 1)
        return embedding


def small_network(arch: str) -> nn.Module:
    """A small ConvNeXt or vision transformer, (N,3,H,W) in [0,1] -> (N,96), the same each time."""
    with seeded(SEED):
        if arch == "vit":
            plain: nn.Module = VisionTransformer(SIDE, 8, 4, 3, 96, 192)
            plain.heads = nn.Identity()
        else:
            blocks = [CNBlockConfig(24, 48, 1), CNBlockConfig(48, 96, 1), CNBlockConfig(96, None, 1)]
            plain = ConvNeXt(blocks, num_classes=96)
    return Resized(plain)


def trained_network(arch: str, folder: Path) -> nn.Module:
    """The encoder in evaluation mode, from its file in `folder`, which is written if it is missing."""
    file, plain = folder / f"{arch}.safetensors", small_network(arch)
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic(file) as part:
            save_file(train_network(arch).state_dict(), part)
    plain.load_state_dict(load_file(file))
    return plain.eval()


def train_network(arch: str, pictures: int = PICTURES, steps: int = STEPS) -> nn.Module:
    """Contrastive (InfoNCE) between a cell of a procedural picture and a view of it, as in the pocket encoder's
    training. The same on the same machine."""
    training = importlib.import_module(f"{__package__.rpartition('benchmarks')[0]}pocket.training")
    procedural = torch.from_numpy(np.stack([training.render_procedural((SEED, i)) for i in range(pictures)]))
    cells = training.Cells(procedural, torch.Generator().manual_seed(SEED))
    network = small_network(arch).train()
    optimiser = torch.optim.AdamW(network.parameters(), 1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-3, total_steps=steps, pct_start=0.1)
    with Progress(f"training {arch}", steps) as progress:
        for step in range(steps):
            pictures_of_step = resize(cells.batch(BATCH), (SIDE, SIDE), "pil_bilinear")
            views = AUGMENT(pictures_of_step, Uniform()(BATCH, AUGMENT.dims, seed=SEED, step=step))
            loss: Tensor = training.contrastive_loss(*network(torch.cat([pictures_of_step, views])).split(BATCH))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            progress.step(loss=float(loss.detach()))
    return network
