"""What a view can be taken for, by the configured task."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from attacks.data.gallery import Gallery, Pictures
from attacks.encoders.black_box.asked import black_box
from attacks.encoders.image_encoder import ImageEncoder
from attacks.encoders.layers import unwrap
from attacks.encoders.loading import BUILT_IN
from attacks.encoders.request import FEATURES, LOGITS
from attacks.evaluation.classes import Classes, classify, logit_classes, text_classes, text_tower
from attacks.evaluation.scores import Acceptance, embed_pictures, signature_method
from attacks.schema.groups import LOGIT_LOSSES
from attacks.schema.objective import TowardConfig
from attacks.schema.run import Run
from attacks.schema.task import ClassificationConfig, ScoreConfig, VerificationConfig
from attacks.study.make import make
from attacks.study.objective import wants_gallery

#: Widths of ImageNet's classifiers, with and without a background, and of its 21,000 classes.
CLASSIFIERS = (1000, 1001, 21841, 21843)
#: Pictures whose answers are looked at before a retrieval, and how far from 1 the sum of probabilities may be.
PICTURES, ROUNDING = 4, 1e-3


def has_classes(run: Run) -> bool:
    """Whether views are taken for classes, not for pictures of a gallery."""
    return isinstance(run.task, ClassificationConfig | ScoreConfig)


def check_task(run: Run) -> None:
    """Refuse keys that do not fit the task."""
    task, objective = run.task, run.objective
    if not has_classes(run):
        if objective.name in LOGIT_LOSSES:
            raise ValueError(
                f"`objective={objective.name}` is a loss on logits, of task=classification or task=score; got "
                f"task={task.name}"
            )
        metric = getattr(objective, "metric", None)
        if isinstance(task, VerificationConfig) and metric not in (None, task.metric):
            raise ValueError(
                f"`objective.metric` must be that of task=verification, {task.metric}; got {metric}: say "
                f"objective.metric={task.metric}"
            )
        if isinstance(task, VerificationConfig) and run.evaluate.failure:
            raise ValueError(
                f"`evaluate.failure` counts views by the nearest picture; got {run.evaluate.failure} with "
                "task=verification: leave it out (evaluate.failure=0)"
            )
        return
    if getattr(run.data, "gallery", None) is not None:
        raise ValueError(f"`data.gallery` has no use with task={task.name}: its classes take the place of a gallery")
    if isinstance(task, ScoreConfig) and objective.name not in ("margin", "cross_entropy"):
        raise ValueError(
            f"`objective` must be margin or cross_entropy with task=score, which has two sides; got {objective.name}"
        )
    if getattr(task, "classes", None) is None:
        return
    if run.encoder.features:
        raise ValueError(
            "`task.classes` are compared with what the encoder answers itself; encoder.features leave the space of "
            "the texts: drop one of the two"
        )
    if isinstance(objective, TowardConfig) and objective.metric == "l2":
        raise ValueError(
            "`objective.metric=l2` toward a class would only shorten the embedding, since a text has length 1 here; "
            "with task.classes use cosine"
        )


def acceptance_of(run: Run, encoder: nn.Module) -> Acceptance | None:
    """When the verification accepts a pair; None for another task. Raises ValueError."""
    if not isinstance(run.task, VerificationConfig):
        return None
    if signature_method(encoder) is not None:
        raise ValueError(
            "`task=verification` compares embeddings by cosine or distance; the encoder is a hash, whose bits are "
            "compared: say task=retrieval"
        )
    return make(Acceptance, run.task, "task")


def classes_of(
    run: Run, encoder: nn.Module, answers: Tensor, labels: Sequence[str | None]
) -> tuple[Classes, Tensor, tuple[str, ...]]:
    """The classes of the task, that of each picture by the encoder's `answers` (N,D), and notes (see `classify`).
    Raises ValueError or FileNotFoundError in one line."""
    task, texts = run.task, text_tower(encoder)
    is_embedding = run.encoder.name in BUILT_IN or answer_of(encoder) == FEATURES
    if isinstance(task, ClassificationConfig) and texts is None and is_embedding:
        raise ValueError(
            f"`task=classification` needs logits, and encoder={run.encoder.name} answers an embedding: say "
            "encoder.output=logits where it has the key, or task=retrieval"
        )
    if isinstance(task, ScoreConfig):  # without labels, the side of the untouched picture is right by definition
        source = "the sides of task.threshold"
        classes = Classes(("below", "above"), torch.eye(2), source, logits=True, threshold=task.threshold)
        classes, truth, _ = classify(classes, answers, labels)
        return replace(classes, guessed=0), truth, ()
    if texts is None:
        classes = logit_classes(task.classes, answers.shape[1])
    elif task.classes is None:
        raise ValueError(
            "`task.classes` must name a file, a class a line: the encoder has a text tower, for which they are texts"
        )
    else:
        classes = text_classes(task.classes, task.templates, texts)
    if not classes.logits and run.objective.name == "dlr":
        raise ValueError("`objective=dlr` is of logits; for classes given as text use margin or cross_entropy")
    return classify(classes, answers, labels)


def answer_of(encoder: nn.Module) -> str | None:
    """Features, logits or probabilities, where the encoder's family knows; else None."""
    inner = unwrap(encoder)
    return inner.origin.output if isinstance(inner, ImageEncoder) else None


def refuse_logits(run: Run, encoder: nn.Module, queries: Pictures, device: torch.device) -> None:
    """Raise ValueError where an encoder answers a retrieval or verification with probabilities or logits."""
    box = black_box(encoder)
    if run.encoder.features or has_classes(run) or (box is not None and box.answer != "vector"):
        return
    first = queries.take(range(min(PICTURES, len(queries))))
    rows = embed_pictures(first, encoder, device).double()
    width, kind = rows.shape[1], ""
    for name, values in (("probabilities", rows), ("logarithms of probabilities", rows.exp())):
        if width > 1 and bool((values >= 0).all()) and bool(((values.sum(1) - 1).abs() < ROUNDING).all()):
            kind = f"{name}, which sum to 1"
    if answer_of(encoder) == LOGITS or (not kind and width in CLASSIFIERS):
        kind = f"{width} numbers, as many as a classifier of ImageNet has logits"
    if kind:
        raise ValueError(
            f"`task={run.task.name}` compares embeddings, and the encoder answers {kind}: say "
            "task=classification or task=score, or name the embedding's layer, encoder.features=[LAYER] "
            "(show=encoder lists them)"
        )


def check_gallery(run: Run, gallery: Gallery | Classes) -> None:
    """Refuse a gallery that shows one thing only, and what would need all rows of a gallery of embeddings."""
    if isinstance(gallery, Classes):
        return
    is_pair = run.task.name == "verification" and getattr(run.objective, "target", None) is None
    is_single = len(gallery) < 2 or (gallery.label_numbers is not None and not bool(gallery.label_numbers.any()))
    if is_single and not is_pair:
        raise ValueError(
            f"`data.gallery` must show two things or more, for a view to be taken for another; "
            f"{gallery.source} shows one: add pictures, name another gallery (data.gallery=bundled: the bundled "
            "tiles), or give identities"
        )
    if gallery.vectors is None:
        return
    for key, value, needs_gallery in (
        ("objective", run.objective.name, wants_gallery(run.objective)),
        ("attack", run.attack.name, run.attack.name in ("suite", "radius")),
        ("evaluate.failure", run.evaluate.failure, run.evaluate.failure > 0),
    ):
        if needs_gallery:
            raise ValueError(
                f"`data.gallery` of embeddings is only for the judgement; {key}={value} compares with every row in "
                "memory: use a gallery of pictures, or such as objective=away, attack=single, evaluate.failure=0"
            )
