"""The results of a benchmark: printed, and written as JSON, with the machine."""

import datetime
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from attacks.experiment.preparation import processor, revision, version_of
from attacks.runtime.files import write_json

#: The figures of a row, None where there is none; or words in their place.
Row = tuple[float | None, ...] | str
MISSING = "not installed"
PEERS = ("adversarial-robustness-toolbox", "torchattacks", "foolbox", "adv-lib", "pyautoattack")
PACKAGES = ("torch", "torchvision", "kornia", "numpy", *PEERS)


@dataclass(frozen=True)
class BenchmarkTable:
    """Named rows: in each a figure for each column, in the column's format ({"ms": ".1f"}), or words ("not
    installed"). The `notes` are printed below, and `across`, what the columns are, beside their headings."""

    title: str
    columns: Mapping[str, str]
    rows: Mapping[str, Row]
    notes: tuple[str, ...] = ()
    across: str = ""

    def __str__(self) -> str:
        left = max([14, *map(len, self.rows)])
        widths = [max(8, len(name)) for name in self.columns]
        lines = [self.title, f"{'':{left}} {_row_text(self.columns, widths)}  {self.across}".rstrip()]
        for name, row in self.rows.items():
            if not isinstance(row, str):
                figures = zip(row, self.columns.values(), strict=True)
                row = _row_text(["-" if x is None else format(x, form) for x, form in figures], widths)
            lines.append(f"{name:{left}} {row}")
        return "\n".join([*lines, *self.notes])

    def plain(self) -> dict[str, object]:
        """The table as JSON holds it: the figures by row and column, unrounded."""
        rows = {
            name: row if isinstance(row, str) else dict(zip(self.columns, row, strict=True))
            for name, row in self.rows.items()
        }
        return {"title": self.title, "rows": rows, "notes": list(self.notes)}


def _row_text(cells: Iterable[str], widths: Sequence[int]) -> str:
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def machine(device: str) -> dict[str, object]:
    """CPU and accelerator, threads, load, versions (None: not installed), git revision and date (UTC)."""
    return {
        "cpu": processor(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 2),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else "cpu",
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: version_of(name) for name in PACKAGES},
        "git": revision(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def save_tables(tables: Sequence[BenchmarkTable], name: str, folder: Path, machine: Mapping[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    content = {"benchmark": name, "machine": dict(machine), "tables": [table.plain() for table in tables]}
    write_json(folder / f"{name}.json", content)
