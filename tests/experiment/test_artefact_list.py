"""The list of the files of a run."""

import json

import pytest

from attacks.experiment.directory import CHECKPOINT, FILES, METRICS, artefact_differences, artefact_paths, finish

NAMES = ["../a.png", "/a.png", "a/../../b.png", "", ".", "a\\b.png", "a\0.png", "./a.png", "a//b.png", 3, None]


def manifest(names=("a.png",), files=("manifest.json", METRICS, FILES), folders=(CHECKPOINT,)):
    pictures = {"arms": ["clean", "eot"], "names": [*names]}
    return {"artefacts": {"pictures": pictures, "files": [*files], "folders": [*folders]}}


def test_every_picture_of_every_arm_is_listed():
    paths = artefact_paths(manifest(names=("a.png", "b.png")))
    assert [path for path in paths if path.startswith("pictures/")] == [
        "pictures/clean/a.png",
        "pictures/clean/b.png",
        "pictures/eot/a.png",
        "pictures/eot/b.png",
    ]
    assert {"manifest.json", METRICS, FILES, "fault.000001.safetensors"} < {*paths}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", ["names", "files", "folders"])
def test_a_path_that_leads_elsewhere_is_refused(key, name):
    with pytest.raises(ValueError, match="relative"):
        artefact_paths(manifest(**{key: (name,)}))


@pytest.mark.parametrize("artefacts", [None, [], {}, {"pictures": [], "files": [], "folders": []}, "a"])
def test_a_list_of_another_shape_is_refused(artefacts):
    with pytest.raises(ValueError, match="artefacts"):
        artefact_paths({"artefacts": artefacts})


def test_the_two_digests_cover_every_byte_of_both_files(tmp_path):
    record, content = manifest(), {"numbers": [1, 2.5], "text": 'of "files": "'}
    (tmp_path / "manifest.json").write_text(json.dumps(record))
    (tmp_path / "mine.txt").write_text("no file of the run")
    (tmp_path / "out.txt").write_text("a file that no list names")
    digest = finish(tmp_path, record, content)
    assert json.loads((tmp_path / METRICS).read_text()) == content | {"files": digest}
    assert {*json.loads((tmp_path / FILES).read_text())["files"]} == {"manifest.json", METRICS}
    assert not [*artefact_differences(tmp_path, record, content)]
    for name in (METRICS, FILES):
        data = (tmp_path / name).read_bytes()
        for at in range(len(data)):
            (tmp_path / name).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            try:
                forgery = json.loads((tmp_path / METRICS).read_text())
            except ValueError:
                continue
            assert [*artefact_differences(tmp_path, record, forgery)], (name, at)
        (tmp_path / name).write_bytes(data)
    (tmp_path / FILES).write_text(json.dumps({"files": {"../secret": {}}}))
    assert "lead to no other folder" in [*artefact_differences(tmp_path, record, content)][1]
