"""Films and folders of frames become tables with a row for each frame."""

import numpy as np
import pytest
from PIL import Image

from attacks.commands import main
from attacks.data.images import load_image
from attacks.data.listing import list_entries
from attacks.runtime.decoding import decode_film

#: Films that Pillow writes without a loss, where a frame has at most 256 colours.
FORMATS = {"cat.gif": {}, "cat.webp": {"lossless": True, "quality": 0}, "cat.png": {}}


def frames(count=12, value=0):
    """Different frames of 64 colours in blocks."""
    values = np.random.default_rng(value).integers(0, 4, (count, 3, 4, 3)) * 85
    return [Image.fromarray(np.kron(part, np.ones((8, 8, 1))).astype(np.uint8)) for part in values]


def save(path, pictures, **options):
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=40, **options)
    return path


def table(source, out, *words):
    assert main(["table", str(source), *words, "--out", str(out)]) == 0
    return list_entries(out)[0]


def equal(entries, pictures):
    rows = [(load_image(entry.path)[0] * 255).permute(1, 2, 0).numpy().round() for entry in entries]
    return len(rows) == len(pictures) and all(map(np.array_equal, rows, map(np.asarray, pictures)))


@pytest.mark.parametrize("name", FORMATS)
def test_a_film_is_a_clip_of_lossless_frames_beside_its_table_and_refused_where_it_is_cut(tmp_path, name):
    film = save(tmp_path / name, frames(), **FORMATS[name])
    entries = table(film, tmp_path / "out" / "x.csv")
    assert equal(entries, frames()) and {(entry.label, entry.cluster) for entry in entries} == {(name, name)}
    assert entries[10].path == tmp_path / "out" / "x_frames" / name / "0010.png"
    assert load_image(film)[1][-1].endswith("the first of several frames is taken (all: viewproof table)")
    content = film.read_bytes()
    for size in np.linspace(0, len(content) - 1, 40, dtype=int):
        film.write_bytes(content[:size])
        with pytest.raises(ValueError, match=r"^image `.*` cannot be read \(.*\): is the file whole"):
            decode_film(film, lambda number, frame: None)


def test_clips_of_a_folder_are_its_films_and_folders_in_the_order_of_numbers(tmp_path):
    top, pictures = tmp_path / "in", frames()
    for clip in ("b10", "b9"):
        (top / clip).mkdir(parents=True)
        for i, picture in enumerate(pictures):
            picture.save(top / clip / f"{i}.png")
    save(top / "b9" / "dog.gif", frames(3, value=1))
    entries = table(top, tmp_path / "x.csv", "--clips")
    assert [entry.cluster for entry in entries] == ["b9"] * 12 + ["b9-dog.gif"] * 3 + ["b10"] * 12
    assert equal(entries, [*pictures, *frames(3, value=1), *pictures])
    assert {entry.cluster for entry in table(top / "b10", tmp_path / "y.csv", "--clips")} == {"b10"}


def test_holes_are_laid_over_white_and_the_default_picture_of_a_png_is_no_frame(tmp_path):
    pictures, holes = [picture.convert("RGBA") for picture in frames(3)], np.zeros((24, 32), dtype=bool)
    holes[:8, :8] = True
    for picture in pictures:
        picture.putalpha(Image.fromarray(~holes))
    film = save(tmp_path / "x.png", pictures, default_image=True)  # the first is shown where films are not
    expected = [np.where(holes[..., None], 255, np.asarray(picture)) for picture in frames(3)[1:]]
    assert equal(table(film, tmp_path / "x.csv"), [Image.fromarray(values.astype(np.uint8)) for values in expected])


def test_wrong_films_and_tables_are_refused_in_one_line(tmp_path, capsys, monkeypatch):
    film, still, out = save(tmp_path / "cat.gif", frames(4)), tmp_path / "still.png", tmp_path / "x.csv"
    frames(1)[0].save(still)
    (tmp_path / "y_frames").mkdir()
    monkeypatch.setattr("attacks.runtime.decoding.MOST_FRAMES", 3)
    for source, target, message in [
        (still, out, "`FOLDER` must be a folder of pictures, or a film"),
        (film, tmp_path / "y.csv", "`--out`: its frames go into"),
        (film, out, "it has 4 frames, more than 3; cut it"),
    ]:
        assert main(["table", str(source), "--out", str(target)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line and not target.exists()
