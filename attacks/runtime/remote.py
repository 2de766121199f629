"""Run directories that are not on this machine's file system: in an archive, a store of objects, or memory."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from attacks.runtime.folders import refuse_outside

#: The most files and bytes that are copied, and bytes from each of an archive: JSON becomes 20 times larger.
MOST_FILES, MOST_BYTES, MOST_RATIO = 100_000, 2**31, 100


@contextmanager
def local(location: str | Path) -> Iterator[Path]:
    """A folder as a path of this machine. A location with `://` (any of fsspec: `zip://run::runs.zip`, `s3://bucket/run`)
    is copied to a temporary folder, which is removed afterwards.

    Raises ValueError or OSError, in one line, for a location that does not exist or cannot be opened, or is beyond
    `MOST_FILES`, `MOST_BYTES` or `MOST_RATIO`: what is listed before anything is written, what is not while it is."""
    if "://" not in str(location):
        yield Path(location)
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            copy_folder = _copy(str(location), Path(folder))
        except FileNotFoundError:
            raise
        except Exception as error:  # a scheme whose library is missing, an archive's errors, the limits
            raise ValueError(f"`{location}` cannot be opened: {' '.join(str(error).split())}") from None
        yield copy_folder


def _copy(location: str, folder: Path) -> Path:
    import fsspec

    archives = re.findall(r"(?:^|::)(zip|tar|libarchive)://", location)
    if archives not in ([], ["zip"]):
        raise ValueError("archives are read as zip, which lists its files, and not within another: pack it anew")
    limit = MOST_BYTES
    if archives:
        store, path = fsspec.core.url_to_fs(location.partition("::")[2])
        limit = min(limit, MOST_RATIO * (store.size(path) or 0))
    files, root = fsspec.core.url_to_fs(location)
    sizes = {name: info.get("size") or 0 for name, info in files.find(root, detail=True).items()}
    if not sizes:
        raise FileNotFoundError(f"`{location}` holds no files: is it the directory of a run?")
    if len(sizes) > MOST_FILES or sum(sizes.values()) > limit:
        raise ValueError(
            f"{len(sizes):,} files of {sum(sizes.values()):,} bytes, and at most {MOST_FILES:,} of "
            f"{limit:,} are copied: copy it yourself if you trust it"
        )
    below, size = Path(folder, PurePosixPath(root).name or "run"), 0
    for name in sizes:
        path = PurePosixPath("/", name).relative_to(PurePosixPath("/", root)).as_posix()
        refuse_outside(path, location)
        target = Path(below, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with files.open(name, "rb") as source, target.open("wb") as copy:
            for part in iter(partial(source.read, 2**20), b""):
                size += len(part)
                if size > limit:
                    raise ValueError(f"it holds more than it says: at most {limit:,} bytes are copied")
                copy.write(part)
    return below
