"""A table of the pictures in a folder to begin with: path, identity (of a folder of sub-folders) and cluster (near
duplicates); of films, and with --clips of folders of frames, a row for each frame, and one cluster for each clip.

    viewproof table my/pictures --out pictures.csv
    viewproof run config=quickstart data=folder data.path=pictures.csv
    viewproof table cat.gif --out cat.csv      # writes the frames, too: cat_frames/cat.gif/0000.png, ...

Add the columns that a run should read (docs/your_pictures.md). Files that cannot be read are named and left out.
"""

import argparse
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attacks.data.gallery import on_shelf
from attacks.data.images import save_frames
from attacks.data.listing import list_clips
from attacks.data.pictures import read_files
from attacks.data.table import write_table
from attacks.runtime.command_line import print_notes
from attacks.runtime.decoding import is_film
from attacks.schema.data import FolderConfig
from attacks.study.data import join_duplicates


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "a folder of pictures, or of folders of them; or a film: a GIF, WebP or PNG of several frames"
    parser.add_argument("pictures", type=Path, metavar="FOLDER", help=words)
    parser.add_argument("--clips", action="store_true", help="a film, or the pictures of a folder, are one clip")
    parser.add_argument("--out", type=Path, default=Path("table.csv"), help="the table (default: table.csv)")


def run(options: argparse.Namespace) -> None:
    out, source = options.out.absolute(), options.pictures
    is_clip = is_film(source)
    if not source.is_dir() and not is_clip:
        raise ValueError(f"`FOLDER` must be a folder of pictures, or a film; got {source}: name one")
    if out.exists() or out.suffix.lower() != ".csv":
        raise ValueError(f"`--out` must be a new file that ends in .csv; got {options.out}: name another")
    rows = [*(_clip_rows(source, out) if is_clip or options.clips else _picture_rows(source))]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(out, [row | {"path": os.path.relpath(Path(row["path"]).absolute(), out.parent)} for row in rows])
    clusters = {row.get("cluster", row["path"]) for row in rows}
    print(f"{options.out}: {len(rows)} pictures, {len(clusters)} clusters")


def _picture_rows(source: Path) -> Iterator[dict[str, str]]:
    shelf = read_files(source, FolderConfig().size, "skip")
    print_notes(shelf.notes)
    clusters = join_duplicates(on_shelf(shelf)).clusters
    counts = Counter(clusters)
    for entry, cluster in zip(shelf.entries, clusters, strict=True):
        values = {"identity": entry.label, "cluster": cluster if counts[cluster] > 1 else None}
        yield {"path": str(entry.path), **{column: value for column, value in values.items() if value is not None}}


def _clip_rows(source: Path, out: Path) -> Iterator[dict[str, str]]:
    """A row for each frame; those of films are written beside the table."""
    folder = out.with_name(f"{out.stem}_frames")
    if folder.exists():
        raise ValueError(f"`--out`: its frames go into {folder}, which must be new: name another table")
    for name, files in list_clips(source).items():
        frames = save_frames(folder / name, files[0]) if is_film(files[0]) else files
        yield from ({"path": str(frame), "identity": name, "cluster": name} for frame in frames)
