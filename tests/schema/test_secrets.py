"""Secrets stay in the environment: no file, output or page of a run holds one."""

import pytest

from attacks.run import compose
from attacks.runtime.tracking import one_line
from attacks.schema.secrets import masked, refuse_credentials
from tests.helpers.runs import call
from tests.helpers.wrong import refused

CANARY = "canary-3f9a17"
VARIABLES = ["VIEWPROOF_TEST_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "HF_TOKEN"]
VARIABLES += ["MLFLOW_TRACKING_PASSWORD", "SSH_AUTH_SOCK"]
LEAN = ("config=smoke", "data.count=1", "data.size=64", "attack.steps=1", "evaluate.views=2", "evaluate.refine=0")


@pytest.fixture
def canaries(monkeypatch):
    for name in VARIABLES:
        monkeypatch.setenv(name, f"{CANARY}-{name}")
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "MLFLOW_TRACKING_URI"):
        monkeypatch.setenv(name, f"http://me:{CANARY}@localhost:9")


def holding(folder):
    """The files below a folder that hold the canary, by name or content."""
    return [p for p in folder.rglob("*") if CANARY in p.name or (p.is_file() and CANARY.encode() in p.read_bytes())]


@pytest.mark.slow
def test_run_files_contain_no_environment_variable(canaries, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *LEAN, "hydra.run.dir=out") == 0
    output = capsys.readouterr()
    assert (tmp_path / "out" / "report.html").exists()
    assert not holding(tmp_path) and CANARY not in output.out + output.err


#: Words that would keep a secret; {} is the canary.
WORDS = {
    "seed=${oc.env:HF_TOKEN}": "environment",
    "encoder.weights=${oc.env:HF_TOKEN,x}": "environment",
    "encoder.weights=${oc.decode:${oc.env:HF_TOKEN}}": "parsing",
    "+mine=${oc.env:HF_TOKEN}": "environment",
    "tracker=mlflow tracker.uri=https://me:{}@host/x": "password",
    "tracker=mlflow tracker.uri='https://me:{}@host/x'": "password",
    "tracker=mlflow tracker.uri=https://{}@host/x": "password",
    "tracker=mlflow tracker.uri=https://me:a/{}@host/x,null": "password",
    "data=folder data.path=https://me:{}@host/x.png": "password",
}


@pytest.mark.parametrize("words", WORDS)
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(canaries, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    assert CANARY not in refused(WORDS[words], compose, "smoke", words.replace("{}", CANARY).split())
    assert not list(tmp_path.iterdir())


def test_a_secret_for_a_resumed_run_is_refused_and_not_repeated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "resume=out", f"tracker.uri=https://me:{CANARY}@host/x") == 1
    output = capsys.readouterr()
    assert "error: " in output.err and CANARY not in output.out + output.err


@pytest.mark.parametrize(
    "address", ["https://me:{}@host/x", "http://{}@host", "socks5://a:b{}@host:1/", "https://me:a/{}@host", "x://{}@"]
)
def test_an_address_is_masked_and_refused(address):
    message = f"cannot reach {address.format(CANARY)}: no route"
    assert CANARY not in masked(message) and masked(message).startswith("cannot reach ") and "***@" in masked(message)
    with pytest.raises(ValueError, match="holds the name or password"):
        refuse_credentials(message, "`tracker.uri`")
    assert CANARY not in one_line(ConnectionError(message))


@pytest.mark.parametrize("plain", ["https://host/x", "sqlite:///a@b.db", "me@host", "a: b@c", "https://host:1/x", ""])
def test_texts_without_credentials_are_accepted(plain):
    refuse_credentials(plain, "x")
