"""What all units of a run share: encoders and their cost, the judge, the held-out views, and the run directory."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from attacks.data.images import file_names
from attacks.encoders.black_box.asked import black_box, refuse_unanswered
from attacks.encoders.engine import Decision, prepare
from attacks.encoders.layers import Pool
from attacks.encoders.passes import CountedCalls
from attacks.encoders.tree import optional
from attacks.eot.bank import Bank, bank
from attacks.evaluation.classes import Classes
from attacks.evaluation.detection import score_limits
from attacks.evaluation.drift import layer_order
from attacks.evaluation.judge import Judge
from attacks.evaluation.scores import embed_pictures, signature_method
from attacks.experiment.embeddings import Cache, embed_gallery
from attacks.experiment.exhibits import Exhibits
from attacks.objectives.composite import Ensemble
from attacks.runtime.checkpoint import NOWHERE, Checkpoint
from attacks.runtime.command_line import print_notes
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.progress import SILENT, Progress
from attacks.runtime.values import stored
from attacks.solvers.loop import Trace
from attacks.study.study import BARE, Study
from transforms.wrappers import widened


@stored("cost")
@dataclass(frozen=True)
class Cost:
    """Passes of the encoder's network, one a view unless a defence takes several, and seconds. Of these, `selection`
    forward passes and `selection_seconds` chose among iterates."""

    forward: int = 0
    backward: int = 0
    seconds: float = 0.0
    selection: int = 0
    selection_seconds: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class Meter:
    """Counts the passes of some encoders on all processes, and the seconds, between readings."""

    def __init__(self, encoders: Iterable[CountedCalls], world: World) -> None:
        self.encoders = list({id(encoder): encoder for encoder in encoders}.values())
        self.world = world
        self.choices = 0, 0.0  # passes and seconds of choosing, so far
        self.reading, self.offset = self._read_counters(), Cost()

    def read(self) -> Cost:
        """The cost since the last reading. Every process must call this."""
        cost = self.peek()
        self.reading, self.offset = self._read_counters(), Cost()
        return cost

    def peek(self) -> Cost:
        """The same without resetting the meter. Every process must call this."""
        reading = self._read_counters()
        counts = torch.tensor([b - a for a, b in zip(self.reading[0], reading[0], strict=True)], dtype=torch.long)
        self.world.sum(counts)
        forward, backward, selection = counts.tolist()
        seconds, choosing = (b - a for a, b in zip(self.reading[1], reading[1], strict=True))
        return self.offset + Cost(forward, backward, seconds, selection, choosing)

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """What is counted within is counted as spent on choosing among iterates too."""
        (forward, *_), (began, _) = self._read_counters()
        yield
        (after, *_), (ended, _) = self._read_counters()
        self.choices = self.choices[0] + after - forward, self.choices[1] + ended - began

    def begin(self, offset: Cost) -> None:
        """Start from now, with the cost `offset` of the run before it was interrupted."""
        self.reading, self.offset = self._read_counters(), offset

    def _read_counters(self) -> tuple[tuple[int, int, int], tuple[float, float]]:
        counts = [encoder.count for encoder in self.encoders]
        forward, backward = (sum(getattr(count, key) for count in counts) for key in ("forward", "backward"))
        return (forward, backward, self.choices[0]), (time.perf_counter(), self.choices[1])


#: The banks of views: of the attack's own distribution, and of a wider one.
MAIN, WIDE = "same", "wide"


@dataclass(frozen=True, eq=False)
class Place:
    """Where an experiment runs: its directory, the processes that share it, its checkpoint, a cache of embeddings,
    and a function to call after every step of an attack."""

    out: Path
    world: World = ALONE
    checkpoint: Checkpoint = NOWHERE
    cache: Cache | None = None
    follow: Callable[[Trace], None] | None = None


@dataclass(frozen=True, eq=False)
class Bench:
    """A study ready to run in its `Place`. `costs` are those of what is done, at first of the gallery's embeddings,
    of which `cached` came from a cache."""

    study: Study
    world: World
    checkpoint: Checkpoint
    follow: Callable[[Trace], None] | None
    module: nn.Module  # the encoder, with the layers that the objective reads
    encoder: CountedCalls  # `module` as the engine runs it, for the gradients
    exact: CountedCalls  # `module` in full precision, for the anchors
    counter: CountedCalls  # the plain encoder in full precision, for the scores
    judge: Judge
    banks: dict[str, Bank]
    layers: dict[str, Pool]
    exhibits: Exhibits
    chunk: int
    costs: dict[str, Cost] = field(default_factory=dict)
    cached: int = 0
    bare: "Bench | None" = None  # of `study.bare`: where the arm `bare` is made
    progress: Progress = SILENT

    def under(self, name: str) -> "Bench":
        """The same with the checkpoint of the task `name`."""
        return replace(self, checkpoint=self.checkpoint.under(name))

    def meter(self) -> Meter:
        """A meter of all encoders; some may be the same object."""
        bare = [] if self.bare is None else self.bare.meter().encoders
        return Meter((self.encoder, self.counter, self.exact, *bare), self.world)

    def only(self, rows: Sequence[int]) -> "Bench":
        """The bench of the pictures `rows`."""
        if len(rows) == len(self.study.queries):
            return self
        study, judge, exhibits = self.study.take(rows), self.judge, self.exhibits
        embeddings = judge.own[torch.tensor(list(rows), device=judge.own.device)]
        limits = None if judge.limits is None else judge.limits[list(rows)]
        judge = replace(judge, own=embeddings, truth=study.truth, goal=study.goal, limits=limits)
        names = tuple(exhibits.names[row] for row in rows)
        exhibits = replace(exhibits, names=names, shapes=study.queries.shapes, perturbation=study.perturbation)
        return replace(self, study=study, judge=judge, exhibits=exhibits)

    @property
    def refine_steps(self) -> int:
        """The number of gradient steps toward the worst view. 0 with a target, since an empty view is least like it;
        0 for an encoder without a gradient, compared by its bits or only asked."""
        study = self.study
        lacks_gradient = signature_method(study.encoder) is not None or black_box(study.encoder) is not None
        return 0 if study.goal is not None or lacks_gradient else study.evaluate.refine


def bench_of(study: Study, module: nn.Module, decision: Decision, place: Place) -> Bench:
    """Prepare encoders, gallery, judge and views. `module`: the encoder as `watching_layers` returns it."""
    began, device, chunk = time.perf_counter(), study.device, decision.chunk
    full = replace(decision, precision="float32")
    encoder = CountedCalls(prepare(module, decision))
    is_plain = module is study.encoder and full == decision
    counter = encoder if is_plain else CountedCalls(prepare(study.encoder, full))
    exact = counter if module is study.encoder else CountedCalls(prepare(module, full))
    world, first = place.world, study.queries.only([0]).images.to(device)
    layers = layer_order(study.encoder, study.evaluate.layers, first) if study.evaluate.layers else {}
    gallery, passes, cached, notes = embed_gallery(
        study.gallery, counter.encoder, device, chunk, place.cache, keep=world.first
    )
    if world.first:
        print_notes(notes)
    if black_box(study.encoder) is not None and not isinstance(study.gallery, Classes):
        refuse_unanswered(study.encoder, gallery[torch.arange(len(gallery))], study.gallery.names, "data.gallery")
    anchors = gallery[study.truth]
    if isinstance(study.gallery, Classes):  # its rows are texts
        anchors = embed_pictures(study.queries, counter.encoder, device, chunk)
        passes += len(study.queries)
    right = (study.gallery, study.truth, study.goal, study.evaluate.neighbours)
    limits, alarms = None, optional(study.encoder, "false_alarms")
    if alarms is not None:
        views = bank(study.transforms, study.evaluate.views, seed=study.seed, purpose="detector")
        limits = score_limits(study.queries, counter.encoder, views._replace(u=views.u.to(first)), alarms, chunk)
        passes += len(study.queries) * len(views.u)
    signature = signature_method(study.encoder)
    judge = Judge(counter, anchors, gallery, *right, chunk, world, signature, study.acceptance, limits)
    names = tuple(file_names(study.queries.names))
    exhibits = Exhibits(place.out, names, study.queries.shapes, study.perturbation, device, world)
    cost = Cost(*counter.passes_of_view.of_calls(passes, 0), time.perf_counter() - began)
    bare = None
    if (inner := study.bare) is not None:
        network = Ensemble([inner.encoder, *study.members]) if study.members else inner.encoder
        inner_place = replace(place, checkpoint=place.checkpoint.under(BARE), cache=None)
        bare = bench_of(inner, network, decision, inner_place)
        cost += bare.costs["gallery"]
    cost, cached = place.checkpoint.once("gallery", lambda: (cost, cached))  # as the first attempt measured it
    parts = (module, encoder, exact, counter, judge, banks_of(study, first), layers, exhibits)
    return Bench(study, world, place.checkpoint, place.follow, *parts, chunk, {"gallery": cost}, cached, bare)


def banks_of(study: Study, like: Tensor) -> dict[str, Bank]:
    """Held-out views of the attack's own distribution, and of a wider one if configured."""
    views, transforms = study.evaluate.views, study.transforms
    banks = {MAIN: bank(transforms, views, seed=study.seed, purpose="evaluate")}
    if study.evaluate.wide > 1 and transforms.dims:
        wide = widened(transforms, study.evaluate.wide)
        banks[WIDE] = bank(wide, views, seed=study.seed, purpose="evaluate wide")
    return {name: views_of._replace(u=views_of.u.to(like.dtype)) for name, views_of in banks.items()}
