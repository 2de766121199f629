"""The laws of `scripts/fuzz.py images` on cases that are always the same, and the fuzzer itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

import fuzz
from fuzzing import images, worker
from fuzzing.damage import damaged
from fuzzing.seeds import MOVING, seeds
from fuzzing.target import Broken

from attacks.data.images import FORMATS, load_image

few = settings(max_examples=150, deadline=None, derandomize=True, database=None)


def test_the_laws_hold_on_damaged_files():
    few(given(images.CASES)(images.check))()


@pytest.mark.slow
def test_the_laws_hold_on_many_damaged_files():
    settings(few, max_examples=5000)(given(images.CASES)(images.check))()


@pytest.mark.parametrize("name", seeds())
def test_whole_files_are_read_and_what_is_none_of_our_formats_is_not(name, tmp_path):
    path = tmp_path / "picture"
    path.write_bytes(seeds()[name])
    images.check(path.read_bytes())
    if name in ("ppm", "pgm", "ico", "tiff-F"):
        with pytest.raises(ValueError, match="cannot be read"):
            load_image(path)
    else:
        turned = "turned" in name and not name.endswith("-2")
        assert load_image(path)[0].shape == ((3, 17, 24) if turned else (3, 24, 17))


def test_the_files_are_of_every_format_and_every_orientation_turns():
    assert {name.split("-")[0].upper() for name in seeds()} >= {*FORMATS, *MOVING}


def test_damage_follows_from_its_number_and_most_of_it_hurts():
    whole, other = seeds()["png-RGB"], seeds()["jpeg-RGB"]
    hurt = [damaged(whole, number, other) for number in range(100)]
    assert hurt == [damaged(whole, number, other) for number in range(100)]
    assert sum(content != whole for content in hurt) > 60
    assert sum(content.startswith(whole[:8]) for content in hurt) > 30  # and is still taken for a PNG


def answers(*given):
    """A stand-in for `load_image` that gives one after the other."""
    left = list(given)

    def load(path):
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise type(answer)(*(str(part).replace("PATH", str(path)) for part in answer.args))
        return answer

    return load


GREY = torch.full((3, 4, 5), 0.5)


@pytest.mark.parametrize(
    "load",
    [
        answers(KeyError("PATH")),
        answers(MemoryError("PATH")),
        answers(ValueError("no name")),
        answers(ValueError("PATH\nin two lines")),
        answers(ValueError("PATH MemoryError")),
        answers(ValueError("PATH"), (GREY, [])),
        answers((GREY, []), (GREY + 0.1, [])),
        answers((GREY, []), (GREY, ["otherwise"])),
        answers((GREY, ["two\nlines"])),
        answers((GREY * torch.nan, [])),
        answers((GREY + 1, [])),
        answers((GREY[0], [])),
        answers((GREY[:1], [])),
        answers((GREY.int(), [])),
        answers((torch.zeros(1).expand(3, 10_000, 10_000), [])),
    ],
)
def test_each_law_is_noticed_where_it_is_broken(load, monkeypatch):
    monkeypatch.setattr(images, "load_image", load)
    with pytest.raises((Broken, KeyError, MemoryError)):
        images.check(b"")


def test_the_shortest_case_of_each_kind_of_error_is_kept_with_what_was_said(tmp_path):
    for content, said in (
        (b"long case", "a law, 3"),
        (b"case", "a law, 4"),
        (b"longer case", "a law, 5"),
        (b"x", "another"),
    ):
        try:
            raise Broken(said)
        except Broken as error:
            worker.record(tmp_path, images.TARGET, content, error)
    kept = sorted(file.read_bytes() for file in tmp_path.glob("*.bin"))
    assert kept == [b"case", b"x"]
    assert sorted(file.read_text().splitlines()[-1] for file in tmp_path.glob("*.txt")) == [
        "fuzzing.target.Broken: a law, 4",
        "fuzzing.target.Broken: another",
    ]


def test_what_was_found_goes_to_the_folder_of_cases_with_its_command(tmp_path):
    found, cases = tmp_path / "found", tmp_path / "cases"
    found.mkdir(), cases.mkdir()
    (found / "images-1.bin").write_bytes(b"case")
    (found / "images-1.txt").write_text("a traceback")
    assert fuzz.collect("images", found, cases) == {"images-1.bin"}
    assert (cases / "images-1.bin").read_bytes() == b"case"
    assert f"python scripts/fuzz.py images --replay {cases / 'images-1.bin'}" in (cases / "images-1.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("target", worker.TARGETS)
def test_the_script_makes_cases_and_ends_in_time(target, tmp_path):
    command = [
        sys.executable,
        "-W",
        "error",
        fuzz.__file__,
        target,
        "--minutes",
        "0.1",
        "--cases",
        str(tmp_path),
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert int(said.split(" cases")[0].split()[-1]) > 0 and ", 0 findings" in said and not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_case_that_breaks_a_law_is_replayed_as_broken(tmp_path):
    case = tmp_path / "case.json"
    case.write_text(json.dumps({"stages": {"gain": {}}}))  # it does not even say how large the pictures are
    command = [sys.executable, fuzz.__file__, "stages", "--replay", str(case)]
    assert subprocess.run(command, capture_output=True, cwd=tmp_path).returncode == 1
    case = tmp_path / "case.bin"
    case.write_bytes(seeds()["gif-P"])
    command = [sys.executable, fuzz.__file__, "images", "--replay", str(case)]
    assert subprocess.run(command, capture_output=True, cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(("width", "height"), [(17, 65_536), (17, 4_325_400)])
def test_a_thread_of_pixels_is_refused_before_it_is_decoded(width, height, tmp_path):
    content = bytearray(seeds()["webp-moving"])  # 500 bytes of it took seconds, and three gigabytes
    at = content.index(b"VP8X") + 12
    content[at : at + 6] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    (tmp_path / "picture").write_bytes(content)
    with pytest.raises(ValueError, match="65,535 pixels long"):
        load_image(tmp_path / "picture")
