"""Classes that views are taken for, in place of a gallery: texts, or the logits of a classifier."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.data.vectors import has_direction
from attacks.encoders.tree import Texts, optional
from transforms.draws import stream

#: Stands for the class in a template.
PLACE = "{}"


def read_classes(path: str | Path) -> tuple[str, ...]:
    """The classes of a text file, one a line; blank lines and lines that begin with # are ignored. Raises
    FileNotFoundError, or ValueError for no text, a class twice, fewer than two classes."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`task.classes`: `{path}` is no file (paths are relative to {Path.cwd()})")
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"`task.classes`: `{path}` is not a text file in UTF-8: one class a line") from None
    names = [line for line in lines if line and not line.startswith("#")]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"`task.classes`: `{path}` names the class {twice[0]!r} twice")
    if len(names) < 2:
        raise ValueError(f"`task.classes`: `{path}` must name at least two classes, one a line; got {len(names)}")
    return tuple(names)


def text_tower(encoder: nn.Module) -> Texts | None:
    """The text tower of an encoder or of the encoder that it wraps, if there is one."""
    inner: object = encoder
    while inner is not None:
        tower: Texts | None = optional(inner, "texts")
        if tower is not None:
            return tower
        inner = optional(inner, "encoder")
    return None


@torch.no_grad()
def class_embeddings(texts: Texts, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
    """(K,D) of length 1: the mean direction of each class over all templates, as in CLIP's zero-shot classifier
    (Radford et al. 2021, section 3.1.4).

    A template is a text with `{}` in place of the class, such as "a photo of a {}." Raises ValueError for no
    template, for one without a place for the class, and for embeddings without a direction.
    """
    for template in templates or ("",):
        if PLACE not in template:
            raise ValueError(f"`task.templates` must each have {PLACE} where the class goes; got {template!r}")
    rows = []
    for name in classes:
        try:
            embeddings = texts([template.replace(PLACE, name) for template in templates])
        except (ValueError, OSError):
            raise
        except Exception as error:  # a third-party tokenizer may raise anything
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"the text tower does not take the class {name!r} ({type(error).__name__}: {reason}); are the "
                "tokenizer's files whole?"
            ) from error
        if not bool(has_direction(embeddings).all()):
            raise ValueError(
                f"`task.classes`: the text tower's embeddings of {name!r} have no direction (zeros, or not finite): "
                "are its weights whole?"
            )
        rows.append(F.normalize(F.normalize(embeddings.float(), dim=1).mean(0), dim=0))
    return torch.stack(rows)


@dataclass(frozen=True, eq=False)
class Classes:
    """Classes in place of a `Gallery`: their `names`, and the `rows` (K,D) whose cosine with an answer ranks them:
    the embeddings of texts or, for logits, one-hot rows, with which the order of cosines is that of the logits."""

    names: tuple[str, ...]
    rows: Tensor
    source: str = "task.classes"
    logits: bool = False  # whether the encoder's answers are logits of the classes
    guessed: int = 0  # number of pictures whose class is the encoder's own prediction
    right: float | None = None  # share of the annotated pictures that the encoder classifies so, without a view
    threshold: float | None = None  # of the score, of whose sides these are
    label_numbers: None = None
    cluster_numbers: None = None

    def __len__(self) -> int:
        return len(self.names)

    def alone(self, rows: Tensor) -> None:
        """A class has a single row: no other row of it could vote."""

    def same(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Whether rows and others are the same class, with broadcasting."""
        return rows == columns

    def target(self, wishes: Sequence[str], truth: Tensor, seed: int, sources: Sequence[str]) -> Tensor:
        """The row of the attacker's target for each picture: "another" class than its own, or the one named. Raises
        ValueError, which begins with where the wish is from."""
        if {*wishes} == {"another"}:
            generator = torch.Generator().manual_seed(stream(seed, "target"))
            return (truth + torch.randint(1, len(self), truth.shape, generator=generator)) % len(self)
        for wish, source, row in zip(wishes, sources, truth.tolist(), strict=True):
            if wish not in self.names:
                raise ValueError(f"{source} must be another, or a class of {self.source}; got {wish!r}")
            if wish == self.names[row]:
                raise ValueError(f"{source} is the class of one of the attacked pictures already: {wish!r}")
        return torch.tensor([self.names.index(wish) for wish in wishes])


def text_classes(path: str, templates: Sequence[str], texts: Texts) -> Classes:
    """The classes of a file, embedded by a text tower. Raises ValueError or FileNotFoundError."""
    names = read_classes(path)
    rows = class_embeddings(texts, names, list(templates))
    names_by_row: dict[tuple[float, ...], str] = {}
    for name, row in zip(names, rows.tolist(), strict=True):
        if names_by_row.setdefault(tuple(row), name) != name:  # tokenizers ignore case and truncate
            raise ValueError(
                f"`task.classes`: to the encoder {names_by_row[tuple(row)]!r} and {name!r} are one text, so no view "
                "could be classified as the second; leave one out"
            )
    return Classes(names, rows)


def logit_classes(path: str | None, width: int) -> Classes:
    """A class for each of so many logits, named by a file or 0, 1, ... Raises ValueError or FileNotFoundError."""
    names = tuple(map(str, range(width))) if path is None else read_classes(path)
    if len(names) != width or width < 2:
        count = f"and {path} names {len(names)}" if path is not None else "and classes need two or more"
        raise ValueError(
            f"`task.classes` must name the logits in order; the encoder answers {width} numbers, {count} (are they "
            "logits, not an embedding?)"
        )
    return Classes(names, torch.eye(width), source="the logits", logits=True)


def classify(
    classes: Classes, answers: Tensor, labels: Sequence[str | None]
) -> tuple[Classes, Tensor, tuple[str, ...]]:
    """The classes with what is recorded of the labels, the class of each picture (N,), and notes. A label of None is
    replaced by the encoder's own prediction from its `answers` (N,D). Raises ValueError for a label that is no class,
    and for answers of another width."""
    names = classes.names
    strange = [label for label in labels if label is not None and label not in names]
    if strange:
        example = f"{names[0]!r} to {names[-1]!r}" if len(names) > 2 else " or ".join(map(repr, names))
        raise ValueError(
            f"`data.path`: the identity {strange[0]!r} of a picture is no class of {classes.source}: {example}"
        )
    if answers.shape[1] != classes.rows.shape[1]:
        raise ValueError(
            f"`task.classes`: the texts have {classes.rows.shape[1]} features and the pictures {answers.shape[1]}: "
            "with its `features` the encoder leaves the space of the texts"
        )
    guesses = (F.normalize(answers.double(), dim=1) @ classes.rows.to(answers).double().T).argmax(1).tolist()
    truth = [guess if label is None else names.index(label) for guess, label in zip(guesses, labels, strict=True)]
    unlabelled = labels.count(None)
    hits = [guess == row for guess, row, label in zip(guesses, truth, labels, strict=True) if label is not None]
    right = sum(hits) / len(hits) if hits else None
    note = "pictures have no identity: their class is the encoder's prediction for the untouched picture"
    notes = (f"{unlabelled} {note}",) if unlabelled else ()
    return replace(classes, guessed=unlabelled, right=right), torch.tensor(truth), notes
