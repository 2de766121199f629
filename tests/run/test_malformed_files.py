"""Whatever file a key or a command is given, it is read, or refused in one line."""

import gzip
import io
import zipfile

import numpy as np
import pytest

from attacks.commands import main
from tests.experiment.conftest import WORDS
from tests.helpers.runs import call
from tests.helpers.wrong import in_time


def npy(**header):
    """The bytes of an array, with another header."""
    buffer = io.BytesIO()
    rows = np.random.default_rng(0).random((6, 4))
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (6, 4)} | header)
    return buffer.getvalue() + rows.tobytes()


def zip_bytes(name="run/manifest.json", kind=zipfile.ZIP_STORED, at=None, value=b""):
    """The bytes of a zip; `value` in the place of byte `at` of both records of its file."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as archive:
        archive.writestr(name, b"{}" * 99)
    content = bytearray(buffer.getvalue())
    for mark, offset in ((b"PK\3\4", 0), (b"PK\1\2", 2)) if at is not None else ():
        content[(place := content.find(mark) + at + offset) : place + len(value)] = value
    return bytes(content)


CONTENTS = {
    "nothing": b"",
    "noise": np.random.default_rng(1).bytes(999),
    "UTF-16": "path\na.png\n".encode("utf-16"),
    "a zip": zip_bytes(),
    "a cut zip": zip_bytes()[:-40],
    "a zip with other bytes": zip_bytes().replace(b"{}" * 9, b"[]" * 9, 1),
    "a zip with a password": zip_bytes(at=6, value=b"\1"),
    "a zip of another method": zip_bytes(at=8, value=b"\x63"),
    "a damaged zip": zip_bytes(kind=zipfile.ZIP_DEFLATED, at=50, value=b"\xff" * 9),
    "a zip that leads out": zip_bytes("run/../../out"),
    "a zip with a line break": zip_bytes("run/a\nb\x1b[2J"),
    "a cut gz": gzip.compress(bytes(999))[:-9],
    "7z": b"7z\xbc\xaf\x27\x1c\0\4" + bytes(60),
    "an array": npy(),
    "a negative side": npy(shape=(-6, 4)),
    "a huge side": npy(shape=(2**62, 4)),
    "a boolean side": npy(shape=(True, 4)),
    "an open header": b"\x93NUMPY\1\0\x76\0{'descr': '<f8', 'shape': (" + b"(" * 90,
    "a JSON key": b'{"a\\nb\\u001b[2J": {"quads": [[1]]}}',
    "deep JSON": b"[" * 99999,
    "a column": b'"pa\nth","\x1b[2J"\na.png,b\n',
    "a YAML key": b'"a\\nb\\e[2J": 1\nclaim: "x"\n',
    "a YAML value": b'encoder: {model: "a\\nb"}\nseed: "\\e[2J\\n"\n',
}
SMOKE, PATCH = (["config=smoke", *WORDS[1:]], ["config=patch", *WORDS[1:], "perturbation.size=[8,8]"])
#: The words of a run or of another command with {} for the file -> the endings of the file. The first ones are fast.
KEYS = {
    "config={}": "yaml",
    "resume={}": "zip",
    "compare zip://run::{} --out out": "zip",
    "verify zip://run::{}": "zip",
    "gate {} run": "yaml",
    "show --transforms {}": "yaml",
    "show --transforms camera --image {}": "png",
    "plan {}": "csv",
    "require={}": "yaml",
    "data=folder data.path={}": "png csv txt",
    "data=folder data.path=bundled data.gallery={}": "npy csv",
    "config=patch_universal data.path={}": "csv json",
    "perturbation.mask={}": "png",
    "objective=toward objective.target={}": "png",
    "perturbation.start_from={}": "png",
    "perturbation.shape={}": "png",
    "perturbation.gamut={}": "icc cube",
    "printer=office printer.colour={}": "icc cube json",
    "penalty=nps penalty.palette={}": "txt",
    "encoder.weights={}": "safetensors pt",
    "encoder=torchscript encoder.model={}": "pt",
    "engine.reuse={}": "json",
}
PATCHES = ("perturbation.start", "perturbation.shape", "perturbation.gamut", "printer", "penalty")
CASES = [pytest.param(key, marks=pytest.mark.slow if at < 8 else pytest.mark.nightly) for at, key in enumerate(KEYS)]


@pytest.mark.parametrize("key", CASES)
def test_every_file_is_read_or_refused_in_one_line(tmp_path, monkeypatch, capsys, key):
    monkeypatch.chdir(tmp_path)
    for number, (name, content) in enumerate(CONTENTS.items()):
        for ending in KEYS[key].split():
            file = tmp_path / f"x{number}.{ending}"
            file.write_bytes(content)
            if ending == "npy":
                file.with_suffix(".txt").write_text("a\nb\nc\nd\ne\nf\n")
            words = key.format(file).split()
            if "=" in words[0] and not key.startswith(("config", "resume")):
                words = [*(PATCH if key.startswith(PATCHES) else SMOKE), *words, f"hydra.run.dir=r{number}{ending}"]
            with in_time():
                code = call(monkeypatch, *words) if "=" in words[0] else main(words)
            output = capsys.readouterr()
            lines = [line for line in output.err.splitlines() if not line.startswith(("note: ", "warning: "))]
            assert "\x1b" not in output.out + output.err and code in (0, 1), (name, ending)
            plain = len(lines) == 1 and lines[0].startswith("error: ") and lines[0].isprintable()
            assert code == 0 or plain or (not lines and output.out), (name, ending, output.err)
