"""An encoder that can only be asked, and the ledger of its answers."""

import hashlib
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from attacks.encoders.layers import unwrap
from attacks.encoders.tree import PictureModule, silence
from attacks.runtime.files import Lock, named_where_unwritten
from attacks.runtime.plugins import import_object
from attacks.schema.encoder import GRADIENT_FREE
from transforms.doors import formed

#: The name of the file in a run directory.
LEDGER = "queries.jsonl"
#: The last line of answers that cannot be used.
REFUSAL = b'{"refused": "a picture has two answers"}'


class Ledger:
    """The answers so far by picture, in memory, and in a file while one is open.

    A line of JSON for each picture: the digest of its 8-bit pixels, and the answer. A line is on the disk before the
    next picture is asked about; a torn last one is cut off.
    """

    def __init__(self) -> None:
        self.rows: dict[str, np.ndarray] = {}
        self.path: Path | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @contextmanager
    def open(self, path: Path) -> Iterator[None]:
        """Within the block answers come from the file and are appended to it. Raises ValueError for a line that is
        none of a ledger, except for a torn last one, and where another process appends to the file."""
        with Lock(path) as lock:
            if not lock.exclusive():
                raise ValueError(f"`{path}`: another process asks for this run; wait for its end")
            answers, self.rows = self.rows, {}  # asked about before there was a file
            if (length := self.read(path)) < path.stat().st_size:
                os.truncate(path, length)
            self.path = path
            try:
                self._record({name: row for name, row in answers.items() if name not in self.rows})
                yield
            finally:
                self.path = None

    def read(self, path: Path) -> int:
        """Take over the answers of a file, without a torn last line. Returns the length of the whole lines. Raises
        ValueError for another line."""
        data = path.read_bytes()
        length = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:length].splitlines(), 1):
            if line == REFUSAL:
                raise ValueError(f"`{path}`: a picture has two answers, so none can be used: start a new run")
            try:
                entry = json.loads(line)
                answer = [] if entry["answer"] is None else entry["answer"]
                name, row = str(entry["picture"]), np.asarray(answer, dtype=np.float32)
                if len(name) != 64 or row.ndim != 1 or not np.isfinite(row).all():
                    raise ValueError("no digest with finite numbers")
                self.rows[name] = row
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"`{path}`: line {number} is damaged ({' '.join(str(error).split())[:80]}): remove that line, "
                    "and its picture is asked about again"
                ) from None
        return length

    def answers(
        self, pixels: np.ndarray, ask: Callable[[np.ndarray], Sequence[np.ndarray]], batch: int
    ) -> np.ndarray:
        """The answers (N,D) to 8-bit pictures (N,H,W,3), NaN where there is none, an empty row of `ask`. `ask` sees
        each picture only once, at most `batch` in one call, and what it answers is kept before it is called again.
        Raises ValueError for rows of another length."""
        digests = [picture_digest(picture) for picture in pixels]
        new = list({name: at for at, name in reversed([*enumerate(digests)]) if name not in self.rows}.values())[::-1]
        for first in range(0, len(new), batch):
            numbers = new[first : first + batch]
            fresh = {digests[at]: row for at, row in zip(numbers, ask(pixels[numbers]), strict=True)}
            width = self._width(self.rows) or self._width(fresh)
            for row in fresh.values():
                if len(row) not in (0, width):
                    raise ValueError(f"an answer must have as many numbers as those before, {width}; got {len(row)}")
            self._record(fresh)
        blank = np.full(self._width(self.rows) or 1, np.nan, dtype=np.float32)
        return np.stack([self.rows[name] if len(self.rows[name]) else blank for name in digests])

    @staticmethod
    def _width(rows: Mapping[str, np.ndarray]) -> int:
        return next((len(row) for row in rows.values() if len(row)), 0)

    def _record(self, rows: Mapping[str, np.ndarray]) -> None:
        lines = [
            json.dumps({"picture": name, "answer": [float(f"{value:.9g}") for value in row] or None}) + "\n"
            for name, row in rows.items()  # nine digits give a float32 again
        ]
        self._write("".join(lines).encode())
        self.rows |= rows

    def refuse(self) -> None:
        """Record that these answers cannot be used."""
        self._write(REFUSAL + b"\n")

    def _write(self, data: bytes) -> None:
        if self.path is None:
            return
        with named_where_unwritten(self.path), self.path.open("ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


def recorded_answers(path: Path) -> dict[str, np.ndarray]:
    """The answers of a ledger's file by picture. Raises FileNotFoundError, or ValueError for a damaged line."""
    ledger = Ledger()
    ledger.read(path)
    return ledger.rows


def picture_digest(picture: np.ndarray) -> str:
    """The sha256 of the size and the pixels of an 8-bit picture (H,W,3)."""
    return hashlib.sha256(f"{picture.shape}".encode() + np.ascontiguousarray(picture).tobytes()).hexdigest()


Answer = Literal["vector", "scores", "same"]
#: 8-bit pictures (N,H,W,3) -> one answer for each: vectors or scores (N,D), or 0 and 1 (N,); None, or a row of NaN,
#: for a picture without one, such as one without a face.
Ask = Callable[[np.ndarray], Any]
#: The most bytes of an answer to one picture.
MOST_BYTES = 2**22
#: How many pictures are asked about again at the end of a run, and by how much of its length an answer may differ.
SAMPLE, TOLERANCE = 8, 0.01


class AnswerError(ValueError):
    """A black box has not answered, or not as it should. The run can be resumed."""


class AnswerMismatch(AnswerError):
    """The answers may belong to other pictures, or change from call to call. The run must be made anew."""


class BlackBox(PictureModule):
    """(N,3,H,W) in [0,1] -> (N,D): each picture is rounded to 8 bits and asked about once; its answer is kept. A
    picture without an answer has a row of zeros, which has no direction (see `silence`).

    Args:
        ask: see `Ask`.
        title: for messages and reports.
        answer: "vector": (N,D), an embedding. "scores": (N,G), one for each entry of a gallery; their mean is
            subtracted, so that a cosine compares which entries score high. "same": 0 or 1 (N,), whether the picture
            shows one enrolled thing; the features are (same, 1 - same), whose cosine is 1 or 0.
        batch: the most pictures of one call of `ask`; each call's answers are kept before the next one.

    Raises ValueError for another `answer` or a `batch` below 1.
    """

    def __init__(self, ask: Ask, title: str = "a function", *, answer: str = "vector", batch: int = 64) -> None:
        super().__init__()
        if answer not in get_args(Answer):
            raise ValueError(f"`answer` must be one of {', '.join(get_args(Answer))}; got {answer!r}")
        if type(batch) is not int or batch < 1:
            raise ValueError(f"`batch` must be a whole number of pictures, at least 1; got {batch!r}")
        self.ask, self.title, self.answer, self.batch, self.ledger = ask, title, answer, batch, Ledger()
        self.sample: dict[str, np.ndarray] = {}
        self.must_answer = False
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Raises ValueError where a gradient is asked for, before anything is asked, and for a malformed answer."""
        if images.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                f"encoder {self.title} can only be asked and has no gradient: use an optimiser without gradients "
                f"({', '.join(f'optimiser={name}' for name in GRADIENT_FREE)})"
            )
        formed(images, channels=3)
        pixels = (images.detach().clamp(0, 1) * 255).round().byte().permute(0, 2, 3, 1).contiguous().cpu().numpy()
        rows = torch.from_numpy(self.ledger.answers(pixels, self._answers, self.batch)).to(images)
        if self.answer == "scores":
            rows = rows - rows.mean(1, keepdim=True)
        elif self.answer == "same":
            rows = torch.cat([rows, 1 - rows], 1)
        return rows.nan_to_num(0.0)

    def confirm(self) -> None:
        """Ask about some of the pictures of this process again. Raises AnswerMismatch where an answer differs."""
        for name, picture in self.sample.items():
            first_row, row = self.ledger.rows[name], self._answers(picture[None])[0]
            off = np.linalg.norm(row - first_row) if row.shape == first_row.shape else math.inf
            if off > TOLERANCE * np.linalg.norm(first_row):
                self.ledger.refuse()
                raise AnswerMismatch(
                    f"encoder {self.title}: the answer to a picture that was sent twice differs by more than "
                    f"{TOLERANCE:.0%}: its answers change, or belong to other pictures. Mend it, and start a new run"
                )

    def _answers(self, pixels: np.ndarray) -> list[np.ndarray]:
        """The answers (D,) of one call, checked; an empty one where there is none."""
        try:
            answer: Any = self.ask(pixels)
        except AnswerMismatch:
            self.ledger.refuse()
            raise
        content = "0 or 1" if self.answer == "same" else "a row of numbers"
        wrong = f"encoder {self.title}: the answer must be {content} for each of {len(pixels)} pictures"
        try:
            table = [np.asarray([np.nan] if row is None else row, dtype=np.float32) for row in answer]
            blank = [row.size > 0 and bool(np.isnan(row).all()) for row in table]
            rows = np.asarray([row for row, skip in zip(table, blank, strict=True) if not skip], dtype=np.float32)
        except (TypeError, ValueError):
            raise AnswerError(f"{wrong}; got a {type(answer).__name__} that is no array of numbers") from None
        if self.answer == "same" and rows.ndim == 1:
            rows = rows[:, None]
        narrow = rows.ndim == 2 and (rows.shape[1] == 1 if self.answer == "same" else rows.shape[1] > 0)
        if self.must_answer and any(blank):
            raise AnswerError(f"{wrong}, for task=score has no case without an answer; got null: answer a score")
        if not (narrow or all(blank)) or len(table) != len(pixels):
            raise AnswerError(f"{wrong}; got shape {rows.shape}")
        if not np.isfinite(rows).all() or (self.answer == "same" and not np.isin(rows, (0, 1)).all()):
            content = "other numbers" if np.isfinite(rows).all() else "NaN or inf"
            raise AnswerError(f"{wrong}; got {content} among them")
        self.sample |= {picture_digest(picture): picture for picture in pixels}
        self.sample = dict(sorted(self.sample.items())[:SAMPLE])  # by digest: a sample of all
        answers = iter(rows)
        return [np.zeros(0, np.float32) if skip else next(answers) for skip in blank]

    def __deepcopy__(self, memo: dict[int, Any]) -> "BlackBox":
        return self  # there is one ledger

    def __repr__(self) -> str:
        return f"{self.title} (black box, answer {self.answer})"


def black_box(encoder: nn.Module) -> BlackBox | None:
    """The encoder that can only be asked within this package's wrappers; None for any other."""
    inner = unwrap(encoder)
    return inner if isinstance(inner, BlackBox) else None


def refuse_unanswered(encoder: nn.Module, rows: Tensor, names: Sequence[str], key: str = "data.path") -> None:
    """Raise ValueError where a clean picture, by its row (n,D), has no answer."""
    missing = silence(encoder, rows)
    if missing is not None and bool(missing.any()):
        name = names[int(missing.int().argmax())]
        raise ValueError(
            f"`{key}`: the encoder must answer for every clean picture; it gave none (null, NaN, zeros) for {name}: "
            "leave the picture out, or crop it to what the encoder looks for"
        )


@contextmanager
def ledger_at(encoder: nn.Module, path: Path) -> Iterator[None]:
    """Within the block the answers of a black box are kept in the file `path`, and come from there. Nothing for other
    encoders. Raises ValueError for a damaged file, or where another process writes to it."""
    victim = black_box(encoder)
    with nullcontext() if victim is None else victim.ledger.open(path):
        yield


def png(picture: np.ndarray) -> bytes:
    """(H,W,3) uint8 -> the bytes of a PNG file."""
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def function(model: str, answer: str = "vector") -> BlackBox:
    """The function `module:function` of a module in the working directory, or of an installed one: 8-bit pictures
    (N,H,W,3) -> answers. Importing runs the module.

    Use: an encoder that Python can call, and whose gradient you do not have or may not use.
    Not: a module of torch: pass it to `attack`, and its gradient is followed.
    Source: this project's own.
    Cost: one call for each new picture; what was answered is kept.
    Oracle: eight bits, asked about once, tests/encoders/black_box/test_asked.py.
    With: encoder.model=victim:embed

    Raises ValueError in one line: no such module or function, or an error in either.
    """
    title, victim = f"callable:{model}", import_object(model, "model")
    if not callable(victim):
        raise ValueError(f"`model`: {model} must be a function of pictures (N,H,W,3); got a {type(victim).__name__}")

    def ask(pixels: np.ndarray) -> Any:
        try:
            return victim(pixels)
        except Exception as error:
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise AnswerError(f"encoder {title} failed: {reason}") from error

    return BlackBox(ask, title, answer=answer)
