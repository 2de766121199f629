"""Attempts to make a policy, a lock, a date or a record lie: each is refused, or named on the page. `forged` edits
have all digests made anew, as somebody would who knows their rules."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from attacks.commands import main
from attacks.evidence.witness import timestamp
from attacks.runtime.files import sha256
from tests.evidence.test_evidence import bundle as bundle
from tests.evidence.test_evidence import copy as copy
from tests.evidence.test_evidence import tamper
from tests.helpers.liars import cell, combine, entry, file_bytes
from tests.helpers.page import Page
from tests.helpers.runs import call


def read(path):
    return json.loads(Path(path).read_text())


def forged(*edits):
    """Edits of the run, after which its digests fit again."""
    return lambda folder: combine(*edits, file_bytes)(folder / "run")


def recorded(change):
    """Another record of the policy in the run, with every copy and digest of it made anew."""

    def edit(run):
        manifest = read(run / "manifest.json")
        manifest["policy"] = change(run, manifest["policy"])
        manifest["identity"]["the policy"] = json.dumps(manifest["policy"])
        (run / "manifest.json").write_text(json.dumps(manifest))

    return forged(edit)


def unlocked(run, record):
    (run / "policy.lock.json").unlink()
    return record | {"lock": None}


def locked_at_the_end(run, record):
    path = run.parent / "mine.lock.json"
    entry(path.name, "date", value=read(run / "files.json")["ended"])(run.parent)
    shutil.copy(path, run / "policy.lock.json")
    return record | {"lock": {"date": read(path)["date"], "sha256": sha256(path)}}


def relock(old, new):
    """Another policy, and a lock for it."""

    def edit(folder):
        tamper(folder, "mine.yaml", old, new)
        (folder / "mine.lock.json").unlink()
        assert main(["gate", "--lock", "mine.yaml"]) == 0

    return edit


def ended(time):
    def edit(folder):
        entry("files.json", "ended", value=time)(folder / "run")
        entry("metrics.json", "files", value=sha256(folder / "run" / "files.json"))(folder / "run")

    return edit


def started_at_the_end(run):
    entry("manifest.json", "started", value=read(run / "files.json")["ended"])(run)


def stamped(file, roots=True):
    """A timestamp of a file by an authority of this test, beside the policy; its certificate, too, or another one."""

    def edit(folder):
        pytest.importorskip("rfc3161_client")
        place = folder / "authority"
        place.mkdir()
        (place / "serial").write_text("01\n")
        (place / "tsa.cnf").write_text(AUTHORITY)
        names = ("tsa", "other") if roots == "other" else ("tsa",)
        for name in names:
            words = f"req -x509 -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.pem -subj /CN={name} -days 9"
            openssl(place, *words.split(), "-config", "tsa.cnf", "-extensions", "extensions")
        openssl(place, *["ts", "-query", "-sha256", "-cert", "-out", "q.tsq", "-data"], str(folder / file))
        openssl(place, *["ts", "-reply", "-config", "tsa.cnf", "-queryfile", "q.tsq", "-out", "../mine.tsr"])
        if roots:
            shutil.copy(place / f"{names[-1]}.pem", folder / "mine.roots.pem")

    return edit


AUTHORITY = """[req]
distinguished_name = name
[name]
[extensions]
keyUsage = critical, digitalSignature
extendedKeyUsage = critical, timeStamping
subjectKeyIdentifier = hash
[tsa]
default_tsa = config
[config]
serial = serial
signer_cert = tsa.pem
signer_key = tsa.key
signer_digest = sha256
certs = tsa.pem
default_policy = 1.2.3.4
digests = sha256
ess_cert_id_alg = sha256
"""


def openssl(place, *words):
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    subprocess.run(["openssl", *words], cwd=place, check=True, capture_output=True)


def tagged(file="mine.yaml", sign="-s", then=None):
    """A tag `bars` of a commit with a file, in a repository of this test; `then`: an edit after it."""

    def edit(folder):
        if shutil.which("ssh-keygen") is None:
            pytest.skip("there is no ssh-keygen")
        subprocess.run([*["ssh-keygen", "-q", "-t", "ed25519", "-N"], "", "-f", "key"], cwd=folder, check=True)
        (folder / "signers").write_text(f"me@here {(folder / 'key.pub').read_text()}")
        settings = {"gpg.format": "ssh", "user.signingkey": str(folder / "key.pub"), "user.name": "me"}
        settings |= {"gpg.ssh.allowedSignersFile": str(folder / "signers"), "user.email": "me@here"}
        words = [["init", "-q"], *(["config", *pair] for pair in settings.items()), ["add", file]]
        for line in (*words, ["commit", "-qm", "bars"], ["tag", sign, "-m", "bars", "bars"]):
            subprocess.run(["git", *line], cwd=folder, check=True)

    return edit


#: An attempt, and the words that name it.
ATTEMPTS = {
    "a lock after the run": (recorded(unlocked), "was first seen after the run: its record holds no lock"),
    "a lock dated back": (
        lambda folder: tamper(folder, "mine.lock.json", '"date": "20', '"date": "19'),
        "was first seen after the run: its record holds another lock",
    ),
    "a lock dated back, without a lock in the run": (
        combine(recorded(unlocked), lambda folder: tamper(folder, "mine.lock.json", '"date": "20', '"date": "19')),
        "was first seen after the run: its record holds no lock",
    ),
    "a lock of the future": (entry("mine.lock.json", "date", value="2999-01-01"), "must not lie in the future"),
    "a lock younger than the run": (recorded(locked_at_the_end), "the lock does not count"),
    "a lock of another policy": (
        entry("mine.lock.json", "sha256", value="0" * 64),
        "is not the policy that was locked on",
    ),
    "a policy after its lock": (
        lambda folder: tamper(folder, "mine.yaml", "0.01", "0.99"),
        "is not the policy that was locked on",
    ),
    "a policy and a lock after the run": (
        relock("0.01", "0.99"),
        "requirement first seen after the run: its record holds another policy",
    ),
    "a run without a policy": (
        recorded(lambda *_: None),
        "requirement first seen after the run: its record holds no policy",
    ),
    "bars of the future": (
        relock("2026-11-24", "2999-01-01"),
        "the policy states its bars on 2999-01-01, and the run",
    ),
    "another policy in the run": (
        lambda folder: tamper(folder / "run", "policy.yaml", "0.01", "0.99"),
        "was changed after its run: policy.yaml",
    ),
    "another policy in the run, with its digests": (
        forged(lambda run: tamper(run, "policy.yaml", "0.01", "0.99")),
        "the record contradicts itself about the policy.yaml",
    ),
    "another digest of the policy": (
        forged(entry("manifest.json", "policy", "sha256", value="0" * 64)),
        "the record contradicts itself about the policy",
    ),
    "a later start": (forged(started_at_the_end), "one was moved"),
    "an end before the start": (ended("2020-01-01T00:00:00+00:00"), "before it began at"),
    "an end in the future": (ended("2999-01-01T00:00:00+00:00"), "lies in the future"),
    "no time at all": (ended("soon"), "cannot be read"),
    "other results": (lambda folder: cell("per_image", "success")(folder / "run"), "was changed after its run"),
    "another gallery": (
        forged(entry("manifest.json", "gallery", "sha256", value="0" * 64)),
        "the record contradicts itself about the gallery",
    ),
    "a larger gallery": (
        forged(entry("manifest.json", "gallery", "size", value=10**6)),
        "the record contradicts itself about the size of the gallery",
    ),
    "another encoder": (
        forged(entry("metrics.json", "encoder", "fingerprint", value="0" * 64)),
        "the record contradicts itself about the encoder",
    ),
    "another command": (
        forged(entry("manifest.json", "overrides", 0, value="config=evaluate")),
        "the record contradicts itself about the command",
    ),
    "other versions": (
        forged(entry("manifest.json", "versions", "torch", value="9")),
        "the record contradicts itself about the versions",
    ),
    "a timestamp of another file": (stamped("run/steps.csv"), "it is one of another file"),
    "a timestamp after the run": (stamped("mine.yaml"), "the external timestamp is of"),
    "a timestamp of another authority": (stamped("mine.lock.json", "other"), "does not lead to mine.roots.pem"),
    "a timestamp that nobody checks": (stamped("mine.yaml", False), "anybody can have made it"),
    "a timestamp of noise": (lambda folder: (folder / "mine.tsr").write_bytes(b"x"), "is no RFC 3161 response"),
}
#: The same with a tag `bars`.
TAGS = {
    "a tag after the run": (tagged(), "the external timestamp is of"),
    "a tag on another commit": (tagged("mine.lock.json"), "its commit does not hold mine.yaml"),
    "an unsigned tag": (tagged(sign="-a"), "git verifies no signature of it"),
    "no tag": (lambda folder: None, "git verifies no signature of it"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ATTEMPTS, *TAGS])
def test_no_attempt_to_lie_is_silent(copy, capsys, monkeypatch, name):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    edit, words = (ATTEMPTS | TAGS)[name]
    edit(copy)
    capsys.readouterr()
    code = main(["gate", "mine.yaml", "run", "--out", "again", *(["--tag", "bars"] if name in TAGS else [])])
    terminal, page = capsys.readouterr(), copy / "again" / "evidence.html"
    if code == 1:
        assert words in " ".join(terminal.err.split()) and not page.exists()
        return
    assert f"note: {words}" in terminal.out or words in terminal.out
    assert words in Page(page.read_text()).text and words in (copy / "again" / "evidence.json").read_text()


@pytest.mark.slow
def test_an_honest_chain_has_no_note_and_two_dates(copy, capsys):
    assert main(["gate", "mine.yaml", "run"]) == 3
    assert "note:" not in capsys.readouterr().out
    text, started = Page((copy / "evidence" / "evidence.html").read_text()).text, read("run/manifest.json")["started"]
    for words in (f"Tested on {started[:10]}", "Bars stated on 2026-11-24, and locked since", f"run began {started}"):
        assert words in text, words


@pytest.mark.slow
def test_a_run_is_not_continued_with_another_policy(copy, monkeypatch, capsys):
    (copy / "run" / "metrics.json").unlink()
    relock("0.01", "0.99")(copy)
    words = read("run/manifest.json")["overrides"]
    assert call(monkeypatch, *words, "hydra.run.dir=run") == 1
    assert "`require=mine.yaml` has changed since the run" in capsys.readouterr().err


@pytest.mark.slow
def test_evidence_beside_another_run_is_named(copy, capsys):
    forged(cell("steps", "objective"))(copy)
    assert main(["gate", "--check", "evidence"]) == 1
    assert "evidence.html: it is not what the policy and the runs give" in capsys.readouterr().out


@pytest.mark.slow
def test_a_timestamp_and_a_tag_are_shown_with_who_made_them(copy, capsys, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    tagged()(copy)
    stamped("mine.lock.json")(copy)
    assert "CN=tsa; signature and chain checked against the certificates" in timestamp(copy / "mine.yaml").text
    assert main(["gate", "mine.yaml", "run", "--out", "again", "--tag", "bars"]) == 3
    assert (
        'git tag bars: Good "git" signature for me@here' in Page((copy / "again" / "evidence.html").read_text()).text
    )
    assert main(["gate", "--check", "again"]) == 0, capsys.readouterr()
