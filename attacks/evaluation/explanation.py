"""Explanations of a few pictures before and after an attack: input gradients of a picture's likeness, the pixels that
they reach, and Grad-CAM (Selvaraju et al. 2017)."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.encoders.engine.batch_norm import settle_batch_norm
from attacks.encoders.layers import OUTPUT, Visit, named_layers, unwrap, visits
from attacks.encoders.passes import passes_of
from attacks.encoders.preprocess import Preprocess
from attacks.encoders.randomness import encoder_draws
from attacks.encoders.tree import optional
from attacks.eot.bank import Bank
from attacks.eot.batching import in_parts
from attacks.evaluation.clusters import Row, Sample, by_arm, by_cluster, column_of
from attacks.evaluation.per_image import has_fit_rows, mean_figures
from attacks.evaluation.scores import signature_method
from attacks.inference.bounded import Interval, interval
from attacks.objectives.bits import Bits
from attacks.objectives.embedding import similarity
from attacks.runtime.values import stored
from transforms.auditing.coverage import coverage, effective, root_mean_square
from transforms.doors import unchecked
from transforms.scene import scene_of

#: The number of views, the first ones of the bank.
VIEWS = 8


@dataclass
class CountedEncoder:
    """An encoder, and the number of pictures in its forward and backward passes."""

    encoder: nn.Module
    forward: int = 0
    backward: int = 0

    @torch.no_grad()
    def likeness(self, pictures: Tensor, anchors: Tensor) -> Tensor:
        """(R,3,H,W), (R,D) or (1,D) -> (R,): the cosine of the evaluation; of a hash, between bits."""
        features, signature = self._features(pictures), signature_method(self.encoder)
        anchors = anchors.expand_as(features)
        if signature is not None:
            features, anchors = signature(features), signature(anchors)
        return similarity(features, anchors, "cosine")

    def slope_values(self, pictures: Tensor, anchors: Tensor, **draws: Tensor) -> Tensor:
        """(R,3,H,W), (R,D) -> (R,), with a graph: the value whose gradient the maps show.

        The cosine with the length of the embedding held fixed: a picture's cosine to its own embedding is at its
        maximum, where the gradient is zero. Bits have no gradient: of a hash it is the soft share of equal bits."""
        features = self._features(pictures, **draws)
        anchors = anchors.expand_as(features)
        if signature_method(self.encoder) is not None:
            return Bits()(features, anchors)
        length: Tensor = torch.linalg.vector_norm(features.detach(), dim=-1).clamp(min=1e-12)
        return (features * F.normalize(anchors, dim=-1)).sum(-1) / length

    def gradients(self, values: Tensor, at: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradient of the sum of `values` (R,) at each tensor; None where the graph does not reach it."""
        if not values.requires_grad:
            return [None] * len(at)
        self.backward += len(values)
        leaves = [tensor for tensor in at if tensor.requires_grad]
        gradients = iter(torch.autograd.grad(values.sum(), leaves, allow_unused=True) if leaves else ())
        return [next(gradients) if tensor.requires_grad else None for tensor in at]

    def _features(self, pictures: Tensor, **draws: Tensor) -> Tensor:
        self.forward += len(pictures)
        features: Tensor = unchecked(self.encoder)(pictures, **draws)
        return features


def saliency(gradient: Tensor) -> Tensor:
    """(N,C,H,W) -> (N,H,W): the absolute values summed over the channels (Simonyan et al. 2014)."""
    return gradient.detach().abs().sum(1)


@stored("explanation.gradients")
class Reach(NamedTuple):
    """The gradient at N pictures over some views.

    `sensitivity` (N,H,W) is the root mean square length of the gradient at each pixel, 0 in dead zones. `coverage`
    (N,) is the share of pixels with a gradient in any view, and `view` (N,) that in one view, on average. `effective`
    (N,) is the participation ratio of the sensitivities: 1 if all are equal, near 0 if few pixels have all.
    """

    sensitivity: Tensor
    coverage: Tensor
    view: Tensor
    effective: Tensor


def reach(encoder: CountedEncoder, pictures: Tensor, anchors: Tensor, bank: Bank, chunk: int) -> Reach | None:
    """The gradient of the similarity in the first views of `bank` at the pictures (N,3,H,W), `chunk` views a time."""
    u = bank.u[:VIEWS].to(pictures)
    rows: list[tuple[Tensor, ...]] = []

    def view_gradients(points: Tensor, picture: Tensor, anchor: Tensor) -> list[Tensor | None]:
        # One copy for each view gives one gradient for each.
        leaf = picture.detach().repeat(len(points), 1, 1, 1).requires_grad_()
        with torch.enable_grad():
            views = unchecked(bank.transforms)(scene_of(leaf), points)
            values = encoder.slope_values(views, anchor[None], **encoder_draws(bank.transforms, points))
            return encoder.gradients(values, [leaf])

    for picture, anchor in zip(pictures, anchors, strict=True):
        parts = []
        for _, (gradient,) in in_parts(partial(view_gradients, picture=picture, anchor=anchor), u, chunk):
            if gradient is None:
                return None
            parts.append(gradient.nan_to_num(0, 0, 0))
        maps = torch.cat(parts).double().norm(dim=1).cpu()
        weights = root_mean_square(list(maps))
        numbers = coverage(weights), sum(map(coverage, maps)) / len(maps), effective(weights)
        rows.append((weights, *map(torch.tensor, numbers)))
    return Reach(*(torch.stack(column) for column in zip(*rows, strict=True)))


Size = tuple[int, int]

#: The most tokens before the patches: class, distillation, registers.
PREFIX = 8
#: The largest ratio between the aspects of a map and of the picture, which differ by rounding.
ASPECT_RATIO = 1.6
#: The number of layers tried, from the last one.
MAX_TRIALS = 48


def attribution(
    encoder: CountedEncoder, pictures: Tensor, anchors: Tensor, layer: str | None
) -> tuple[Tensor | None, Tensor | None]:
    """The gradient (N,3,H,W) of the similarity and the layer's Grad-CAM (N,h,w), not negative; None for none."""
    leaf = pictures.detach().clone().requires_grad_()
    with torch.enable_grad(), _recording(encoder.encoder, [] if layer is None else [layer]) as answers:
        values = encoder.slope_values(leaf, anchors)
        gradient, *layer_gradients = encoder.gradients(values, [leaf, *answers.values()])
    if layer is None or layer_gradients[0] is None:
        return gradient, None
    frame = input_frame(encoder.encoder, (pictures.shape[2], pictures.shape[3]))
    answer, slope = (places(maps, frame) for maps in (answers[layer].detach(), layer_gradients[0]))
    return gradient, (slope.mean((2, 3), keepdim=True) * answer).sum(1).relu()


def spatial_layer(encoder: CountedEncoder, pictures: Tensor, anchors: Tensor) -> str | None:
    """The last spatial layer on whose positions the embedding depends, or None. (A transformer that reads only its
    class token does not depend on the other tokens after its last attention.)"""
    # With one row, an output for all pictures would look like one for each.
    pictures, anchors = (rows[:1].expand(2, *rows.shape[1:]) for rows in (pictures, anchors))
    frame = input_frame(encoder.encoder, (pictures.shape[2], pictures.shape[3]))
    names = _candidates(visits(encoder.encoder, pictures), frame)[-MAX_TRIALS:]
    encoder.forward += len(pictures)
    if not names:
        return None
    leaf = pictures.detach().clone().requires_grad_()
    with torch.enable_grad(), _recording(encoder.encoder, names) as answers:
        values = encoder.slope_values(leaf, anchors)
        gradients = encoder.gradients(values, [answers[name] for name in names])
    pairs = zip(names[::-1], gradients[::-1], strict=True)
    return next((name for name, slope in pairs if slope is not None and bool(places(slope, frame).any())), None)


def places(answer: Tensor, frame: Size) -> Tensor:
    """A layer's output, maps (N,C,h,w) or (N,h,w,C) or tokens (N,T,D), as maps (N,C,h,w)."""
    if answer.dim() == 3:
        prefix, side = _patches(answer.shape[1])
        return answer[:, prefix:].transpose(1, 2).reshape(len(answer), -1, side, side)
    return answer.movedim(3, 1) if _has_channels_at_end(tuple(answer.shape), frame) else answer


def on_picture(cam: Tensor, encoder: nn.Module, size: Size) -> Tensor:
    """A Grad-CAM (N,h,w) resized to pictures of `size`; 0 outside the encoder's crop."""
    spec = optional(unwrap(encoder), "preprocess")
    resized = spec.resized(*size) if isinstance(spec, Preprocess) else size
    axes, inside = [], []
    for has, long, wants in zip(size, resized, input_frame(encoder, size), strict=True):
        spare = long - wants
        nearest = isinstance(spec, Preprocess) and spec.centre == "nearest" and spare > 0
        offset = round(spare / 2) if nearest else int(spare / 2)
        at = ((torch.arange(has, device=cam.device) + 0.5) * long / has - offset) / wants
        axes.append(2 * at.to(cam) - 1)
        inside.append((at >= 0) & (at <= 1))
    y, x = torch.meshgrid(*axes, indexing="ij")
    grid = torch.stack([x, y], dim=2).expand(len(cam), -1, -1, -1)
    wide = F.grid_sample(cam[:, None], grid, padding_mode="border", align_corners=False)[:, 0]
    return wide * (inside[0][:, None] & inside[1]).to(cam)


def input_frame(encoder: nn.Module, size: Size) -> Size:
    """(height, width) of the network's own input, for pictures of `size`."""
    spec = optional(unwrap(encoder), "preprocess")
    return (spec.crop or spec.resized(*size)) if isinstance(spec, Preprocess) else size


def _candidates(layer_visits: Sequence[Visit], frame: Size) -> list[str]:
    """The spatial layers in the order in which they run; layers that return the same tensor count once."""
    single = [visit for visit in layer_visits if visit.features and visit.calls == 1 and visit.name != OUTPUT]
    single = [visit for visit in single if visit.answer is None or len(visit.shape or ()) == 3]
    single.sort(key=lambda visit: visit.order)
    tokens = [v.shape for v in single if v.shape and len(v.shape) == 3 and _patches(v.shape[1])[1] and v.shape[2] > 1]
    counts, width = {shape[1] for shape in tokens}, tokens[-1][2] if tokens else 0
    choice: dict[str, Visit] = {}
    for visit in single:
        shape = visit.shape or ()
        if len(shape) == 3:
            fits = shape in tokens and shape[2] == width  # the residual stream
        else:  # attention weights are no map
            fits = len(shape) == 4 and shape[2] not in counts and _has_map_aspect(shape, frame)
        if fits:
            key = visit.alias or visit.name
            choice[key] = min(choice.get(key, visit), visit, key=lambda candidate: candidate.name.count("."))
    return [visit.name for visit in choice.values()]


def _patches(tokens: int) -> tuple[int, int]:
    """The number of tokens before the patches, and the side of the patches' square; (0, 0) for none."""
    for prefix in range(min(PREFIX, tokens) + 1):
        side = math.isqrt(tokens - prefix)
        if side > 1 and side * side == tokens - prefix:
            return prefix, side
    return 0, 0


def _stretch(height: int, width: int, frame: Size) -> float:
    return abs(math.log(height / width * frame[1] / frame[0]))


def _has_channels_at_end(shape: tuple[int, ...], frame: Size) -> bool:
    """Whether the channels of (N,a,b,c) come last: a x b is closer to the aspect of the frame than b x c."""
    return _stretch(shape[1], shape[2], frame) < _stretch(shape[2], shape[3], frame)


def _has_map_aspect(shape: tuple[int, ...], frame: Size) -> bool:
    height, width = shape[1:3] if _has_channels_at_end(shape, frame) else shape[2:4]
    return min(height, width) > 1 and _stretch(height, width, frame) <= math.log(ASPECT_RATIO)


@contextmanager
def _recording(encoder: nn.Module, names: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """The outputs of layers during a pass. The next layer gets a copy, so that it cannot change them in place."""
    answers: dict[str, Tensor] = {}
    layers = named_layers(encoder)

    def record(name: str, answer: Any) -> Any:
        if isinstance(answer, Tensor):
            answers[name] = answer
            return answer.clone()
        answers[name], *rest = answer  # an attention with its weights
        return type(answer)((answers[name].clone(), *rest)) if type(answer) in (tuple, list) else None

    handles = [
        layers[name].register_forward_hook(lambda _module, _inputs, answer, name=name: record(name, answer))
        for name in names
    ]
    try:
        yield answers
    finally:
        for handle in handles:
            handle.remove()


@stored("explanation.maps")
class Maps(NamedTuple):
    """The N pictures of an arm (N,3,H,W), their `likeness` (N,) to the anchor, gradient map and Grad-CAM (N,H,W)."""

    pictures: Tensor
    likeness: Tensor
    gradient: Tensor | None
    cam: Tensor | None


@stored("explanations")
@dataclass(frozen=True, eq=False)
class Explanations:
    """The result of `explain`. `arms` begins with "clean". `layer` is the layer of Grad-CAM, None if no layer is
    spatial. `reach` is the gradient over views of the clean pictures. `missing` has a line for each part that could
    not be computed. `forward` and `backward` are encoder passes, counted in pictures."""

    arms: dict[str, Maps]
    layer: str | None
    reach: Reach | None
    missing: tuple[str, ...]
    forward: int
    backward: int
    seconds: float

    def rows(self, sample: Sample) -> list[dict[str, object]]:
        """A row for each picture of the sample and each arm; the coverage of the picture is repeated."""
        columns = {} if self.reach is None else self.reach._asdict()
        none = [None] * len(sample.names)
        shares = {name: columns[field].double().tolist() if columns else none for name, field in COVERAGE.items()}
        return [
            {"picture": name, "cluster": cluster, "arm": arm, "likeness": float(maps.likeness[i])}
            | {key: share[i] for key, share in shares.items()}
            for arm, maps in self.arms.items()
            for i, (name, cluster) in enumerate(zip(sample.names, sample.clusters, strict=True))
        ]


#: The shares of `Reach` by their names in tables.
COVERAGE = {"coverage": "coverage", "view_coverage": "view", "effective_coverage": "effective"}


def explanation_summary(rows: Sequence[Row]) -> dict[str, Any]:
    """The content of metrics.json."""
    arms = by_arm(rows)
    clean = arms["clean"]
    clusters = [str(row["cluster"]) for row in clean]
    likeness = dict[str, dict[str, Any]]()
    for arm, table in arms.items():
        column = column_of(table, "likeness")
        likeness[arm] = dict.fromkeys(Interval._fields)
        if bool(column.isfinite().all()):
            values = by_cluster(column, clusters)
            likeness[arm] = mean_figures(interval(values, -1), values, has_fit_rows(rows))
    means = {
        name: None if clean[0][name] in (None, "") else float(by_cluster(column_of(clean, name), clusters).mean())
        for name in COVERAGE
    }
    head = {"pictures": [row["picture"] for row in clean], "clusters": len(set(clusters)), "likeness": likeness}
    return head | means | {"dead": None if means["coverage"] is None else 1 - means["coverage"]}


def explain(
    encoder: nn.Module,
    clean: Tensor,
    attacked_arms: Mapping[str, Tensor],
    anchors: Tensor,
    bank: Bank,
    chunk: int = 32,
) -> Explanations:
    """Explain the likeness of a few pictures (N,3,H,W) in [0,1] to `anchors` (N,D), their clean embeddings or the
    target's, before and after an attack, by arm. The `encoder` is in evaluation mode and full precision; the first
    views of the `bank` show the gradient's coverage; at most `chunk` pictures or views are in memory at once."""
    began, counter, clean = time.perf_counter(), CountedEncoder(encoder), clean.to(anchors.device)
    handles = settle_batch_norm(encoder)
    try:
        layer = spatial_layer(counter, clean, anchors)
        arms = {
            arm: _maps(counter, pictures.to(clean), anchors, layer, chunk)
            for arm, pictures in {"clean": clean, **attacked_arms}.items()
        }
        gradient_reach = reach(counter, clean, anchors, bank, chunk)
    finally:
        for handle in handles:
            handle.remove()
    missing = ["Grad-CAM: no layer with hooks has positions (a hash, or a scripted network)"] if layer is None else []
    if gradient_reach is None:
        missing.append("input gradient and its coverage: the encoder passes no gradient to the picture")
    cost = *passes_of(encoder).of_calls(counter.forward, counter.backward), time.perf_counter() - began
    return Explanations(arms, layer, gradient_reach, tuple(missing), *cost)


def _maps(counter: CountedEncoder, pictures: Tensor, anchors: Tensor, layer: str | None, chunk: int) -> Maps:
    size = (pictures.shape[2], pictures.shape[3])
    indices = torch.arange(len(pictures), device=pictures.device)
    parts = in_parts(lambda rows: attribution(counter, pictures[rows], anchors[rows], layer), indices, chunk)
    columns = zip(*(part for _, part in parts), strict=True)
    gradients, cams = ([part for part in column if part is not None] for column in columns)
    likeness = in_parts(lambda rows: counter.likeness(pictures[rows], anchors[rows]), indices, chunk)
    return Maps(
        pictures.cpu(),
        torch.cat([part for _, part in likeness]).cpu(),
        saliency(torch.cat(gradients)).cpu() if gradients else None,
        on_picture(torch.cat(cams), counter.encoder, size).cpu() if cams else None,
    )
