"""Runs on encoders that can only be asked."""

import json
import subprocess
import sys

import pytest

from attacks.encoders.black_box.asked import SAMPLE
from attacks.verification.verify import verify
from tests.helpers.processes import without_times
from tests.helpers.questions import WORDS, module, pictures, query_digests, refusal
from tests.helpers.runs import call
from tests.helpers.services import serving
from tests.run.test_run import ROOT


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return WORDS + pictures(tmp_path_factory.mktemp("data") / "photos")


ENCODER = ["encoder=callable", "encoder.model=victim:corners"]


def metrics(folder):
    return without_times(json.loads((folder / "metrics.json").read_text()))


def distinct_digests(digests):
    """The pictures, asked about once, but for some of the last process that are asked about again at its end."""
    repeats = len(digests) - len(set(digests))
    assert 0 < repeats <= SAMPLE and not {*digests[-repeats:]} - {*digests[:-repeats]}
    return digests[:-repeats]


#: An encoder that says same or not, with the attack that is made for it.
YES_NO = ["encoder=callable", "encoder.model=victim:enrolled", "encoder.answer=same", "optimiser=label_only"]
YES_NO += ["attack.views=4", "attack.gradients=16"]


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [ENCODER, YES_NO], ids=["vectors", "same"])
def test_a_stopped_and_resumed_run_repeats_no_question(encoder, words, tmp_path, monkeypatch, capsys):
    module(tmp_path, monkeypatch)
    assert call(monkeypatch, *words, *encoder, f"hydra.run.dir={tmp_path / 'whole'}") == 0
    reference_digests = distinct_digests(query_digests(tmp_path))
    assert len(reference_digests) == metrics(tmp_path / "whole")["asked"]
    assert (
        f"asked about {len(reference_digests)} different pictures" in (tmp_path / "whole" / "report.html").read_text()
    )
    assert "queries.jsonl" in json.loads((tmp_path / "whole" / "files.json").read_text())["files"]
    verdict = verify(tmp_path / "whole", program=encoder[1].partition("=")[2])
    assert verdict.passed, verdict.problems
    assert (
        f"its {len(reference_digests)} answers were used" in verdict.notes[-1]
        and "; 0 pictures were" in verdict.notes[-1]
    )
    assert distinct_digests(query_digests(tmp_path)) == reference_digests
    (tmp_path / "seen").unlink()
    for limit in (5, len(reference_digests) // 2, len(reference_digests) - 3):
        (tmp_path / "most").write_text(str(limit))
        resume = (tmp_path / "parts").exists()
        arguments = (f"resume={tmp_path / 'parts'}", encoder[1]) if resume else (*words, *encoder)
        code = call(monkeypatch, *arguments, *([] if resume else [f"hydra.run.dir={tmp_path / 'parts'}"]))
        assert "RuntimeError: first line second line" in refusal(capsys, code)
    (tmp_path / "most").unlink()
    assert call(monkeypatch, f"resume={tmp_path / 'parts'}", encoder[1]) == 0
    assert sorted(distinct_digests(query_digests(tmp_path))) == sorted(reference_digests)
    reference, parts_metrics = metrics(tmp_path / "whole"), metrics(tmp_path / "parts")
    for key in ("arms", "asked", "costs"):
        assert reference[key] == parts_metrics[key]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimiser=wiener"], "`optimiser=wiener` follows gradients"),
        (["attack=suite"], "`attack=suite` follows gradients"),
        (["evaluate.explain=1"], "`evaluate.explain`"),
        (["workers=2"], "`workers`"),
        (["data.cache=cache"], "`data.cache`"),
        (["encoder.answer=label"], "`encoder.answer`"),
        (["encoder.answer=same"], "use optimiser=label_only"),
        (["encoder.model=victim"], "`encoder.model`"),
    ],
)
def test_what_cannot_be_combined_is_refused_before_anything_is_asked(
    words, tmp_path, monkeypatch, capsys, arguments, message
):
    module(tmp_path, monkeypatch)
    plain = [word for word in words if not (arguments[0] == "attack=suite" and word.startswith("attack."))]
    code = call(monkeypatch, *plain, *ENCODER, *arguments, f"hydra.run.dir={tmp_path / 'run'}")
    assert message in refusal(capsys, code)
    assert not query_digests(tmp_path) and not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.slow
def test_a_preset_and_a_directory_may_not_choose_an_encoder(words, tmp_path, monkeypatch, capsys):
    module(tmp_path, monkeypatch)
    preset = tmp_path / "mine.yaml"
    preset.write_text("defaults: [{override /encoder: callable}]\nencoder: {model: 'victim:corners'}\n")
    code = call(monkeypatch, f"config={preset}", *words[1:], f"hydra.run.dir={tmp_path / 'run'}")
    assert "`encoder=callable` runs your code" in refusal(capsys, code)
    (tmp_path / "most").write_text("2")
    call(monkeypatch, *words, *ENCODER, f"hydra.run.dir={tmp_path / 'run'}")
    refusal(capsys, 1)
    (tmp_path / "most").unlink()
    assert "may not choose it" in refusal(capsys, call(monkeypatch, f"resume={tmp_path / 'run'}"))
    assert len(query_digests(tmp_path)) == 2


@pytest.mark.nightly
def test_a_killed_run_asks_the_server_about_no_picture_twice_and_hides_its_key(words, tmp_path, monkeypatch):
    monkeypatch.setenv("VIEWPROOF_SECRET", "s3cret-0123456789")
    running, kills = [], {7, 30}

    def odd(number):
        if number in kills:
            return lambda _: running[-1].kill()
        return (lambda handler: handler.reply(503, b"")) if number in (3, 12) else None

    with serving(odd) as server:
        out, model = tmp_path / "run", f"encoder.model={server.url}"
        begin = [*words, "encoder=http", model, "encoder.key=VIEWPROOF_SECRET", f"hydra.run.dir={out}"]
        for arguments in (begin, *[[f"resume={out}", model]] * len(kills)):
            command = [sys.executable, "-W", "error", "-m", "attacks.run", *arguments]
            running.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
            _, error = running[-1].communicate()
    assert [process.returncode for process in running] == [-9, -9, 0], error.decode()
    assert sum(server.answered.values()) == len(server.answered) + SAMPLE and set(server.answered.values()) == {1, 2}
    assert len(server.answered) == metrics(out)["asked"] == len((out / "queries.jsonl").read_text().splitlines())
    files = [path for path in out.rglob("*") if path.is_file()]
    assert files and not [path for path in files if b"s3cret" in path.read_bytes()]
