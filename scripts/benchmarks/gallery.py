"""What a large gallery costs: its files in a first and a second run, and ranks among the rows of a mapped file."""

import re
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.lib.format import open_memmap
from PIL import Image
from torch import Tensor

from attacks.data import pictures as reading
from attacks.data.gallery import on_shelf, photographs
from attacks.data.images import load_image, to_bytes
from attacks.encoders.engine import Decision
from attacks.encoders.loading import load_encoder
from attacks.evaluation.ranking import Rows, best, search
from attacks.evaluation.scores import TOGETHER
from attacks.experiment.embeddings import BLOCK, cache_of, embedded
from attacks.schema.encoder import PocketConfig
from attacks.schema.groups import FolderConfig
from attacks.schema.validate import Run

from .processes import in_fresh_process
from .table import Row, Table

SIZE, SIDES = 128, (500, 375)
MIB = 2**20
CPU = torch.device("cpu")


def run(files: int = 60, rows: int = 20_000, pictures: int = 2, views: int = 32) -> list[Table]:
    """What a large gallery costs: reading and embedding its files in a first and a second run, and ranks in it.

    The files are JPEGs of 500 x 375, cut from the bundled photographs, the encoder is pocket; the rows are random, of
    512 numbers in float32, in a mapped file.
    """
    with tempfile.TemporaryDirectory() as folder:
        return [_files(Path(folder), files), _ranks(Path(folder), rows, pictures, views)]


def _files(folder: Path, count: int) -> Table:
    _make(folder / "pictures", count)
    cache = str(folder / "cache")
    Path(cache).mkdir()
    rows: dict[str, Row] = {
        name: in_fresh_process(_step, str(folder / "pictures"), kept)
        for name, kept in (("without a cache", None), ("first run", cache), ("second run", cache))
    }
    title = f"The gallery of a run, {count} JPEGs of {SIDES[0]} x {SIDES[1]}, pocket at {SIZE} px"
    return Table(title, {"s": ".1f", "CPU s": ".1f", "decoded": ".0f", "MiB": ".0f"}, rows)


def _make(folder: Path, count: int) -> None:
    """So many different pictures, cut from the bundled photographs."""
    folder.mkdir()
    whole = [Image.fromarray(to_bytes(photo)) for photo in photographs().values()]
    draw = np.random.default_rng(0)
    for i in range(count):
        photo = whole[i % len(whole)]
        width = int(draw.uniform(0.5, 1) * min(photo.width, photo.height * SIDES[0] / SIDES[1]))
        height = width * SIDES[1] // SIDES[0]
        left, top = (int(draw.integers(room + 1)) for room in (photo.width - width, photo.height - height))
        part = photo.resize(SIDES, box=(left, top, left + width, top + height))
        part.save(folder / f"{i:06}.jpg", quality=90)


def _step(path: str, cache: str | None) -> Row:
    """Seconds, CPU seconds, pictures decoded, and MiB, of the gallery of a run."""
    encoder, decoded = load_encoder("pocket"), 0

    def counted(file: Path) -> object:
        nonlocal decoded
        decoded += 1
        return load_image(file)

    setattr(reading, "load_image", counted)  # noqa: B010
    run = Run(encoder=PocketConfig(), data=FolderConfig(size=SIZE, cache=cache))

    def work() -> None:
        gallery = on_shelf(reading.read_files(path, SIZE, cache=cache))
        embedded(gallery, encoder, CPU, BLOCK, cache_of(run, encoder, Decision(), CPU))

    wall, cpu, peak = measured(work)
    return wall, cpu, float(decoded), peak


def _ranks(folder: Path, count: int, pictures: int, views: int) -> Table:
    file, draw = folder / "rows.npy", np.random.default_rng(0)
    array = open_memmap(file, "w+", np.float32, (count, 512))
    for start in range(0, count, 2**14):
        array[start : start + 2**14] = draw.standard_normal(array[start : start + 2**14].shape, np.float32)
    array.flush()
    del array
    rows: dict[str, Row] = {
        name: in_fresh_process(_ranked, name, str(file), pictures, views) for name in ("by blocks", "whole matrix")
    }
    title = f"Ranks among {count} rows of 512, {pictures} pictures x {views} views, one CPU"
    return Table(title, {"s": ".1f", "CPU s": ".1f", "MiB": ".0f", "mean rank": ".3f"}, rows)


def _ranked(name: str, file: str, pictures: int, views: int) -> Row:
    """Seconds, CPU seconds, MiB, and the mean rank of views that are far from their pictures."""
    gallery = torch.from_numpy(np.load(file, mmap_mode="c", allow_pickle=False))
    own = torch.arange(pictures).repeat_interleave(views)
    seen = gallery[own] + 5 * torch.randn(len(own), gallery.shape[1], generator=torch.Generator().manual_seed(0))
    ranks: list[Tensor] = []
    way = {"by blocks": _by_blocks, "whole matrix": _whole}[name]
    wall, cpu, peak = measured(lambda: ranks.append(way(gallery, seen, own, views)))
    return wall, cpu, peak, float(ranks[0].double().mean())


def _by_blocks(gallery: Tensor, seen: Tensor, own: Tensor, views: int) -> Tensor:
    rows, found = Rows((gallery,)), []
    for start in range(0, len(seen), TOGETHER):
        unit, mine = rows.unit(seen[start : start + TOGETHER]), own[start : start + TOGETHER]
        marks = [best(part, rows, row[:1]) for part, row in zip(unit.split(views), mine.split(views), strict=True)]
        mark = type(marks[0])(*(torch.cat(column) for column in zip(*marks, strict=True)))
        found.append(search(unit, rows, 1, [mark])[1][0])
    return torch.cat(found)


def _whole(gallery: Tensor, seen: Tensor, own: Tensor, views: int) -> Tensor:
    """As it is written without blocks: all cosines of a picture's views at once."""
    unit, found = F.normalize(gallery, dim=1), []
    for part, rows in zip(F.normalize(seen, dim=1).split(views), own.split(views), strict=True):
        alike = part @ unit.T
        found.append(1 + (alike > alike.gather(1, rows[:, None])).sum(1))
    return torch.cat(found)


def measured(work: Callable[[], object]) -> tuple[float, float, float | None]:
    """Seconds, CPU seconds, and the most MiB of the process's own memory, above that before: not the pages of mapped
    files, which the system takes back. None where the system does not tell it."""
    most, over, before = [_own()], threading.Event(), _own()

    def watch() -> None:
        while not over.wait(0.02):
            most[0] = max(most[0], _own())

    watcher = threading.Thread(target=watch)
    watcher.start()
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    over.set()
    watcher.join()
    return wall, cpu, (most[0] - before) / MIB if before else None


def _own() -> int:
    with suppress(OSError):
        if match := re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text()):
            return 1024 * int(match.group(1))
    return 0
