"""Runs on clips, whose frames share a perturbation that may change slowly."""

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

import attacks.experiment.units
from attacks import verify
from attacks.data.gallery import tiles
from attacks.data.images import load_image, save_image
from attacks.eot.faults import NotFinite
from attacks.report.captions import clips_caption
from attacks.run import compose
from attacks.study.combinations import check_combinations
from tests.helpers.processes import facts
from tests.helpers.recomputation import read, rows
from tests.helpers.runs import call

TINY = ["config=smoke", "data=folder", "data.size=32", "data.count=null", "data.gallery=bundled", "attack.steps=2"]
TINY += ["attack.views=2", "evaluate.views=4", "evaluate.refine=0", "sanity=none", "evaluate.batch=2"]
CLIPS = {"a": 3, "b": 5, "c": 1}
TIED = "perturbation.keyframes=2"


def write_table(folder, clips=CLIPS):
    """Clips of the shifted squares of a tile each, as a table."""
    folder.mkdir()
    lines = ["path,cluster,identity"]
    for tile, (clip, count) in zip(tiles(64).spread(len(clips)).images, clips.items(), strict=True):
        for frame in range(count):
            save_image(folder / f"{clip}{frame}.png", tile[:, frame : frame + 32, frame : frame + 32])
            lines.append(f"{clip}{frame}.png,{clip},{clip}")
    (folder / "clips.csv").write_text("\n".join(lines))
    return f"data.path={folder / 'clips.csv'}"


@pytest.fixture
def finished(shared_runs):
    def make(folder):
        with pytest.MonkeyPatch.context() as patch:
            words = [*TINY, TIED, write_table(folder / "in"), f"hydra.run.dir={folder / 'run'}"]
            assert call(patch, *words) == 0

    return shared_runs.folder("clips", make) / "run"


@pytest.mark.slow
def test_files_are_interpolated_and_every_number_can_be_judged_again(finished):
    assert verify(finished, 1).passed
    content, table = read(finished), rows(finished, "per_image")
    clean = torch.stack([load_image(finished / "pictures/clean" / name)[0] for name in content["queries"]])
    for arm, delta in load_file(finished / "perturbation.safetensors").items():
        levels = delta * 255
        assert (levels - levels.round()).abs().max() < 1e-3
        assert levels.abs().max() <= 255 * content["threat"]["eps"] + 1e-3
        for row, begin, end, share in [(1, 0, 2, 0.5), (4, 3, 7, 0.25), (5, 3, 7, 0.5), (6, 3, 7, 0.75)]:
            inside = ((clean + delta) % 1 != 0)[[begin, row, end]].all(0)  # no frame is clamped there
            mean = (1 - share) * levels[begin] + share * levels[end]
            assert (levels[row] - mean).abs()[inside].max() <= 1 + 1e-3, (arm, row)  # half a level of each rounding
    assert content["threat"]["keyframes"] == 2 and content["primary"]["clusters"] == len(CLIPS)
    for clip in content["clips"]:
        part = [row for row in table if row["clip"] == clip["clip"] and row["bank"] == "same"]
        for arm in ("clean", "eot"):
            frames = {int(row["frame"]): float(row["success"]) for row in part if row["arm"] == arm}
            assert [frames[i] for i in range(CLIPS[clip["clip"]])] == clip[arm]
    page = (finished / "report.html").read_text()
    assert clips_caption(content["clips"]).removeprefix("Success") in page and "for each clip in 2 key frames" in page


@pytest.mark.slow
def test_one_key_frame_of_one_clip_is_the_universal_perturbation_of_its_frames(tmp_path, monkeypatch):
    words = [*TINY, write_table(tmp_path / "in", {"a": 3})]
    folders = {"keyframes=1": tmp_path / "tied", "shared=true": tmp_path / "shared"}
    for word, folder in folders.items():
        assert call(monkeypatch, *words, f"perturbation.{word}", f"hydra.run.dir={folder}") == 0
    tied, shared = map(facts, folders.values())
    files = [name for name in tied if name.startswith("pictures/")] + ["steps.csv"]
    assert len(files) > 3 * 4 and all(tied[name] == shared[name] for name in files)


@pytest.mark.slow
def test_a_run_stopped_between_clips_goes_on_and_a_clip_fails_as_a_whole(finished, tmp_path, monkeypatch):
    source, real, units = finished.parent / "in" / "clips.csv", attacks.experiment.units.attack_unit, []
    errors = {1: KeyboardInterrupt()}

    def attack_unit(bench, unit):
        units.append(unit.stop - unit.start)
        if unit.number in errors:
            raise errors[unit.number]
        return real(bench, unit)

    monkeypatch.setattr(attacks.experiment.units, "attack_unit", attack_unit)
    words = [*TINY, TIED, f"data.path={source}"]
    assert call(monkeypatch, *words, f"hydra.run.dir={tmp_path / 'run'}") == 130
    errors.clear()
    assert call(monkeypatch, f"resume={tmp_path / 'run'}") == 0
    assert units == [3, 5, 5, 1] and facts(tmp_path / "run") == facts(finished)
    errors[0] = NotFinite("NaN begins at lens")
    assert call(monkeypatch, *words, f"hydra.run.dir={tmp_path / 'other'}") == 1
    content = read(tmp_path / "other")
    assert [row["name"] for row in content["failed"]] == ["a0.png", "a1.png", "a2.png"]
    assert [clip["clip"] for clip in content["clips"]] == ["b", "c"] and verify(tmp_path / "other", 1).passed


def test_key_frames_are_refused_with_keys_about_each_picture_or_all():
    run = compose("smoke", [TIED])
    check_combinations(run)
    for group, key, value in [
        ("perturbation", "shared", True),
        ("perturbation", "mask", "table"),
        ("perturbation", "name", "l0"),
        ("attack", "name", "radius"),
        ("optimiser", "name", "label_only"),
        ("attack", "start_from", "a"),
    ]:
        word = f"{group}={value}" if key == "name" else f"{group}.{key}={str(value).lower()}"
        with pytest.raises(ValueError, match=rf"^`perturbation.keyframes` does not go with {word}, .*; got 2: say "):
            check_combinations(replace(run, **{group: replace(getattr(run, group), **{key: value})}))
