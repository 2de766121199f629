"""The keys of the group `data`: pictures to attack, and the gallery. No torch."""

from dataclasses import dataclass

from attacks.schema.options import MISSING, option
from attacks.schema.patch import SPLIT


@dataclass
class BundledConfig:
    """Tiles of the bundled photographs; the gallery is every tile of every photograph.

    Use: a first run, and figures that others can repeat.
    Not: a statement about your pictures: folder.
    Oracle: tests/data/test_gallery.py.
    """

    name: str = "bundled"
    photos: list[str] = option(
        [
            *("astronaut", "camera", "cell", "chelsea", "clock", "coffee"),
            *("hubble", "retina", "rocket", "text"),
        ],
        "photographs that queries are cut from; all others are in the gallery only",
    )
    size: int = option(128, "side of a tile in pixels", low=8, high=8192)
    count: int | None = option(10, "pictures to attack, spread over the photographs; null: every one")


@dataclass
class FolderConfig:
    """Pictures of your own.

    Use: a statement about your own pictures and your own gallery.
    Not: pictures with places for a patch: scenes.
    Oracle: tests/data/test_listing.py.
    With: data.path=my/pictures
    """

    name: str = "folder"
    path: str = option(
        MISSING,
        "a picture, folder, .txt (a path a line) or .csv (columns path, perhaps identity); bundled: the photographs",
    )
    gallery: str | None = option(
        None,
        "what a view can be taken for, likewise, or .npy, embeddings; null: all of data.path; bundled: our tiles",
    )
    size: int = option(224, "shorter side in pixels; the central square is used", low=8, high=8192)
    count: int | None = option(None, "pictures to attack; null: every one")
    split: str | None = option(None, SPLIT)
    unreadable: str = option("refuse", "or skip: leave out files that cannot be read, with a note")
    cache: str | None = option(None, "a folder that keeps the gallery's embeddings and index for other runs")
    classes: str | None = option(
        None, "for encoders with a text tower: a text file, a class a line, in place of the gallery"
    )
    templates: list[str] = option(["a photo of a {}."], "sentences for the classes")
