"""Scores of photographs by the run's encoder and measures, beside the run's own figures and predictions."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from attacks.eot.bank import Bank, bank
from attacks.evaluation.clusters import by_cluster
from attacks.evaluation.judge import Judge
from attacks.evaluation.per_image import comparison_figures
from attacks.evaluation.scores import embed
from attacks.experiment.bench import MAIN
from attacks.experiment.embeddings import BLOCK, embed_gallery
from attacks.experiment.view_scores import NAME, read_scores
from attacks.inference.bounded import Interval, independent_difference, interval
from attacks.physical.colour_fit import ColourFit
from attacks.physical.photo_measure import PhotoMeasurement
from attacks.physical.photos import PhotoFile
from attacks.physical.rectify import Pose
from attacks.physical.views import Rerun
from attacks.study.printer import reprint
from attacks.study.study import Study
from transforms import Compose
from transforms.compose import Homography
from transforms.scene import Scene, Shown, taken

#: As in metrics.json.
MEASURES = ("cosine", "recall_at_1", "success")
#: Those of them that are yes or no.
SHARES = ("recall_at_1", "success")
#: The arms of the run that stand beside any arm's photographs.
OTHER_ARMS = ("noise", "clean")
#: The middle of a cell of the map is so many times as far as that of the one before, or so many degrees from it.
FARTHER, DEGREES = 2 ** (1 / 3), 15


@dataclass(frozen=True, eq=False)
class PhotoScores:
    """For each photograph, or view of the run: the cosine to the picture's clean embedding, whether it is recognised,
    whether the attack succeeded (P,), the number of the picture that it shows, and the name of its nearest picture of
    the gallery (empty for the run's own views). Of clips the means of their frames (see `by_clip`)."""

    cosine: Tensor
    recall_at_1: Tensor
    success: Tensor
    rows: tuple[int, ...]
    nearest: tuple[str, ...] = ()


@torch.no_grad()
def make_judge(study: Study) -> Judge:
    """The judge of a run, on the encoder in its own precision."""
    gallery = embed_gallery(study.gallery, study.encoder, study.device, BLOCK).rows
    embeddings = embed(study.queries.images, study.encoder, study.device)
    assert isinstance(embeddings, Tensor)
    right = (study.gallery, study.truth, study.goal)
    return Judge(study.encoder, embeddings, gallery, *right, neighbours=0, acceptance=study.acceptance)


def score_views(judge: Judge, pictures: Shown, rows: Tensor, bank: Bank) -> PhotoScores:
    """The scores of n pictures with numbers `rows` (n,) from V views, picture by picture (n*V,). Raises
    FloatingPointError if an embedding is not finite."""
    scores = judge(pictures, rows, bank)
    if not bool(scores.cosine.isfinite().all()):
        raise FloatingPointError("the encoder's embedding of a photograph is not finite")
    hit = judge.known.same(scores.nearest, judge.truth[rows, None])
    names = tuple(judge.known.names[row] for row in scores.nearest.flatten().tolist())
    return _flat(scores.cosine, hit, judge.success(scores, rows), rows, names)


def _flat(cosine: Tensor, hit: Tensor, success: Tensor, rows: Tensor, names: tuple[str, ...] = ()) -> PhotoScores:
    """The scores (n,V) of pictures with numbers `rows` (n,) as those of photographs."""
    pictures = tuple(rows.repeat_interleave(cosine.shape[1]).tolist())
    return PhotoScores(cosine.flatten(), hit.flatten(), success.flatten(), pictures, names)


def judge_photos(judge: Judge, measurements: Sequence[PhotoMeasurement]) -> PhotoScores:
    """The scores of photographs, whose views were taken already."""
    views = torch.stack([measurement.view.pixels for measurement in measurements]).to(judge.own.device)
    bank = Bank(Compose([]), torch.zeros(1, 0, device=views.device))
    return score_views(judge, views, torch.tensor([measurement.photo.row for measurement in measurements]), bank)


def by_clip(scores: PhotoScores, photos: Sequence[PhotoFile]) -> PhotoScores:
    """The scores with each clip in place of its frames, which are not independent: with their means."""
    names = [photo.clip or photo.name for photo in photos]
    cosine, hit, success = (by_cluster(getattr(scores, name), names) for name in MEASURES)
    return PhotoScores(cosine, hit, success, tuple(dict(zip(names, scores.rows, strict=True)).values()))


def figures(scores: PhotoScores, clusters: Sequence[str]) -> dict[str, Interval]:
    """The mean of each measure with its interval (see `photo_summary`); `clusters` are of all pictures of the run."""
    places = scores.rows, [clusters[row] for row in scores.rows]
    return {name: photo_summary(getattr(scores, name), *places, -(name not in SHARES)) for name in MEASURES}


def photo_summary(values: Tensor, rows: Sequence[int], clusters: Sequence[str], low: float = -1.0) -> Interval:
    """The mean over clusters of the mean over their pictures of that of their photographs, of (P,) values in
    `low`..1, with its 95 % interval (see `interval`), over clusters; of a single cluster over its pictures, and of a
    single picture over its photographs. `rows` and `clusters` name the picture and the cluster of each."""
    means = _units(values, rows, clusters)
    return interval((means if len(means) > 1 else values.double()).clamp(low, 1), low)


def _units(values: Tensor, rows: Sequence[int], clusters: Sequence[str]) -> Tensor:
    """The means of the units of an interval, by the numbers of their pictures."""
    order, cluster = sorted(range(len(rows)), key=rows.__getitem__), dict(sorted(zip(rows, clusters, strict=True)))
    means = by_cluster(values[order], [str(rows[i]) for i in order])
    return means if len(set(clusters)) == 1 else by_cluster(means, [*cluster.values()])


def photo_difference(photos: PhotoScores, views: PhotoScores, clusters: Sequence[str], name: str) -> dict[str, Any]:
    """The difference in a measure of photographs to the views of the same pictures, for all `MEASURES` at once:
    clusters, or the pictures of one, are paired; of a single picture both are independent groups. `clusters` are
    those of all pictures of the run."""
    parts = [(getattr(scores, name).double().clamp(-1, 1), scores.rows) for scores in (photos, views)]
    first, second = (_units(values, rows, [clusters[row] for row in rows]) for values, rows in parts)
    if len(first) > 1:
        return {"test": "sign flips", **comparison_figures(first, second, False, len(MEASURES))}
    value = independent_difference(parts[0][0], parts[1][0], -(name not in SHARES), tests=len(MEASURES))
    return {"test": "independent groups", "difference": value._asdict(), "needed": None}


def digital(folder: Path, count: int, pictures: Sequence[int], arm: str) -> dict[str, PhotoScores]:
    """The scores of the run's own held-out views of some of its `count` pictures, by arm: `arm` and `OTHER_ARMS`.
    Raises ValueError where scores.safetensors, which is not trusted, does not have them."""
    record = read_scores(folder)
    arms, rows = record.scores[MAIN], torch.tensor(pictures)
    if arm not in arms:
        raise ValueError(f"`{folder / NAME}` must have scores of the arm {arm}: was the run made with it?")
    result = {}
    for name in (name for name in dict.fromkeys((arm, *OTHER_ARMS)) if name in arms):
        cosine, rank, success = arms[name].cosine, arms[name].rank, record.success[MAIN][name]
        valid = cosine.dim() == 2 and len(cosine) == count and cosine.numel() > 0 and success.dtype == torch.bool
        if not (valid and rank is not None and success.shape == cosine.shape and bool((cosine.abs() <= 1.001).all())):
            raise ValueError(
                f"`{folder / NAME}` must have ranks, successes and cosines of -1..1 of {count} pictures in the arm "
                f"{name}; `viewproof verify {folder}` says what has changed"
            )
        result[name] = _flat(cosine[rows], rank[rows] <= 1, success[rows], rows)
    return result


def compare_arms(
    photo_scores: PhotoScores, digital_scores: Mapping[str, PhotoScores], clusters: Sequence[str], arm: str
) -> dict[str, Any]:
    """All photographs beside the run's own figures (`digital`, of the pictures that are photographed), and their
    difference to those of their arm. `clusters` are of all pictures of the run."""
    differences = {name: photo_difference(photo_scores, digital_scores[arm], clusters, name) for name in MEASURES}
    several = len({clusters[row] for row in photo_scores.rows}) > 1
    units = "pictures of one cluster" if len(set(photo_scores.rows)) > 1 else "photographs of one picture"
    return {
        "photographs": _records(figures(photo_scores, clusters)),
        "digital": {name: _records(figures(of_arm, clusters)) for name, of_arm in digital_scores.items()},
        "difference": {name: row["difference"] for name, row in differences.items()},
        **{key: differences[MEASURES[0]][key] for key in ("test", "needed")},
        "intervals": f"95 %, over {'clusters of pictures' if several else units}",
    }


def _records(measures: Mapping[str, Interval]) -> dict[str, dict[str, Any]]:
    return {name: value._asdict() for name, value in measures.items()}


@dataclass(frozen=True, eq=False)
class Poses(Homography):
    """One of several poses of the camera, `matrices` (P,3,3) from view to scene, chosen by its only coordinate."""

    matrices: Tensor = field(repr=False)

    dims: ClassVar[int] = 1
    names: ClassVar[tuple[str, ...]] = ("photograph",)
    discrete: ClassVar[tuple[int, ...]] = (0,)

    def values(self, u: Tensor) -> Tensor:
        """The number of the photograph."""
        return (u * len(self.matrices)).floor()

    def matrix(self, u: Tensor) -> Tensor:
        return self.matrices.to(u)[self.values(u)[:, 0].long()]


@dataclass(frozen=True)
class Prediction:
    """Digital figures of the arm that was photographed, by measure: with the measured `printer`, and in the `poses`
    of the photographs too (None: the patch has no place of its own in the scene, or a picture no known pose)."""

    printer: dict[str, Interval]
    poses: dict[str, Interval] | None

    def to_dict(self, content: dict[str, Any]) -> dict[str, Any]:
        """The entry of photos.json, from the rest of its `content`; `gap` splits the difference of success between
        photographs and digital views."""
        records = content["digital"][content["arm"]], content["photographs"]
        digital, photo_rate = (record["success"]["mean"] for record in records)
        printer = self.printer["success"].mean
        poses = None if self.poses is None else self.poses["success"].mean
        return {
            "printer": _records(self.printer),
            "poses": None if self.poses is None else _records(self.poses),
            "gap": {
                "colour": printer - digital,
                "geometry": None if poses is None else poses - printer,
                "rest": photo_rate - (printer if poses is None else poses),
            },
        }


def predict(
    origin: Rerun, judge: Judge, attacked_pictures: Shown, measurements: Sequence[PhotoMeasurement], fit: ColourFit
) -> Prediction:
    """Judge the run's pictures that were photographed with the patch, `attacked_pictures`, again, in the colours of a
    `fit` to the photographs that are scored (`measurements`)."""
    study, camera = origin.study, reprint(origin.study.transforms, fit.table())
    clusters, pictures = study.queries.clusters, sorted({measurement.photo.row for measurement in measurements})

    def judge_views(views: Compose, rows: Tensor, u: Tensor, quad: int | None = None) -> PhotoScores:
        base, *layers = taken(attacked_pictures, rows).layers
        scene = Scene((base, *(layers if quad is None else [layers[quad]])), origin.patch.size)
        return score_views(judge, scene, rows, Bank(views, u.to(base.pixels.dtype)))

    u = bank(camera, study.evaluate.views, seed=study.seed, purpose="evaluate").u
    printer = figures(judge_views(camera, torch.tensor(pictures), u), clusters)
    with_pose = [measurement for measurement in measurements if measurement.scene is not None]
    if not origin.patch.fixed or {measurement.photo.row for measurement in with_pose} != {*pictures}:
        return Prediction(printer, None)
    times, parts = math.ceil(study.evaluate.views / len(with_pose)), list[PhotoScores]()
    for row, quad in sorted({(measurement.photo.row, measurement.quad) for measurement in with_pose}):
        group = [item for item in with_pose if (item.photo.row, item.quad) == (row, quad)]
        views = with_poses(camera, group)
        u = bank(views, len(group) * times, seed=study.seed, purpose="evaluate").u.clone()
        u[:, views.stages[0].dims] = (torch.arange(len(u)) % len(group) + 0.5) / len(group)
        scores = judge_views(views, torch.tensor([row]), u, quad)  # the one card that they show
        parts.append(by_clip(scores, [measurement.photo for measurement in group] * times))
    cosine, hit, success = (torch.cat([getattr(part, name) for part in parts]) for name in MEASURES)
    rows_of_views = tuple(row for part in parts for row in part.rows)
    return Prediction(printer, figures(PhotoScores(cosine, hit, success, rows_of_views), clusters))


def with_poses(camera: Compose, measurements: Sequence[PhotoMeasurement]) -> Compose:
    """A pipeline of a patch with the poses of photographs in place of its homographies."""
    matrices = np.stack([np.linalg.inv(item.scene.matrix) for item in measurements if item.scene is not None])
    sheet, *remaining_stages = camera.stages
    later_stages = [stage for stage in remaining_stages if not isinstance(stage, Homography)]
    return replace(camera, stages=(sheet, Poses(torch.from_numpy(matrices)), *later_stages))


def map_cell(pose: Pose) -> tuple[int, int]:
    """The cell of a map: the power of `FARTHER` nearest to the distance, the multiple of `DEGREES` to the angle."""
    return round(math.log(pose.distance, FARTHER)), round(pose.angle / DEGREES)


def success_map(
    scores: PhotoScores, measurements: Sequence[PhotoMeasurement], clusters: Sequence[str]
) -> list[dict[str, Any]]:
    """The success with its own 95 % interval for each cell of distance (in sides of the patch) and angle (in degrees
    from the front) that has photographs, the nearest first. `clusters` are those of all pictures of the run."""
    cells: dict[tuple[int, int], list[int]] = {}
    for i, measurement in enumerate(measurements):
        cells.setdefault(map_cell(measurement.pose), []).append(i)
    photos = [measurement.photo for measurement in measurements]
    return [
        {"distance": FARTHER**far, "angle": DEGREES * turn, "photographs": len(at)}
        | {"success": _success(scores, photos, at, clusters)._asdict()}
        for (far, turn), at in sorted(cells.items())
    ]


def control_difference(
    controls: Mapping[str, bool], scores: PhotoScores, photos: Sequence[PhotoFile], clusters: Sequence[str]
) -> dict[str, Any] | None:
    """The success minus that of the control, whose photographs from the same poses have the same names, and how many
    `pairs` there are; None for none."""
    at = [i for i, photo in enumerate(photos) if photo.name in controls]
    success = scores.success.double().cpu() - torch.tensor([float(controls.get(photo.name, 0)) for photo in photos])
    difference = _success(replace(scores, success=success), photos, at, clusters, -1.0) if at else None
    return None if difference is None else {"pairs": len(at), "difference": difference._asdict()}


def _success(
    scores: PhotoScores, photos: Sequence[PhotoFile], at: list[int], clusters: Sequence[str], low: float = 0.0
) -> Interval:
    """Of some photographs, clip by clip."""
    cosine, hit, success = (getattr(scores, name)[at] for name in MEASURES)
    part = by_clip(PhotoScores(cosine, hit, success, tuple(scores.rows[i] for i in at)), [photos[i] for i in at])
    return photo_summary(part.success, part.rows, [clusters[row] for row in part.rows], low)
