"""The keys of the group `task`: when a view counts as lost. No torch."""

from dataclasses import dataclass

from attacks.schema.options import MISSING, option


@dataclass
class RetrievalConfig:
    """A view is lost where the nearest picture of the gallery shows something else.

    Use: the default: embeddings that a search or an index compares.
    Not: the answers of a classifier: classification.
    Oracle: tests/evaluation/test_retrieval.py.
    """

    name: str = "retrieval"


@dataclass
class VerificationConfig:
    """A view is lost where a threshold no longer accepts it as its own picture; with a target, where it is accepted
    as the target.

    Use: faces or documents that are compared in pairs, at the threshold of the deployed system.
    Not: a search in a gallery: retrieval.
    Oracle: tests/evaluation/test_verification.py.
    With: task.threshold=0.5
    """

    name: str = "verification"
    threshold: float = option(
        MISSING, "the cosine from which a pair is accepted; of l2 the distance up to which it is"
    )
    metric: str = option("cosine", "or l2, the Euclidean distance", range="cosine, l2")


@dataclass
class ClassificationConfig:
    """A view is lost where its highest class is another than the picture's label. The encoder answers logits, or has
    a text tower for which the classes are texts.

    Use: the classifier itself: logits, or zero-shot classes.
    Not: embeddings without classes: retrieval.
    Oracle: tests/evaluation/test_tasks.py.
    With: config=quickstart encoder=pypi encoder.model=lite0 encoder.output=logits transforms=web
    """

    name: str = "classification"
    classes: str | None = option(
        None, "a text file, a class a line: the texts of a text tower, or the names of the logits in order"
    )
    templates: list[str] = option(["a photo of a {}."], "sentences for the texts")


@dataclass
class ScoreConfig:
    """A view is lost where its score is on the other side of a threshold than the picture's.

    Use: moderation, quality and other scores with a threshold.
    Not: several classes: classification.
    Oracle: tests/evaluation/test_tasks.py.
    With: task.threshold=0 task.column=0
    """

    name: str = "score"
    threshold: float = option(MISSING, "a score above it counts as above")
    column: int | None = option(None, "which number of the answer is the score; null: it has one", low=0)


#: Task -> the objective that stands where none is chosen.
OBJECTIVES = {"retrieval": "away", "verification": "away", "classification": "margin", "score": "margin"}
