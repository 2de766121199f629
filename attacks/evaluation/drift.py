"""Where in a network an embedding goes astray: layer by layer, an attacked picture's features against those of the
untouched picture in the same view."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.layers import OUTPUT, Layers, Pool, Visit, asked, called, visits
from attacks.encoders.randomness import drawn
from attacks.eot.bank import Bank
from attacks.eot.batching import in_parts
from attacks.evaluation.intervals import interval
from attacks.evaluation.scores import signature_of
from attacks.objectives.embedding import similarity
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.stored import stored
from transforms import Scene, Shown, taken
from transforms.compose import view

#: The word for a choice of layers, at most so many.
ALL, MOST = "all", 24
#: With fewer than this, the next level of names is looked at too.
FEW = 12
#: Views of the held-out bank that are looked at, the first ones.
VIEWS = 32
#: An embedding flips where the attack's drift is half of that at the output, and so many times that of noise.
CLEARLY = 2.0
#: With less drift at the output nothing has flipped: half of nothing is reached by anything.
LEAST = 0.1


@stored("drift")
@dataclass(frozen=True)
class Drift:
    """What `layer_drift` finds: `cosine[arm]` (L,N,V) of each layer, picture and view. Layers are in the order in
    which they run, the encoder's own answer last. The passes and seconds are a cost of their own."""

    layers: tuple[str, ...]
    cosine: dict[str, Tensor]
    forward: int
    seconds: float

    def flips(self, arm: str = "eot", beside: str = "noise") -> str | None:
        """The first layer where the drift (1 - cosine) of `arm` passes half of its drift at the output, and is
        clearly above that of `beside`: at least twice as large, and the 95 % interval of the difference (paired by
        picture) above 0. None where there is no such layer, and where the output itself drifts by less than 0.1."""
        drift, other = (1 - self.cosine[name].double() for name in (arm, beside))
        if float(drift[-1].mean()) < LEAST:
            return None
        half = float(drift[-1].mean()) / 2
        for name, own, its in zip(self.layers, drift, other, strict=True):
            clear = float(own.mean()) >= CLEARLY * float(its.mean()) and interval(own - its).low > 0
            if float(own.mean()) > half and clear:
                return name
        return None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for metrics.json."""
        rows = [
            {"layer": name} | {arm: interval(found[i])._asdict() for arm, found in self.cosine.items()}
            for i, name in enumerate(self.layers)
        ]
        views = next(iter(self.cosine.values())).shape[2]
        cost = {"forward": self.forward, "seconds": self.seconds}
        return {"views": views, "layers": rows, "flips": self.flips(), "cost": cost}


@torch.no_grad()
def layer_drift(
    encoder: nn.Module,
    clean: Tensor,
    attacked: Mapping[str, Shown],
    bank: Bank,
    layers: Sequence[str] | Mapping[str, Pool] = (ALL,),
    *,
    chunk: int = 64,
    world: World = ALONE,
) -> Drift:
    """The cosine of each layer's features between attacked and untouched pictures, each pair in the same view.

    The untouched picture and all attacked ones go through the encoder together, and a layer's features become
    cosines as soon as they are there: nothing else is kept of them.

    Args:
        encoder: in evaluation mode, in full precision.
        clean: (N,3,H,W) in [0,1].
        attacked: arm -> (N,3,H,W), the same pictures after an attack.
        bank: the views, all of them (see `Drift.to_dict`: a run takes the first few of its bank).
        layers: as `ordered` takes them, or what it gives.
        chunk: most views in memory at once.
        world: the processes that share the views; each gets all the cosines.
    """
    began = time.perf_counter()
    pools = layers if isinstance(layers, Mapping) else ordered(encoder, layers, clean[:1])
    signature, arms = signature_of(encoder), 1 + len(attacked)

    def compared(name: str, features: Tensor) -> Tensor:
        """(1 + arms) blocks of views, the untouched ones first -> (arms, views)."""
        if name == OUTPUT and signature is not None:
            features = signature(features)
        own, *others = features.to(torch.promote_types(features.dtype, torch.float32)).chunk(arms)
        return torch.stack([_cosine(other, own) for other in others])

    mine = torch.tensor(list(world.share(len(bank.u))), dtype=torch.long, device=bank.u.device)
    found = clean.new_zeros(len(pools), len(attacked), len(clean), len(bank.u))
    with Layers(encoder, pools, keep=compared) as watching:
        for i in range(len(clean)):
            pictures = [taken(shown, i) for shown in (clean, *attacked.values())]

            def look(places: Tensor, pictures: list[Scene] = pictures) -> Tensor:
                seen = [view(bank.transforms, picture, bank.u[places]) for picture in pictures]
                cosines = watching(torch.cat(seen), **drawn(bank.transforms, bank.u[places].repeat(arms, 1)))
                return torch.stack([cosines[name] for name in pools])

            for places, part in in_parts(look, mine, max(1, chunk // arms)):
                found[:, :, i, places.to(found.device)] = part.to(found)
    world.sum(found)
    names = tuple(name if pool == "flat" else f"{name}:{pool}" for name, pool in pools.items())
    passes = arms * len(clean) * len(bank.u)
    return Drift(
        names, {arm: found[:, j].cpu() for j, arm in enumerate(attacked)}, passes, time.perf_counter() - began
    )


@torch.no_grad()
def ordered(encoder: nn.Module, layers: Sequence[str], image: Tensor) -> dict[str, Pool]:
    """The layers and their pools, in the order in which they run, and the encoder's own answer after them.

    Args:
        layers: `layer3`, `layer3:mean`, ...; or only "all": by the levels of their names, while there are at most 24
            of them. A layer that answers with the tensor of another (a Sequential with that of its last layer) stands
            for both.
        image: (1,3,H,W), to see in what order they run.

    Raises:
        ValueError: in the words of `evaluate.layers`: a name or pool that cannot be had.
    """
    image = image.expand(2, *image.shape[1:])  # of one, what a layer says once for all looks like a row for each
    seen = visits(encoder, image)
    place = {visit.name: visit.order for visit in seen}
    pools = asked(_sensible(seen) if list(layers) == [ALL] else layers, "evaluate.layers")
    pools[OUTPUT] = pools.get(OUTPUT, "flat")
    with called("evaluate.layers"), Layers(encoder, pools) as watching:
        watching(image)  # what cannot be pooled so is refused now, and not after the attack
    return {name: pools[name] for name in sorted(pools, key=lambda name: (name == OUTPUT, place[name]))}


def _sensible(seen: list[Visit]) -> list[str]:
    """Layers by name whose answers differ, level by level, while there are at most `MOST`; of a level too many by
    far, some in even steps."""
    groups: dict[str, list[Visit]] = {}
    for visit in seen:
        if visit.features and visit.calls == 1:
            groups.setdefault(visit.same or visit.name, []).append(visit)
    groups = {key: group for key, group in groups.items() if all(visit.name != OUTPUT for visit in group)}
    shallow = [min(group, key=_level) for group in groups.values()]
    found: list[Visit] = []
    for level in sorted({_level(visit) for visit in shallow}):
        new = sorted((visit for visit in shallow if _level(visit) == level), key=lambda visit: visit.order)
        room = MOST - len(found)
        if len(new) > room:
            return [visit.name for visit in (found if len(found) >= FEW else [*found, *_spread(new, room)])]
        found += new
    return [visit.name for visit in found]


def _level(visit: Visit) -> int:
    return visit.name.count(".")


def _spread(some: list[Visit], count: int) -> Iterator[Visit]:
    """`count` of them in even steps, the last one included."""
    return (some[(i + 1) * len(some) // count - 1] for i in range(count))


def _cosine(features: Tensor, other: Tensor) -> Tensor:
    """(R,...) twice -> (R,). Equal features have cosine 1, those of a dead layer, all zero, too."""
    equal = (features == other).flatten(1).all(1)
    return torch.where(equal, 1.0, similarity(features, other, "cosine"))


def words(drift: Mapping[str, Any]) -> str:
    """A line for the terminal, from what metrics.json holds."""
    end, rows = drift["layers"][-1], {row["layer"]: row for row in drift["layers"]}
    at = rows.get(drift["flips"])
    said = f"drift over {len(rows)} layers: the embedding flips"
    if at is None:
        return f"{said} nowhere (cosine of the {OUTPUT} {_pair(end)})"
    after = "" if at is end else f"; {OUTPUT} {_pair(end)}"
    return f"{said} at {at['layer']} (cosine {_pair(at)}{after})"


def _pair(row: Mapping[str, Any]) -> str:
    return ", ".join(f"{arm} {row[arm]['mean']:.3f}" for arm in ("eot", "noise"))
