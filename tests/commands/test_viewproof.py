"""The console script: its list, its help and its completion."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import attacks.commands
from attacks.commands import COMMANDS, main

FOLDER = Path(attacks.commands.__file__).parent


def fresh(*words, **variables):
    """A fresh result: its output, that of file descriptor 8 (completions), and the modules it imported."""
    code = (
        "import atexit, os, sys; os.dup2(1, 8); os.dup2(2, 9)\n"
        "heavy = lambda: print(*(name for name in ('torch', 'hydra') if name in sys.modules), file=sys.stderr)\n"
        "atexit.register(heavy)\n"
        f"sys.argv = ['viewproof', *{list(words)!r}]\n"
        "from attacks.commands import main; sys.exit(main())"
    )
    options = {"capture_output": True, "text": True, "env": os.environ | variables, "check": False}
    result = subprocess.run([sys.executable, "-c", code], **options)
    return result.stdout, result.stderr, result.returncode


def completions(line):
    variables = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_COMP_WORDBREAKS": " =:"}
    out, _, _ = fresh(COMP_LINE=line, COMP_POINT=str(len(line)), **variables)
    return {word.strip() for word in out.splitlines()}


def test_every_module_is_a_command_with_a_line():
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}
    assert modules == COMMANDS.keys() - {"run"}
    assert all(line and not line.endswith(".") and len(line) <= 80 for line in COMMANDS.values())


def test_the_list_of_commands_needs_neither_torch_nor_hydra():
    out, err, code = fresh()
    assert code == 0 and err.split() == []
    assert all(f"\n    {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "run"])
def test_help_names_its_command(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0 and text.startswith(f"usage: viewproof {name} ") and f"\n    viewproof {name} " in text


@pytest.mark.nightly
def test_the_shell_completes_commands_options_presets_and_keys():
    assert completions("viewproof ") >= set(COMMANDS)
    assert completions("viewproof print --pap") == {"--paper"}
    assert completions("viewproof print --paper ") == {"a4", "letter"}
    assert completions("viewproof run config=smo") == {"smoke"}
    assert "attack.gradients=" in completions("viewproof run attack.gr")
    assert "perturbation.eps=" in completions("viewproof run perturbation.e")
