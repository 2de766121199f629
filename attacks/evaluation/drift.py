"""Where in a network an embedding drifts: each layer's features of an attacked and a clean picture in one view."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.encoders.layers import OUTPUT, Layers, Pool, Visit, key_in_errors, layer_pools, visits
from attacks.encoders.passes import passes_of
from attacks.encoders.randomness import encoder_draws
from attacks.eot.bank import Bank
from attacks.eot.batching import Pass, in_passes
from attacks.evaluation.clusters import Row, Sample, by_cluster, column_of, grouped
from attacks.evaluation.per_image import has_fit_rows, mean_figures
from attacks.evaluation.scores import signature_method
from attacks.inference.bounded import interval
from attacks.inference.pairs import sign_flips
from attacks.objectives.embedding import similarity
from attacks.runtime.distributed import ALONE, World
from attacks.runtime.values import stored
from attacks.solvers.checks import check_images
from transforms.doors import unchecked
from transforms.scene import Shown, taken

#: The name for all layers, and how many of them are taken at most.
ALL_LAYERS, MAX_LAYERS = "all", 24
#: With fewer layers than this, the next level of names is added.
MIN_LAYERS = 12
#: Number of views: the first ones of the held-out bank.
VIEWS = 32
#: The drift at a flip, as a multiple of that of noise.
NOISE_FACTOR = 2.0
#: The least drift at the output for a flip.
MIN_DRIFT = 0.1


@stored("drift")
@dataclass(frozen=True)
class Drift:
    """The result of `layer_drift`: `cosine[arm]` (L,N,V) of each layer, picture and view. Layers are in the order in
    which they run, the encoder's own answer last. `forward` counts passes; `seconds` is the time it took."""

    layers: tuple[str, ...]
    cosine: dict[str, Tensor]
    forward: int
    seconds: float

    def rows(self, sample: Sample) -> list[dict[str, object]]:
        """A row for each layer, arm and picture of the sample: the mean cosine over its views."""
        return [
            {"layer": layer, "arm": arm, "picture": name, "cluster": cluster, "cosine": cosine}
            for i, layer in enumerate(self.layers)
            for arm, cosines in self.cosine.items()
            for name, cluster, cosine in zip(
                sample.names, sample.clusters, cosines[i].double().mean(1).tolist(), strict=True
            )
        ]


def drift_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of metrics.json: by layer and arm the mean cosine over clusters, and where the embedding flips."""
    units: dict[str, dict[str, Tensor]] = {}
    for (layer, arm), group in grouped(rows, "layer", "arm").items():
        clusters = [str(row["cluster"]) for row in group]
        units.setdefault(layer, {})[arm] = by_cluster(column_of(group, "cosine"), clusters)
    fit = has_fit_rows(rows)
    table = [
        {"layer": layer} | {arm: mean_figures(interval(values, -1), values, fit) for arm, values in arms.items()}
        for layer, arms in units.items()
    ]
    return {"layers": table, "flips": flips(units)}


def flips(cosines: Mapping[str, Mapping[str, Tensor]]) -> str | None:
    """The first layer where the drift (1 - cosine) with EOT is more than half of its drift at the output, and clearly
    above that of noise: at least twice as large, and with an interval (see `sign_flips`) above 0, or a range where
    there are too few clusters. None without such a layer, or where the output drifts by less than 0.1. `cosines` (C,)
    are by layer, the output last, and by arm."""
    end = float((1 - [*cosines.values()][-1]["eot"]).mean())
    for name, arms in cosines.items():
        drift, noise = 1 - arms["eot"], 1 - arms["noise"]
        mean = float(drift.mean())
        if end < MIN_DRIFT or mean <= end / 2 or mean < NOISE_FACTOR * float(noise.mean()):
            continue
        lead = sign_flips(drift, noise).difference
        if lead.low > 0:  # also of a range: one sign
            return name
    return None


@torch.no_grad()
def layer_drift(
    encoder: nn.Module,
    clean: Tensor,
    attacked: Mapping[str, Shown],
    bank: Bank,
    layers: Sequence[str] | Mapping[str, Pool] = (ALL_LAYERS,),
    *,
    chunk: int = 64,
    world: World = ALONE,
) -> Drift:
    """The cosine of each layer's features between attacked and untouched pictures, each pair in the same view.

    Args:
        encoder: in evaluation mode, in full precision.
        clean: (N,3,H,W) in [0,1].
        attacked: arm -> (N,3,H,W), the same pictures after an attack.
        layers: the argument of `layer_order`, or its result.
        chunk: most views in memory at once.
        world: the processes that share the views; each gets all cosines.

    Examples:
        >>> import torch
        >>> from attacks import bank
        >>> from attacks.evaluation import layer_drift
        >>> from transforms import Compose
        >>> from transforms.geometry import Flip
        >>> encoder = torch.nn.Sequential(torch.nn.AvgPool2d(2), torch.nn.Flatten()).eval()
        >>> clean = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> views = bank(Compose([Flip()]), 4, seed=0, purpose="drift")
        >>> drift = layer_drift(encoder, clean, {"eot": 1 - clean}, views)
        >>> drift.layers, drift.cosine["eot"].shape, bool((drift.cosine["eot"] < 1).all())
        (('0', 'output'), torch.Size([2, 2, 4]), True)
    """
    for scene in (clean, *attacked.values()):
        check_images(scene)
    began = time.perf_counter()
    pools = layers if isinstance(layers, Mapping) else layer_order(encoder, layers, clean[:1])
    signature, arms = signature_method(encoder), 1 + len(attacked)

    def cosines_to_clean(name: str, features: Tensor) -> Tensor:
        if name == OUTPUT and signature is not None:
            features = signature(features)
        clean_row, *arm_rows = features.to(torch.promote_types(features.dtype, torch.float32)).chunk(arms)
        return torch.stack([_cosine(other, clean_row) for other in arm_rows])

    cosine = clean.new_zeros(len(pools), len(attacked), len(clean), len(bank.u))
    with Layers(encoder, pools, keep=cosines_to_clean) as layer_cosines:

        def pass_cosines(part: Pass) -> Tensor:
            rows = torch.tensor(part.images)
            u = bank.u[list(part.groups[0])].repeat(len(rows), 1)
            views = [unchecked(bank.transforms)(taken(scene, rows), u) for scene in (clean, *attacked.values())]
            cosines = layer_cosines(torch.cat(views), **encoder_draws(bank.transforms, u.repeat(arms, 1)))
            return torch.stack([cosines[name] for name in pools]).view(len(pools), len(attacked), len(rows), -1)

        mine = world.share(len(bank.u))
        for part, cosines in in_passes(pass_cosines, len(clean), mine, max(1, chunk // arms)):
            cosine[:, :, part.images.start : part.images.stop, part.groups[0]] = cosines.to(cosine)
    world.sum(cosine)
    names = tuple(name if pool == "flat" else f"{name}:{pool}" for name, pool in pools.items())
    by_arm = {arm: cosine[:, j].cpu() for j, arm in enumerate(attacked)}
    forward = passes_of(encoder).of_calls(arms * len(clean) * len(bank.u), 0)[0]
    return Drift(names, by_arm, forward, time.perf_counter() - began)


@torch.no_grad()
def layer_order(encoder: nn.Module, layers: Sequence[str], image: Tensor) -> dict[str, Pool]:
    """The layers and their pools in the order in which they run, as a pass of `image` (1,3,H,W) shows, followed by
    the encoder's output. `layers` are names such as `layer3` or `layer3:mean`; or only "all": level by level of
    names, at most 24, where layers with the same tensor (a Sequential and its last layer) count once. Raises
    ValueError, naming `evaluate.layers`, for an unknown layer, or a pool that does not fit it."""
    image = image.expand(2, *image.shape[1:])  # with one row, an output for all pictures looks like one for each
    layer_visits = visits(encoder, image)
    place = {visit.name: visit.order for visit in layer_visits}
    pools = layer_pools(_sensible(layer_visits) if list(layers) == [ALL_LAYERS] else layers, "evaluate.layers")
    pools[OUTPUT] = pools.get(OUTPUT, "flat")
    with key_in_errors("evaluate.layers"), Layers(encoder, pools) as recorder:
        recorder(image)  # a pool that does not fit its layer fails now, not after the attack
    return {name: pools[name] for name in sorted(pools, key=lambda name: (name == OUTPUT, place[name]))}


def _sensible(layer_visits: list[Visit]) -> list[str]:
    """The names of layers with different outputs by level, at most `MAX_LAYERS`; of too many, some in even steps."""

    def level(visit: Visit) -> int:
        return visit.name.count(".")

    groups: dict[str, list[Visit]] = {}
    for visit in layer_visits:
        if visit.features and visit.calls == 1:
            groups.setdefault(visit.alias or visit.name, []).append(visit)
    groups = {key: group for key, group in groups.items() if all(visit.name != OUTPUT for visit in group)}
    shallow = [min(group, key=level) for group in groups.values()]
    choice: list[Visit] = []
    for depth in sorted(set(map(level, shallow))):
        new = sorted((visit for visit in shallow if level(visit) == depth), key=lambda visit: visit.order)
        room = MAX_LAYERS - len(choice)
        if len(new) > room:  # in even steps, the last one included
            choice += [new[(i + 1) * len(new) // room - 1] for i in range(room if len(choice) < MIN_LAYERS else 0)]
            break
        choice += new
    return [visit.name for visit in choice]


def _cosine(features: Tensor, other: Tensor) -> Tensor:
    """(R,...) twice -> (R,); 1 for equal features, also for the zeros of a dead layer."""
    equal = (features == other).flatten(1).all(1)
    return torch.where(equal, 1.0, similarity(features, other, "cosine"))


def line(drift: Mapping[str, Any]) -> str:
    """A line for the terminal, from the content of metrics.json."""

    def pair(row: Mapping[str, Any]) -> str:
        return ", ".join(f"{arm} {row[arm]['mean']:.3f}" for arm in ("eot", "noise"))

    end, rows = drift["layers"][-1], {row["layer"]: row for row in drift["layers"]}
    flip = rows.get(drift["flips"])
    head = f"drift over {len(rows)} layers: the embedding flips"
    if flip is None:
        return f"{head} nowhere (cosine of the {OUTPUT} {pair(end)})"
    suffix = "" if flip is end else f"; {OUTPUT} {pair(end)}"
    return f"{head} at {flip['layer']} (cosine {pair(flip)}{suffix})"
