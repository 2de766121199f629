"""Attacks on an encoder that can only be asked, for equal numbers of queries: ours as shipped, its two parts alone,
and the Square attacks of two libraries. A picture that was asked about before is no new query."""

import hashlib
import importlib
import itertools
import math

import numpy as np
import torch
from torch import Tensor

from attacks import NES, Wiener
from attacks.eot.problem import losses_of_a_step
from attacks.objectives.bits import Bits
from attacks.optimisers import NESSquare
from attacks.optimisers.square import Square

from .contest import OURS, Setting
from .peers import first_class
from .strength_case import StrengthTask
from .strength_encoders import HashBits
from .strength_peers import MeanOfViews, contestant, our_loop, step_count

#: What any of them could reach: our default with the encoder's gradients, and their number.
WHITE_BOX, GRADIENTS = "with gradients", 100


def nes_square(task: StrengthTask, _: Setting) -> Tensor:
    """The default for encoders that can only be asked."""
    losses = losses_of_a_step(task.evals)
    return our_loop(task, NESSquare(), losses, task.evals // losses)


def nes(task: StrengthTask, setting: Setting) -> Tensor:
    """NES with `size` frequencies along each axis."""
    optimiser = NES(keep=int(setting.size), rel_step_size=setting.step)
    return our_loop(task, optimiser, setting.views, step_count(task, setting))


def square_windows(task: StrengthTask, setting: Setting) -> Tensor:
    """Our Square attack, whose first window has a share `size` of the picture."""
    views = setting.views if task.views.dims else 1
    return our_loop(task, Square(setting.size), views, task.evals // views)


def white_box(task: StrengthTask, _: Setting) -> Tensor:
    """Our default optimiser, with gradients; of a hash with those of its bits."""
    encoder = task.counter.encoder
    options = {"encoder": encoder[0], "objective": Bits()} if isinstance(encoder, HashBits) else {}
    return our_loop(task, Wiener(), 1, GRADIENTS, **options)


def torchattacks_square(task: StrengthTask, setting: Setting) -> Tensor:
    """torchattacks' `Square`. Called below its public function, which returns no picture that is not misclassified;
    and nothing is, with a class whose logit is always lower."""
    views = setting.views if task.views.dims else 1
    model = MeanOfViews(task, views)

    def logits(images: Tensor) -> Tensor:
        mean = model(images)[:, 0]
        return torch.stack([mean, torch.full_like(mean, -2)], 1)

    library = importlib.import_module("torchattacks")
    attack = library.Square(logits, eps=task.eps, n_queries=task.evals // views - 1, p_init=setting.size)
    attack.set_device("cpu")
    attack.init_hyperparam(task.image)
    result: tuple[Tensor, Tensor] = attack.attack_single_run(task.image, first_class(task))
    return result[1]


def art_square(task: StrengthTask, setting: Setting) -> Tensor:
    """ART's `SquareAttack`. It computes the loss of its best pictures anew in each iteration, which costs queries
    where views are drawn; elsewhere they are remembered."""
    views, answers = setting.views if task.views.dims else 1, dict[str, Tensor]()
    model = MeanOfViews(task, views)

    def losses(pictures: np.ndarray, _: np.ndarray) -> np.ndarray:
        keys = [hashlib.sha256(row.tobytes()).hexdigest() for row in pictures]
        if task.views.dims or not all(key in answers for key in keys):
            with torch.no_grad():
                answers.update(zip(keys, model(torch.from_numpy(pictures))[:, 0], strict=True))
        return np.array([float(answers[key]) for key in keys])

    make = importlib.import_module("art.estimators.classification").BlackBoxClassifierNeuralNetwork
    classes = np.tile(np.array([1, 0], np.float32), (len(task.image), 1))
    classifier = make(lambda _: classes, task.image.shape[1:], 2, channels_first=True, clip_values=(0, 1))
    count = task.evals // (views * (2 if task.views.dims else 1)) - 2
    attack = importlib.import_module("art.attacks.evasion").SquareAttack(
        classifier,
        norm=math.inf,
        adv_criterion=lambda _, y: np.zeros(len(y), dtype=bool),
        loss=losses,
        max_iter=count,
        eps=task.eps,
        p_init=setting.size,
        batch_size=len(classes),
        verbose=False,
    )
    return torch.from_numpy(attack.generate(task.image.numpy(), classes))


WINDOWS = tuple(Setting(0, n, size=size) for n, size in itertools.product((1, 4), (0.8, 0.3, 0.1)))
NES_SETTINGS = (Setting(a, n, size=keep) for a, n, keep in itertools.product((0.3, 0.6), (10, 20), (4, 8, 16)))
#: Ours has one setting.
QUERY_CONTESTANTS = {
    OURS: contestant("attacks", nes_square, Setting(0, 1)),
    "NES": contestant("attacks", nes, *NES_SETTINGS),
    "Square": contestant("attacks", square_windows, *WINDOWS),
    "ART Square": contestant("art", art_square, *WINDOWS),
    "torchattacks Square": contestant("torchattacks", torchattacks_square, *WINDOWS),
    WHITE_BOX: contestant("attacks", white_box, Setting(0, 1)),
}
