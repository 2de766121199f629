"""Run directories that are not on this machine's file system: in an archive, a store of objects, or memory."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from attacks.runtime.folders import refuse_outside


@contextmanager
def local(location: str | Path) -> Iterator[Path]:
    """A folder as a path of this machine. A location with `://` (any of fsspec: `zip://run::runs.zip`, `s3://bucket/run`)
    is copied to a temporary folder, which is removed afterwards.

    Raises ValueError or OSError, in one line, for a location that does not exist or cannot be opened."""
    if "://" not in str(location):
        yield Path(location)
        return
    import fsspec

    with tempfile.TemporaryDirectory() as folder:
        try:
            files, root = fsspec.core.url_to_fs(str(location))
            names = files.find(root)
        except (ImportError, ValueError, KeyError) as error:  # a scheme whose library is missing, or that has none
            raise ValueError(f"`{location}` cannot be opened: {' '.join(str(error).split())}") from None
        if not names:
            raise FileNotFoundError(f"`{location}` holds no files: is it the directory of a run?")
        below = Path(folder, PurePosixPath(root).name or "run")
        for name in names:
            path = PurePosixPath("/", name).relative_to(PurePosixPath("/", root)).as_posix()
            refuse_outside(path, str(location))
            target = Path(below, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            files.get_file(name, str(target))
        yield below
