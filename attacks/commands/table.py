"""A table of the pictures in a folder to begin with: path, identity (of a folder of sub-folders) and cluster (near
duplicates).

    viewproof table my/pictures --out pictures.csv
    viewproof run config=quickstart data=folder data.path=pictures.csv

Add the columns that a run should read (docs/your_pictures.md). Files that cannot be read are named and left out.
"""

import argparse
import os
from collections import Counter
from pathlib import Path

from attacks.data.gallery import on_shelf
from attacks.data.pictures import read_files
from attacks.data.table import write_table
from attacks.runtime.command_line import print_notes
from attacks.schema.data import FolderConfig
from attacks.study.data import join_duplicates


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pictures", type=Path, metavar="FOLDER", help="a folder of pictures, or of folders of them")
    parser.add_argument("--out", type=Path, default=Path("table.csv"), help="the table (default: table.csv)")


def run(options: argparse.Namespace) -> None:
    out = options.out.absolute()
    if not options.pictures.is_dir():
        raise ValueError(f"`FOLDER` must be a folder of pictures; got {options.pictures}: name one")
    if out.exists() or out.suffix.lower() != ".csv":
        raise ValueError(f"`--out` must be a new file that ends in .csv; got {options.out}: name another")
    shelf = read_files(options.pictures, FolderConfig().size, "skip")
    print_notes(shelf.notes)
    clusters = join_duplicates(on_shelf(shelf)).clusters
    counts, rows = Counter(clusters), []
    for entry, cluster in zip(shelf.entries, clusters, strict=True):
        values = {"identity": entry.label, "cluster": cluster if counts[cluster] > 1 else None}
        cells = {column: value for column, value in values.items() if value is not None}
        rows.append({"path": os.path.relpath(entry.path.absolute(), out.parent), **cells})
    out.parent.mkdir(parents=True, exist_ok=True)
    write_table(out, rows)
    print(f"{options.out}: {len(rows)} pictures, {len(counts)} clusters")
