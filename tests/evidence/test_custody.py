"""Attempts to make a policy, a lock, a date or a record lie: each is refused, or named on the page."""

import json
import re
import shutil
import subprocess

import pytest

from attacks.commands import main
from attacks.runtime.clock import now_text
from attacks.runtime.files import sha256
from tests.evidence.test_evidence import bundle as bundle
from tests.evidence.test_evidence import copy as copy
from tests.evidence.test_evidence import problems_by_piece, tamper
from tests.helpers.liars import cell, combine, entry, file_bytes
from tests.helpers.page import Page
from tests.helpers.runs import call


def read(path):
    return json.loads(path.read_text())


def forged(*edits):
    """Edits of the run, after which its digests fit again, as if made by somebody who knows their rules."""
    return lambda folder: combine(*edits, file_bytes)(folder / "run")


def claim(*place, value="0" * 64, name="manifest.json"):
    return forged(entry(name, *place, value=value))


def record(change):
    """Another record of the policy in the run, also in its identity."""

    def edit(run):
        manifest = read(run / "manifest.json")
        manifest["policy"] = change(run, manifest["policy"])
        manifest["identity"]["the policy"] = json.dumps(manifest["policy"])
        (run / "manifest.json").write_text(json.dumps(manifest))

    return forged(edit)


def drop_lock(run, policy):
    (run / "policy.lock.json").unlink()
    return policy | {"lock": None}


def late_lock(run, policy):
    path, end = run.parent / "mine.lock.json", read(run / "files.json")["ended"]
    entry(path.name, "date", value=end)(run.parent)
    shutil.copy(path, run / "policy.lock.json")
    return policy | {"lock": {"date": end, "sha256": sha256(path)}}


def change(old, new, name="mine.yaml"):
    return lambda folder: tamper(folder, name, old, new)


def lock_again(folder):
    (folder / "mine.lock.json").unlink()
    assert main(["gate", "--lock", "mine.yaml"]) == 0


def end(time):
    def edit(folder):
        entry("files.json", "ended", value=time)(folder / "run")
        entry("metrics.json", "files", value=sha256(folder / "run" / "files.json"))(folder / "run")

    return edit


def start_now(run):
    entry("manifest.json", "started", value=now_text())(run)


AUTHORITY = """[req]
distinguished_name = name
[name]
[extensions]
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping
subjectKeyIdentifier = hash
[tsa]
default_tsa = tsa
serial = serial
signer_cert = tsa.pem
signer_key = tsa.key
signer_digest = sha256
certs = tsa.pem
default_policy = 1.2.3.4
digests = sha256
ess_cert_id_alg = sha256
"""


def stamp(file, roots="tsa"):
    """A timestamp of a file by the authority `tsa` of this test, and the certificate of `roots` beside it."""

    def edit(folder):
        pytest.importorskip("rfc3161_client")
        if shutil.which("openssl") is None:
            pytest.skip("there is no openssl")
        (folder / "serial").write_text("01\n")
        (folder / "tsa.cnf").write_text(AUTHORITY)
        made = "req -x509 -newkey rsa:2048 -nodes -config tsa.cnf -extensions extensions -days 9"
        lines = [f"{made} -keyout {name}.key -out {name}.pem -subj /CN={name}" for name in {"tsa", roots} - {None}]
        lines += [f"ts -query -sha256 -cert -out q.tsq -data {file}"]
        for line in (*lines, "ts -reply -config tsa.cnf -queryfile q.tsq -out mine.tsr"):
            subprocess.run(["openssl", *line.split()], cwd=folder, check=True, capture_output=True)
        if roots is not None:
            shutil.copy(folder / f"{roots}.pem", folder / "mine.roots.pem")

    return edit


def scribble(folder):
    pytest.importorskip("rfc3161_client")
    (folder / "mine.tsr").write_bytes(b"x")


BARS, BACK = change("0.01", "0.99"), change('"date": "20', '"date": "19', "mine.lock.json")
OTHER_BARS, OTHER = combine(BARS, lock_again), "is not the policy that was locked"
LATE, LATE_LOCK = (
    "requirement first seen after the run: its record holds",
    "first seen after the run: its record holds",
)
CHANGED, TWICE = "was changed after its run", "contradicts itself about the"
#: An attempt, and the words that name it.
ATTEMPTS = {
    "a lock after the run": (record(drop_lock), f"{LATE_LOCK} no lock"),
    "a lock dated back": (BACK, f"{LATE_LOCK} another lock"),
    "a lock after the run, dated back": (combine(record(drop_lock), BACK), f"{LATE_LOCK} no lock"),
    "a lock of the future": (entry("mine.lock.json", "date", value="2999-01-01"), "must not lie in the future"),
    "a lock younger than the run": (record(late_lock), "the lock does not count"),
    "a lock of another policy": (entry("mine.lock.json", "sha256", value="0" * 64), OTHER),
    "other bars after the lock": (BARS, f"{OTHER} on"),
    "other bars, locked again": (OTHER_BARS, f"{LATE} another policy"),
    "a run without a policy": (record(lambda *_: None), f"{LATE} no policy"),
    "a date of the future": (combine(change("2026-11-24", "2999-01-01"), lock_again), "its bars on 2999-01-01"),
    "other bars in the run": (change("0.01", "0.99", "run/policy.yaml"), f"{CHANGED}: policy.yaml"),
    "other bars in the run, consistently": (forged(change("0.01", "0.99", "policy.yaml")), TWICE),
    "another digest": (claim("policy", "sha256"), f"{TWICE} policy"),
    "a verdict on other bars": (claim("gate", "policy", "digest", name="metrics.json"), f"{TWICE} verdict"),
    "a later start": (forged(start_now), "one was moved"),
    "an end before the start": (end("2020-01-01"), "before it began at"),
    "an end in the future": (end("2999-01-01"), "lies in the future"),
    "no time at all": (end("soon"), "cannot be read"),
    "other results": (lambda folder: cell("per_image", "success")(folder / "run"), CHANGED),
    "another gallery": (claim("gallery", "sha256"), f"{TWICE} gallery"),
    "a larger gallery": (claim("gallery", "size", value=10**6), f"{TWICE} size of the gallery"),
    "another encoder": (claim("encoder", "fingerprint", name="metrics.json"), f"{TWICE} encoder"),
    "another command": (claim("overrides", 0, value="config=evaluate"), f"{TWICE} command"),
    "other versions": (claim("versions", "torch"), f"{TWICE} versions"),
    "a timestamp of another file": (stamp("run/steps.csv"), "it is one of another file"),
    "a timestamp after the run": (stamp("mine.yaml"), "the external timestamp is of"),
    "a timestamp of another authority": (stamp("mine.lock.json", "other"), "does not lead to mine.roots.pem"),
    "a timestamp that nobody checks": (stamp("mine.yaml", None), "anybody can have made it"),
    "a timestamp of noise": (scribble, "is no RFC 3161 response"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTEMPTS)
def test_no_attempt_to_lie_is_silent(copy, capsys, name):
    edit, words = ATTEMPTS[name]
    edit(copy)
    capsys.readouterr()
    code = main(["gate", "mine.yaml", "run", "--out", "again"])
    terminal, folder = capsys.readouterr(), copy / "again"
    if code == 1:
        assert words in " ".join(terminal.err.split()) and not folder.exists()
        return
    (problems,) = read(folder / "evidence.json")["problems"]
    assert any(words in problem for problem in problems)
    assert re.findall(r"^note: (.*)", terminal.out, re.MULTILINE) == problems
    for piece, sentences in problems_by_piece(folder).items():
        assert len(sentences) == len(problems), piece
        assert all(map(str.startswith, sentences, problems)), piece  # on the page other text follows


@pytest.mark.slow
def test_an_honest_chain_has_no_note_and_two_dates(copy, capsys):
    assert main(["gate", "mine.yaml", "run"]) == 3
    assert "note:" not in capsys.readouterr().out and not any(problems_by_piece(copy / "evidence").values())
    text = Page((copy / "evidence/evidence.html").read_text()).text
    start, locked = read(copy / "run/manifest.json")["started"], "Bars stated on 2026-11-24, and locked since"
    assert all(words in text for words in (f"Tested on {start[:10]}", locked, f"run began {start}")), text


@pytest.mark.slow
def test_a_timestamp_is_shown_with_who_made_it(copy, capsys):
    stamp("mine.lock.json")(copy)
    assert main(["gate", "mine.yaml", "run", "--out", "again"]) == 3
    text = Page((copy / "again" / "evidence.html").read_text()).text
    assert "CN=tsa; signature and chain checked against the certificates" in text
    assert main(["gate", "--check", "again"]) == 0, capsys.readouterr()


@pytest.mark.slow
def test_a_run_is_not_continued_with_another_policy(copy, monkeypatch, capsys):
    (copy / "run" / "metrics.json").unlink()
    OTHER_BARS(copy)
    assert call(monkeypatch, *read(copy / "run/manifest.json")["overrides"], "hydra.run.dir=run") == 1
    assert "`require=mine.yaml` has changed since the run" in capsys.readouterr().err


@pytest.mark.slow
def test_evidence_beside_another_run_is_named(copy, capsys):
    forged(cell("steps", "objective"))(copy)
    assert main(["gate", "--check", "evidence"]) == 1
    assert "evidence.html: it is not what the policy and the runs give" in capsys.readouterr().out
