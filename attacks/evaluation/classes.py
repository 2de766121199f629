"""Classes given as text, for encoders with a text tower: views are classified, not matched with pictures."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.data.vectors import has_direction
from attacks.encoders.tree import Texts, optional
from attacks.evaluation.scores import embed
from transforms.draws import stream

#: Stands for the class in a template.
PLACE = "{}"


def read_classes(path: str | Path) -> tuple[str, ...]:
    """The classes of a text file, one a line; blank lines and lines that begin with # are ignored. Raises
    FileNotFoundError, or ValueError for no text, a class twice, fewer than two classes."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`data.classes`: `{path}` is no file (paths are relative to {Path.cwd()})")
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise ValueError(f"`data.classes`: `{path}` is not a text file in UTF-8: one class a line") from None
    names = [line for line in lines if line and not line.startswith("#")]
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        raise ValueError(f"`data.classes`: `{path}` names the class {twice[0]!r} twice")
    if len(names) < 2:
        raise ValueError(f"`data.classes`: `{path}` must name at least two classes, one a line; got {len(names)}")
    return tuple(names)


def text_tower(encoder: nn.Module, reason: str) -> Texts:
    """The text tower of an encoder or of the encoder that it wraps. Raises ValueError with the `reason` without."""
    inner: object = encoder
    while inner is not None:
        tower: Texts | None = optional(inner, "texts")
        if tower is not None:
            return tower
        inner = optional(inner, "encoder")
    raise ValueError(
        f"{reason} needs an encoder with a text tower, such as encoder=open_clip, or CLIP and SigLIP of "
        "encoder=transformers (with its tokenizer's files)"
    )


@torch.no_grad()
def class_embeddings(texts: Texts, classes: Sequence[str], templates: Sequence[str]) -> Tensor:
    """(K,D) of length 1: the mean direction of each class over all templates, as in CLIP's zero-shot classifier
    (Radford et al. 2021, section 3.1.4).

    A template is a text with `{}` in place of the class, such as "a photo of a {}." Raises ValueError for no
    template, for one without a place for the class, and for embeddings without a direction.
    """
    for template in templates or ("",):
        if PLACE not in template:
            raise ValueError(f"`data.templates` must each have {PLACE} where the class goes; got {template!r}")
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
                f"`data.classes`: the text tower's embeddings of {name!r} have no direction (zeros, or not finite): "
                "are its weights whole?"
            )
        rows.append(F.normalize(F.normalize(embeddings.float(), dim=1).mean(0), dim=0))
    return torch.stack(rows)


@dataclass(frozen=True, eq=False)
class Classes:
    """The classes of a zero-shot classifier, in place of a `Gallery`: `names`, and their embeddings `rows` (K,D)."""

    names: tuple[str, ...]
    rows: Tensor
    guessed: int = 0  # number of pictures whose class is the encoder's own prediction
    right: float | None = None  # share of the annotated pictures that the encoder classifies so, without a view
    label_numbers: None = None
    cluster_numbers: None = None

    def __len__(self) -> int:
        return len(self.names)

    def alone(self, rows: Tensor) -> None:
        """A class has a single row: no other row of it could vote."""

    def same(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Whether rows and others are the same class, with broadcasting."""
        return rows == columns

    def target(self, wish: str, truth: Tensor, seed: int) -> Tensor:
        """The row of the attacker's target for each picture: "another" class than its own, or the one named."""
        if wish == "another":
            generator = torch.Generator().manual_seed(stream(seed, "target"))
            return (truth + torch.randint(1, len(self), truth.shape, generator=generator)) % len(self)
        if wish not in self.names:
            raise ValueError(f"`objective.target` must be another, or a class of `data.classes`; got {wish!r}")
        goal = torch.full_like(truth, self.names.index(wish))
        if bool((goal == truth).any()):
            raise ValueError(f"`objective.target` is the class of one of the attacked pictures already: {wish!r}")
        return goal


def classify(
    path: str, templates: Sequence[str], encoder: nn.Module, images: Tensor, labels: Sequence[str | None]
) -> tuple[Classes, Tensor, tuple[str, ...]]:
    """The classes of a file, the row of each of the `images` (N,3,H,W) among them (N,), and notes. A label of None is
    replaced by the encoder's own prediction. Raises ValueError or FileNotFoundError for unusable input."""
    names = read_classes(path)
    rows = class_embeddings(text_tower(encoder, "`data.classes`"), names, list(templates)).to(images.device)
    names_by_row: dict[tuple[float, ...], str] = {}
    for name, row in zip(names, rows.tolist(), strict=True):
        if names_by_row.setdefault(tuple(row), name) != name:  # tokenizers ignore case and truncate
            raise ValueError(
                f"`data.classes`: to the encoder {names_by_row[tuple(row)]!r} and {name!r} are one text, so no view "
                "could be classified as the second; leave one out"
            )
    strange = [label for label in labels if label is not None and label not in names]
    if strange:
        raise ValueError(f"`data.classes`: a picture has the identity {strange[0]!r}, which is no class of {path}")
    features = embed(images, encoder, images.device)
    assert isinstance(features, Tensor)
    if features.shape[1] != rows.shape[1]:
        raise ValueError(
            f"`data.classes`: the text tower has {rows.shape[1]} features and the encoder {features.shape[1]}: with "
            "its `features` the encoder leaves the space of the texts"
        )
    guesses = (F.normalize(features.to(rows), dim=1) @ rows.T).argmax(1).tolist()
    truth = [guess if label is None else names.index(label) for guess, label in zip(guesses, labels, strict=True)]
    unlabelled = labels.count(None)
    hits = [guess == row for guess, row, label in zip(guesses, truth, labels, strict=True) if label is not None]
    right = sum(hits) / len(hits) if hits else None
    note = "pictures have no identity: their class is the encoder's prediction for the untouched picture"
    notes = (f"{unlabelled} {note}",) if unlabelled else ()
    return Classes(names, rows, unlabelled, right), torch.tensor(truth), notes
