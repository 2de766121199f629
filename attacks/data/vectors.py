"""A gallery's rows that a person brings as embeddings: a `.npy` file, mapped and not loaded, and a list of names."""

import csv
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.format import open_memmap
from torch import Tensor

from attacks.runtime.decoding import printable_name
from attacks.runtime.tables import by_column

#: Rows that are checked at a time.
BLOCK = 2**13
KINDS = ("float16", "float32", "float64")


@dataclass(frozen=True, eq=False)
class Vectors:
    """Embeddings `rows` (n,D), mapped from a file; the `names` of what they show, its `labels` or None without any;
    `digest`, the sha256 of the rows and of both lists."""

    rows: Tensor
    names: tuple[str, ...]
    labels: tuple[str | None, ...] | None
    digest: str

    def __len__(self) -> int:
        return len(self.names)


def read_vectors(path: str | Path) -> Vectors:
    """The embeddings of a `.npy` file. Beside it lies a `.txt` of the same name, a name a line, or a `.csv` with the
    column `name` and optionally `identity`. The file is read once, to check it. Raises FileNotFoundError or
    ValueError: no file; no table of numbers; a row that is not `has_direction`; other names."""
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"`data.gallery`: `{path}` is no file (paths are relative to {Path.cwd()})")
    try:  # mapped for copies on write, as torch wants it: nothing is ever written
        with np.errstate(over="ignore"):
            array = open_memmap(path, mode="c")  # unlike `np.load` it takes no zip and no pickle
    except Exception as error:  # a forged header may fail in any way
        problem = f"`{path}` cannot be mapped ({' '.join(str(error).split())})"
        rule = f"must be a whole .npy file of numbers, not of Python objects; {problem}"
        fix = "write it with numpy.save(file, embeddings.astype('float32'))"
        raise ValueError(f"`data.gallery` {rule}: {fix}") from None
    if array.ndim != 2 or 0 in array.shape or array.dtype.name not in KINDS or not array.dtype.isnative:
        rule = f"must hold rows of float16, float32 or float64; `{path}` has {array.dtype.str} of shape {array.shape}"
        raise ValueError(f"`data.gallery` {rule}: save embeddings.astype('float32'), a row for each picture")
    digest = hashlib.sha256(f"{array.dtype} {array.shape}".encode())
    for start in range(0, len(array), BLOCK):
        block = np.ascontiguousarray(array[start : start + BLOCK])
        digest.update(block.data)
        is_normal = np.abs(block).max(1) >= np.finfo(array.dtype).tiny  # below, digits are lost
        if not (good := has_direction(torch.from_numpy(block)).numpy() & is_normal).all():
            row = f"row {start + int((~good).argmax())} (from 0) of `{path}`"
            rule = f"must hold finite rows whose length float32 can hold, such as 1; got another, {row}"
            fix = "scale the rows to length 1; leave out zeros, and their names"
            raise ValueError(f"`data.gallery` {rule}: {fix}")
    names, labels = _names(path, len(array))
    for text in (*names, *(labels or ())):
        digest.update(f"{text}\n".encode())
    return Vectors(torch.from_numpy(array), names, labels, digest.hexdigest())


def has_direction(rows: Tensor) -> Tensor:
    """Whether rows (n,D) keep their direction where cosines are computed, in float32: (n,) bool. Rows of zeros have
    none, and rows of numbers whose squares leave its range."""
    lengths: Tensor = F.normalize(rows.float(), dim=1).norm(dim=1)
    return (lengths - 1).abs() < 1e-3


def _names(path: Path, count: int) -> tuple[tuple[str, ...], tuple[str | None, ...] | None]:
    lists = [path.with_suffix(ending) for ending in (".csv", ".txt") if path.with_suffix(ending).is_file()]
    if len(lists) != 1:
        rule = f"{path.stem}.txt (a name a line) or {path.stem}.csv (columns name, perhaps identity)"
        problem = f"beside `{path}` must lie one list of names, {rule}; there are {len(lists)}"
        raise FileNotFoundError(f"`data.gallery`: {problem}")
    (file,) = lists
    labels: tuple[str | None, ...] = ()
    try:
        names = file.read_text(encoding="utf-8-sig").splitlines()
        if file.suffix == ".csv":
            table = list(by_column(csv.DictReader(names, strict=True)))
            names = [row["name"] for row in table]
            labels = tuple(row.get("identity") or None for row in table)
    except (ValueError, csv.Error, KeyError) as error:
        rule = "must be UTF-8, a name a line, or a table with the column name"
        raise ValueError(f"`data.gallery`: `{file}` {rule}; got {error!r}") from None
    if len(names) != count:
        rule = f"must name every row of `{path.name}`; got {len(names)} names for {count} rows"
        raise ValueError(f"`data.gallery`: `{file}` {rule}")
    names = [printable_name(name) for name in names]
    if len(set(names)) < count or "" in names:
        name = "" if "" in names else Counter(names).most_common(1)[0][0]
        rule = f"the names in `{file}` must differ and not be empty"
        raise ValueError(f"`data.gallery`: {rule}; got {name!r}: rename it")
    return tuple(names), labels if any(labels) else None
