"""Run directories and names that somebody else may have made."""

import os
from pathlib import Path, PurePosixPath


def refuse_links(folder: Path) -> None:
    """Raise ValueError for a link in a run directory that leads out of it: files would be written elsewhere.

    The directory itself may be a link, which its user chose, and trackers link files within it.
    """
    root = os.path.realpath(folder)
    for place, folders, files in os.walk(folder):  # does not follow links
        for name in (*folders, *files):
            path = Path(place, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                raise ValueError(
                    f"`{path}` is a link that leads out of its run directory, so files would be written elsewhere; "
                    "replace it by its target, or remove it"
                )


def refuse_file(folder: Path | None, key: str) -> None:
    """Raise ValueError where a folder to write into, or one above it, is a file. None: nothing is written."""
    for path in () if folder is None else (folder, *folder.parents):
        if path.exists():
            if not path.is_dir():
                raise ValueError(f"`{key}` must be a folder, and {path} is a file; name another")
            return


def short_path(text: str) -> str:
    """A text for an error message: printable, at most 120 characters."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:120])
    return plain if len(text) <= 120 else f"{plain}..."


def refuse_outside(path: object, source: str) -> None:
    """Raise ValueError unless a path of the file `source` is relative and stays within its folder."""
    if isinstance(path, str) and "\0" not in path and "\\" not in path:
        plain = PurePosixPath(path)
        if path and plain.as_posix() == path and not plain.is_absolute() and ".." not in plain.parts and path != ".":
            return
    raise ValueError(f"{source}: a path must be relative and lead to no other folder; it holds {path!r:.120}")
