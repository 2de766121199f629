"""The tutorial's Python, run block by block in one folder. Its commands: `run_docs.py`."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from run_docs import RUNNERS, commands, fenced_blocks, prepare_folder  # noqa: E402

PAGE = ROOT / "docs" / "tutorial.md"


@pytest.fixture
def defaults():
    """Restores the process-wide settings of a run."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(strict)


@pytest.mark.nightly
def test_the_python_prints_the_text_of_the_page(tmp_path, monkeypatch, capsys, defaults):
    prepare_folder(tmp_path, PAGE)
    monkeypatch.chdir(tmp_path)
    picture_block, module_pictures = fenced_blocks(PAGE, "python")
    outputs = []
    for number, block in enumerate((picture_block, module_pictures)):
        exec(compile(block, f"tutorial, block {number}", "exec"), {})
        outputs.append(capsys.readouterr().out)
    table_words = [line.split()[0] for line in fenced_blocks(PAGE, "text")[0].splitlines()]  # columns and arms
    printed_words = [line.split()[0] for line in outputs[0].splitlines() if line.strip()]
    assert [word for word in printed_words if word in table_words][: len(table_words)] == table_words
    assert re.search(r"^8 rows, such as \{'bank': 'same', 'arm': 'clean'", outputs[0], re.MULTILINE)
    assert re.search(r"^[0-9a-f]{64}$", outputs[1], re.MULTILINE)
    assert {line.split()[4] for line in outputs[1].splitlines()[-2:]} == {"mine", "pocket"}
    files = {path.name for path in (tmp_path / "outputs" / "first").iterdir()}
    assert {"report.html", "per_image.csv", "events.jsonl"} <= files
    # The command on the page is the same run, with the overrides given in Python.
    run_overrides = json.loads((tmp_path / "outputs" / "first" / "manifest.json").read_text())["overrides"]
    (command,) = [command.line for command in commands(PAGE) if "outputs/second" in command.line]
    overrides = set(shlex.split(command)[3:]) - {"config=quickstart", "hydra.run.dir=outputs/second"}
    assert overrides == {word.replace("'", "") for word in run_overrides}


def test_the_commands_are_run_by_run_docs():
    for line, _ in commands(PAGE):
        assert line.startswith(("python -m attacks.run ", "viewproof compare ", *RUNNERS)), line
