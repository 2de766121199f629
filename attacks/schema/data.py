"""The keys of the group `data`: pictures to attack, and the gallery. No torch."""

from dataclasses import dataclass

from attacks.schema.options import MISSING, option

FIT = "clusters that a perturbation which pictures share is made from, at most; the judged ones stay; null: all"


@dataclass
class BundledConfig:
    """Tiles of the bundled photographs; the gallery is every tile of every photograph.

    Use: a first run, and figures that others can repeat.
    Not: a statement about your pictures: folder.
    Oracle: tests/data/test_gallery.py.
    """

    name: str = "bundled"
    photos: list[str] = option(
        [*("astronaut", "camera", "cell", "chelsea", "clock", "coffee"), *("hubble", "retina", "rocket", "text")],
        "photographs that queries are cut from; all others are in the gallery only",
    )
    size: int = option(128, "side of a tile in pixels", low=8, high=8192)
    count: int | None = option(10, "pictures to attack, spread over the photographs; null: every one")
    fit: int | None = option(None, FIT, low=1)


@dataclass
class PicturesConfig:
    """What pictures of the user's own have in common."""

    name: str = MISSING
    path: str = MISSING
    gallery: str | None = None
    size: int | None = option(
        224, "shorter side in pixels; the central square is used; null: pictures keep their shape", low=8, high=8192
    )
    count: int | None = option(None, "pictures to attack; null: every one")
    fit: int | None = option(None, FIT, low=1)
    unreadable: str = option("refuse", "or skip: leave out files that cannot be read, with a note")
    cache: str | None = option(None, "a folder that keeps the gallery's embeddings and index for other runs")


@dataclass
class FolderConfig(PicturesConfig):
    """Pictures of your own.

    Use: a statement about your own pictures and your own gallery.
    Not: pictures with places for a patch: scenes.
    Oracle: tests/data/test_listing.py.
    With: data.path=my/pictures
    """

    name: str = "folder"
    path: str = option(
        MISSING,
        "a picture, folder, .txt (a path a line), or table, .csv or .parquet (docs/your_pictures.md); bundled: the "
        "photographs; imagenet20: those of Foolbox's wheel, by class",
    )
    gallery: str | None = option(
        None,
        "what a view can be taken for, likewise, or .npy, embeddings; null: all of data.path; bundled: our tiles",
    )


@dataclass
class ScenesConfig(PicturesConfig):
    """Photographs in which a patch has its places (docs/patch_in_a_scene.md has the format).

    Use: a patch that lies on a surface of its own in each photograph.
    Not: pictures without places: folder.
    Oracle: tests/data/test_scenes.py.
    With: config=patch data.path=bundled
    """

    name: str = "scenes"
    path: str = option(MISSING, "a table of photographs and places; bundled: a few that ship")
    gallery: str | None = option(None, "what a view can be taken for, as of folder; null: all of data.path")
