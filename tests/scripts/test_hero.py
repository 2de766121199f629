"""The first picture of the README, made with a shorter attack."""

from pathlib import Path

import pytest
from PIL import Image

from scripts import hero

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.real
def test_the_picture_has_three_rows_of_a_file_and_six_views(tmp_path, monkeypatch):
    words = hero.WORDS.replace("gradients=128", "gradients=4").replace("views=32", "views=8")
    monkeypatch.setattr(hero, "WORDS", words)
    hero.main(tmp_path / "hero.jpg")
    with Image.open(tmp_path / "hero.jpg") as picture, Image.open(ROOT / "docs" / "hero.jpg") as original:
        (width, height), size = picture.size, original.size
    assert width / height == pytest.approx(7 / 3, rel=0.15)  # squares, titles above and the names of rows beside
    assert (width, height) == size
