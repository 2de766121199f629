"""What is asked in a run: its parts and settings, made once from a configuration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attacks.data.gallery import Gallery, Pictures
from attacks.data.split import FIT
from attacks.encoders.defended import Defence
from attacks.encoders.passes import passes_of
from attacks.encoders.randomness import EncoderDraws, randomised
from attacks.eot import risk
from attacks.eot.adaptive import Adaptive
from attacks.eot.protocols import Optimiser, Penalty, Perturbation, Proposer
from attacks.evaluation.classes import Classes
from attacks.evaluation.scores import Acceptance
from attacks.perturbations.keyframes import between
from attacks.perturbations.patch.physical_patch import PhysicalPatch
from attacks.resizers.pipeline import Pipeline
from attacks.schema.encoder import SAMPLING
from attacks.schema.groups import SanityConfig
from attacks.schema.objective import LayersConfig
from attacks.schema.run import EvaluateConfig
from attacks.solvers.worst import Adversary
from transforms import Compose
from transforms.draws import Draws
from transforms.wrappers import OnLayers

#: The arms of an experiment, in the order of its tables. `noise` has the same budget without optimisation; `no_eot`
#: the same optimiser and at most as many gradients, of the untransformed picture (if `eot` sees anything else); the
#: optional `one_view` as many gradients, of one random view per step. These three choose iterates on the same views.
#: `bare`, of a defence that draws anew, is made on the encoder within it, with as many passes as `eot`, which begins
#: at its result where that is the better start.
ARMS = ("clean", "noise", "no_eot", "one_view", "bare", "eot")
BARE = "bare"


@dataclass(frozen=True)
class Views:
    """How an attack spends its gradients: each step has `per_step` views of every picture or, where `adaptive`
    chooses their number, blocks of so many; and there are at most so many `steps`."""

    per_step: int
    steps: int
    adaptive: Adaptive | None = None

    @property
    def gradients(self) -> int:
        """The number of gradients of a picture."""
        return self.per_step * self.steps

    @property
    def several(self) -> bool:
        """Whether a step may have more than one."""
        return self.per_step > 1 or (self.adaptive is not None and self.gradients >= 2 * self.adaptive.steps)


@dataclass(frozen=True)
class Attack:
    """How pictures are attacked.

    Args:
        name: single, suite or radius.
        optimiser: the name of the optimiser, for the trace.
        stop: the loss, as it is shown, at which a picture is left; None: never.
        nearest: of a suite, the impostors that are targets in turn; None: no suite.
        pictures: of a step; None: all.
        prices: of a detector's score, of one attack after another; 0 without a detector.
    """

    name: str
    optimiser: str
    views: Views
    restarts: int = 1
    stop: float | None = None
    adversary: Adversary | None = None
    nearest: int | None = None
    pictures: int | None = None
    prices: tuple[float, ...] = (0.0,)

    @property
    def sampled(self) -> bool:
        """Whether the views of a step are losses from which the optimiser estimates a gradient."""
        return self.optimiser in SAMPLING


@dataclass(frozen=True, eq=False)
class Study:
    """Everything that an experiment is made of. `queries` are attacked, `gallery` is what a view can be taken for,
    and `truth` (N,) is each query's row there; `goal` (N,) is the row that the attacker wants, or None (any other).
    The `objective` is as configured (see `aim_of`), `identity` is the encoder's, `threat` that of metrics.json."""

    seed: int
    attack: Attack
    objective: Any
    evaluate: EvaluateConfig
    sanity: SanityConfig
    encoder: nn.Module
    perturbation: Perturbation
    optimiser: Optimiser | Proposer
    penalty: Penalty | None
    transforms: Compose
    draws: Draws
    risk: risk.Risk
    queries: Pictures
    gallery: Gallery | Classes
    truth: Tensor
    goal: Tensor | None
    device: torch.device
    identity: dict[str, Any]
    threat: dict[str, Any]
    patch: PhysicalPatch | None = None
    members: tuple[nn.Module, ...] = ()  # encoders that are attacked together with `encoder`
    acceptance: Acceptance | None = None  # of a verification
    start: Tensor | None = None  # where the arm `eot` begins, a delta of each query or one for all
    places: Tensor | None = None  # of clips, where each picture stands between key frames: `keyframe_places`
    fit: "Study | None" = None  # of the pictures that minibatches are drawn from, none of them in memory
    pipeline: Pipeline | None = None  # None also where it is a function that this process was not given
    remake: Callable[[Pictures], Perturbation] | None = None  # the set of pictures of their own shape, once read

    @property
    def views(self) -> Views:
        """How the attack spends its gradients."""
        return self.attack.views

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms, in the order of the tables. There is no `no_eot`, and no `one_view`, where `eot` is that itself,
        nor `one_view` of NES and its like, whose views are the losses of a step. Without a camera `bare` is made for
        the file alone, and `no_eot` would be so again."""
        several = (self.views.several or self.attack.adversary is not None) and not self.attack.sampled
        one_view = self.evaluate.one_view and several and self.transforms.dims > 0
        bare = self.bare
        camera = (bare or self).transforms
        no_eot = camera.dims > 0 or any(not isinstance(stage, OnLayers) for stage in camera.stages)
        optional = {"one_view": one_view, "no_eot": no_eot, BARE: bare is not None}
        return tuple(arm for arm in ARMS if optional.get(arm, True))

    @property
    def bare(self) -> "Study | None":
        """The same of the encoder within a defence that draws anew: the camera without the defence's draws, and steps
        for as many passes of the network. None without such a defence, or where hooks on its layers are attacked."""
        defence = self.encoder
        if not (isinstance(defence, Defence) and defence.has_fresh_draws) or isinstance(self.objective, LayersConfig):
            return None
        stages = [stage for stage in self.transforms.stages if not isinstance(stage, EncoderDraws)]
        transforms = randomised(replace(self.transforms, stages=stages), defence.encoder)
        slopes = 1 - self.optimiser.gradient_free
        encoders = (passes_of(defence), passes_of(defence.encoder))
        passes, plain = (sum(part.of_calls(1, slopes)) + len(self.members) * (1 + slopes) for part in encoders)
        views = replace(self.views, steps=self.views.steps * len(self.attack.prices) * passes // plain)
        if not transforms.dims and not self.attack.sampled:  # all views are the same: a step needs one
            views = Views(1, views.gradients)
        attack, fit = replace(self.attack, views=views, prices=(0.0,)), None if self.fit is None else self.fit.bare
        return replace(self, encoder=defence.encoder, transforms=transforms, attack=attack, fit=fit, start=None)

    @property
    def right(self) -> tuple[Tensor, Tensor | None, Tensor | None, bool]:
        """Each picture's row of the gallery and the target's, the identity of each row, and whether the rows are
        texts: the end of `Knowledge`."""
        texts = isinstance(self.gallery, Classes) and not self.gallery.logits
        return self.truth, self.goal, self.gallery.label_numbers, texts

    @property
    def sides(self) -> dict[str, list[str]] | None:
        """The names of the pictures that are fit, and judge; None where each has a perturbation of its own."""
        sides = self.queries.sides
        return sides if sides is None or self.fit is None else sides | {FIT: [*self.fit.queries.names]}

    @property
    def duplicates(self) -> list[dict[str, object]]:
        """The rows of duplicates.csv: near duplicates among the run's pictures; without any there is no file."""
        return [pair._asdict() for pair in getattr(self.gallery, "duplicates", ())]

    @property
    def ranges(self) -> list[range]:
        """The pictures that are attacked together: clips, or all without `evaluate.batch` and if they share a
        perturbation. Of pictures on disk those of one shape, so many as fit into memory."""
        if self.places is not None:
            return self.queries.clips
        count, batch = len(self.queries), self.evaluate.batch
        limit = count if batch is None or self.perturbation.shared else batch
        return self.queries.ranges(limit)

    def take(self, rows: Sequence[int]) -> "Study":
        """The same of the pictures `rows`. Those on disk stay there."""
        index = torch.tensor(list(rows))
        goal, places = (None if column is None else column[index] for column in (self.goal, self.places))
        start = self.start if self.start is None or self.perturbation.shared else self.start[index]
        parts: dict[str, Any] = {"queries": self.queries.take(rows), "perturbation": self.perturbation.take(index)}
        return replace(self, truth=self.truth[index], goal=goal, start=start, places=places, **parts)

    def only(self, rows: Sequence[int]) -> "Study":
        """The same in memory, of pictures of one shape."""
        study = self.take(rows)
        if self.queries.store is None:
            return study
        queries = self.queries.only(rows)
        perturbation = study.perturbation if self.remake is None else self.remake(queries)
        return replace(study, queries=queries, perturbation=perturbation)

    def tied(self) -> "Study":
        """The same with the set that its pictures are attacked in: of clips one delta for all, in key frames."""
        ball: Any = self.perturbation
        return self if self.places is None else replace(self, perturbation=between(ball, self.places), places=None)
