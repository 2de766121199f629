"""The input of every contestant of the comparison of attacks: pictures, views, an encoder that counts, a budget."""

import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torchvision
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from attacks import L2, Away, Linf, bank, load_encoder
from attacks.data.gallery import tiles
from attacks.data.listing import IMAGENET20
from attacks.data.pictures import read_files
from attacks.encoders.engine.batch_norm import fold
from attacks.eot.bank import Bank
from attacks.perturbations.ball import Ball
from attacks.runtime.progress import Progress
from attacks.study.pipeline import preset
from transforms import Affine, Brightness, Compose, Contrast, Downscale, Jpeg, resize
from transforms.camera import GaussianBlur
from transforms.draws import Uniform, stream

from .case import CentredEncoder, GradientCase, Normalised, encoder
from .contest import Counting

#: Of pictures; of those that a real encoder is shown.
SIZE, REAL_SIZE = 64, 224
#: Pictures that the peers' settings are chosen on; none of them is attacked for the table.
SCREEN_PICTURES = 4
#: Views of which the mean embedding of an encoder without training is taken, and its statistics of batch norm.
CENTRE = 64
SEED = 2
#: Of the small encoder: procedural pictures, steps, cells of a step (two minutes of one core), and its seed.
PICTURES, STEPS, BATCH, SMALL_SEED = 120, 250, 96, 7
AUGMENT = Compose([Affine(degrees=20, scale=(0.8, 1.3), translate=0.1), Brightness(0.1), Contrast((0.75, 1.25))])

VIEWS: dict[str, Callable[[], Compose]] = {
    "camera": lambda: preset("camera"),
    "di": lambda: preset("di"),
    "eot2d": lambda: preset("eot2d"),
    "strong": lambda: Compose([Affine(degrees=60, scale=(0.8, 1.2)), GaussianBlur((0, 1)), Jpeg((40, 90))]),
    "tiny": lambda: Compose([Affine(degrees=5, translate=0.05), Downscale((12, 24))]),
}
#: The picture itself, for attacks that only ask.
QUERY_VIEWS: dict[str, Callable[[], Compose]] = {"none": Compose}
#: Those of encoders with weights of ImageNet.
REAL_VIEWS: dict[str, Callable[[], Compose]] = {
    "camera": VIEWS["camera"],
    "web": lambda: preset("web"),
    "downscale": lambda: Compose([Affine(degrees=5, translate=0.05), Downscale((56, 168))]),
    "jpeg": lambda: Compose([Affine(translate=0.02), Jpeg((30, 90))]),
}
BALLS: dict[str, Ball] = {f"linf{levels}": Linf(levels / 255) for levels in (2, 4, 8)} | {"l2": L2(1.5)}
ENCODERS = ("pocket", "resnet18", "mobilenet_v3_small", "vit_tiny", "small")
REAL_ENCODERS = ("lite0", "lite2")


@lru_cache(maxsize=2)
def network(arch: str, folder: Path) -> nn.Module:
    """(N,3,H,W) -> (N,D), frozen: the pocket encoder; a small one that is trained once and kept in `folder`; a real
    one, from its package; a perceptual hash, as its bits; or one with random weights, centred. Of
    `mobilenet_v3_small` batch norm's statistics are those of the same views."""
    if arch == "pocket":
        return encoder(arch).requires_grad_(False)
    if arch == "small":
        return small(folder).requires_grad_(False)
    if arch == "hash":
        return HashBits(load_encoder("phash")).eval()
    if arch in REAL_ENCODERS:
        real = load_encoder("pypi", arch)
        fold(real)
        return real.to(memory_format=torch.channels_last)
    views = preset("camera")
    views_of_pictures = views(tiles(SIZE).spread(CENTRE).images, bank(views, CENTRE, seed=0, purpose="centre").u)
    plain = random_encoder(arch).requires_grad_(False)
    if arch == "mobilenet_v3_small":
        update_bn([views_of_pictures], plain)  # those of a new network are far off, and its embedding hardly moves
    return CentredEncoder(plain, views_of_pictures).eval()


def random_encoder(arch: str) -> nn.Module:
    """An encoder of torchvision with random weights, the same each time."""
    if arch == "resnet18":
        return encoder(arch)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if arch == "vit_tiny":
            network = torchvision.models.VisionTransformer(SIZE, 8, 4, 3, 96, 192)
            network.heads = nn.Identity()
            return Resized(Normalised(network), SIZE).eval()
        network = torchvision.models.get_model(arch, weights=None)
    network.classifier = nn.Identity()
    return Normalised(network).eval()


class HashBits(nn.Module):
    """The signs of a hash's answers, without gradients."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> Tensor:
        answers: Tensor = self.encoder(images)
        return answers.sign()


class Resized(nn.Module):
    """An encoder of pictures of one size."""

    def __init__(self, encoder: nn.Module, size: int) -> None:
        super().__init__()
        self.encoder, self.size = encoder, size

    def forward(self, images: Tensor) -> Tensor:
        if images.shape[-1] != self.size:
            images = nn.functional.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)
        embedding: Tensor = self.encoder(images)
        return embedding


@lru_cache(maxsize=2)
def strength_pictures(count: int, purpose: str, arch: str = "pocket") -> Tensor:
    """`count` pictures (N,3,S,S) to attack for the "table", or SCREEN_PICTURES others to choose settings on
    ("screen"), or the "first" of these. The former are spread evenly over all tiles, the latter over the gaps; of a
    real encoder the former are the first of the labelled photographs."""
    if arch in REAL_ENCODERS and purpose == "table":
        photographs = read_files(IMAGENET20, REAL_SIZE)
        return torch.stack([photographs.load(i) for i in range(count)])
    all_tiles = tiles(REAL_SIZE if arch in REAL_ENCODERS else SIZE).spread(2 * count).images
    if purpose == "table":
        return all_tiles[::2]
    screen_count = min(SCREEN_PICTURES, count)
    screen_tiles = all_tiles[[2 * (i * count // screen_count) + 1 for i in range(screen_count)]]
    return screen_tiles[:1] if purpose == "first" else screen_tiles


@dataclass(frozen=True, kw_only=True)
class StrengthTask(GradientCase):
    """Several pictures (B,3,S,S) that are attacked together within `ball`: a contestant lowers, for each, the mean
    cosine of its views to its own embedding, with `evals` gradients of one view each. `u` is not used: a contestant
    draws its own views of `views`, from `seed`."""

    ball: Ball
    views: Compose
    evals: int
    seed: int

    @property
    def counter(self) -> Counting:
        assert isinstance(self.frozen, Counting)
        return self.frozen

    def file(self, images: Tensor) -> Tensor:
        """The attacked pictures as their 8-bit files hold them, brought into the ball first."""
        return self.image + self.ball.quantise(self.ball.project(images - self.image, self.image), self.image)

    def score(self, images: Tensor, views: Bank) -> Tensor:
        """(B,3,S,S) -> the cosine (B,V) of each view of its file to the untouched picture."""
        return views.losses(self.file(images), self.anchor, self.counter.encoder, Away(), 128)


def task(frozen: nn.Module, images: Tensor, ball: str, views: Compose, evals: int, seed: int) -> StrengthTask:
    """The task of some pictures, with an encoder that counts."""
    counting = Counting(frozen).eval()
    with torch.no_grad():
        anchor = frozen(images)
    no_points, ball_of_task = images.new_zeros(0, views.dims), BALLS[ball]
    start = stream(seed, "strength")
    return StrengthTask(
        images,
        no_points,
        counting,
        counting,
        anchor,
        ball_of_task.reach,
        ball=ball_of_task,
        views=views,
        evals=evals,
        seed=start,
    )


def strength_bank(views: Compose, count: int, purpose: str) -> Bank:
    """Views that no attack has seen; settings are chosen on others than those that judge."""
    return bank(views, count, seed=SEED, purpose="evaluate" if purpose == "table" else "screen")


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
        save_file(train_small().state_dict(), part)
        part.rename(file)
    network.load_state_dict(load_file(file))
    return network.eval()


def train_small(pictures: int = PICTURES, steps: int = STEPS) -> Small:
    """Contrastive (InfoNCE) between a cell of a procedural picture and a view of it, as in the pocket
    encoder's training. The same on the same machine."""
    training = importlib.import_module(f"{__package__.rpartition('benchmarks')[0]}pocket.training")
    procedural = torch.from_numpy(np.stack([training.render_procedural((SMALL_SEED, i)) for i in range(pictures)]))
    cells = training.Cells(procedural, torch.Generator().manual_seed(SMALL_SEED))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SMALL_SEED)
        network = Small().train()
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    with Progress("training the small encoder", steps) as progress:
        for step in range(steps):
            views_of_pictures = resize(cells.batch(BATCH), (64, 64), "pil_bilinear")
            views = AUGMENT(views_of_pictures, Uniform()(BATCH, AUGMENT.dims, seed=SMALL_SEED, step=step))
            loss: Tensor = training.contrastive_loss(*network(torch.cat([views_of_pictures, views])).split(BATCH))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            progress.step(loss=float(loss.detach()))
    return network
