"""The script that tests the lowest and highest supported versions, with every program that it starts replaced."""

import subprocess
from pathlib import Path

import pytest

from scripts import check_versions as module

ROOT = Path(__file__).resolve().parents[2]
PINS = "hydra-core==1.3.8\nnumpy==2.0.0 ; python_version < '4'\nsix==1.17.0\n"


@pytest.fixture
def script(monkeypatch):
    """The script, and the commands that it starts."""
    commands = []

    def run(command, **options):
        command = [str(word) for word in command]
        commands.append(command)
        if "compile" in command:
            Path(command[command.index("--output-file") + 1]).write_text(PINS)
            for source in command[-2:]:
                if source.endswith("also.txt"):
                    assert "1.4" in Path(source).read_text()
        return subprocess.CompletedProcess(command, 3 if "pytest" in command else 0)

    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/bin/{name}")
    return module, commands


@pytest.mark.parametrize("kind", ["lowest", "newest", "candidate"])
def test_tests_run_in_a_temporary_environment_of_the_given_kind(script, kind, capsys):
    module, commands = script
    assert module.check_pins(kind, ["-n", "2", "tests/run/test_run.py"]) == 3  # the exit code of pytest
    venv, solve_command, installed, ours, tests = commands
    assert ("lowest-direct" in solve_command) == (kind == "lowest")
    assert (solve_command[-1].endswith("also.txt")) == (
        kind == "candidate"
    )  # pre-releases of the listed packages only
    assert "--prerelease" not in solve_command
    assert installed[-1] == solve_command[solve_command.index("--output-file") + 1]
    assert ours[-2:] == ["--editable", str(ROOT)]
    assert tests[0] == solve_command[solve_command.index("--python") + 1] == ours[ours.index("--python") + 1]
    assert tests[-3:] == ["-n", "2", "tests/run/test_run.py"]
    assert ("-W" in tests) == (kind == "candidate")
    assert not Path(venv[-1]).parent.exists()
    text = capsys.readouterr().out
    assert "hydra-core==1.3.8 numpy==2.0.0" in text
    assert "six" not in text
