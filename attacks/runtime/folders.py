"""Folders of strangers that something is to be written to."""

from __future__ import annotations

import os
from pathlib import Path


def refuse_links(folder: Path) -> None:
    """Raise ValueError where a link in a run directory leads out of it: what is written there would end up elsewhere.

    The directory itself may be a link, for whoever names it knows where it leads; and trackers link their own files.
    """
    whole = os.path.realpath(folder)
    for here, folders, files in os.walk(folder):  # does not follow links
        for name in (*folders, *files):
            path = Path(here, name)
            if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(whole):
                raise ValueError(
                    f"`{path}` is a link that leads out of its run directory: what is written there would end up "
                    "elsewhere; put what it points to in its place, or take it away"
                )


def short(text: str) -> str:
    """A text for an error message: printable, and no longer than a line."""
    plain = "".join(letter if letter.isprintable() else "?" for letter in text[:120])
    return plain if len(text) <= 120 else f"{plain}..."
