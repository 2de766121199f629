"""The console script `viewproof COMMAND ...`: each command is a module of this room, imported when named, with
`add_arguments(parser)` and `run(options)`; `run` is `attacks/run.py`, whose arguments are Hydra's."""

import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from attacks import __version__
from attacks.runtime.command_line import Parser, exit_status
from attacks.schema.suggestions import choices, closest, keys

ABOUT = """Measure how robust an image encoder is under the views that a camera may take.

    viewproof check pocket my/pictures --for search-by-picture    may it be deployed?
    viewproof run config=quickstart         attack pictures, score the encoder, write a report
    viewproof verify outputs/DATE/RUN       check a run that somebody sends you
    viewproof COMMAND --help                the arguments of a command
"""
#: The commands, and what each does in a line.
COMMANDS = {
    "run": "attack pictures and score the encoder on views that the attack has not used",
    "verify": "check a finished run: digests, tables, pictures judged again",
    "check": "may this encoder be deployed? one command, one page",
    "gate": "decide the requirements of a policy: PASS, FAIL or UNDECIDED",
    "failure": "how probable a failure is over all views of a picture",
    "certify": "what no change of a picture can undo, behind Gaussian smoothing",
    "judge": "does an attack transfer? finished runs on other encoders, views and pictures",
    "apply": "lay the perturbation of a finished run onto other pictures",
    "compare": "which encoder is the most robust: runs ranked, and their differences",
    "table": "a table of a folder's pictures, to add targets, masks, clusters or weights to",
    "plan": "how many pictures a study needs",
    "audit": "where a chain of transforms loses the gradient",
    "replay": "the view that a run stopped at, stage by stage",
    "show": "a contact sheet: a picture under drawn views",
    "print": "the sheets of a run's patch, in true size",
    "simulate": "photographs of a printed patch, simulated",
    "score": "score photographs of a printed patch",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; `arguments` are those of the process if None. Returns the exit code: the command's own, or 1
    after an error, which is printed in one line."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        line = os.environ.get("COMP_LINE", "").split()
        argcomplete.autocomplete(_parser(line[1] if len(line) > 1 else ""), always_complete_options=False)
    if words[:1] == ["run"]:
        sys.argv[:] = ["viewproof run", *words[1:]]
        import_module("attacks.run").cli()
        return 0
    return exit_status(lambda: _command(words))


def _command(words: list[str]) -> int | None:
    first = words[0] if words else "--help"
    if first not in COMMANDS and not first.startswith("-"):
        hint = f"viewproof run {first}" if "=" in first else f"one of {', '.join(COMMANDS)}{closest(first, COMMANDS)}"
        raise ValueError(f"`{first}` is no command: type {hint}")
    options = _parser(first).parse_args(words or [first])  # ends the process for --help and --version
    code: int | None = import_module(f"attacks.commands.{first}").run(options)
    return code


def _parser(command: str) -> Parser:
    """The parser of all commands; only the chosen one has its arguments, because they need its module."""
    parser = Parser(prog="viewproof", description=ABOUT)
    parser.add_argument("--version", action="version", version=f"viewproof {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, line in COMMANDS.items():
        if name == "run":
            word = commands.add_parser(name, help=line).add_argument("words", nargs="*", metavar="KEY=VALUE")
            word.completer = _of_a_run  # type: ignore[attr-defined]
        elif name != command:
            commands.add_parser(name, help=line)
        else:
            module = import_module(f"attacks.commands.{name}")
            module.add_arguments(commands.add_parser(name, help=line, description=module.__doc__))
    return parser


def add_encoder(parser: ArgumentParser, device: str | None = None, dest: str = "encoder_code") -> None:
    """Add `--device`, by default `device`, None being that of the run, and `--encoder-code`."""
    from attacks.experiment.directory import PROGRAMS  # here: a list of commands needs no torch

    text = f"where the encoder runs (default: {device or 'as in the run'})"
    parser.add_argument("--device", default=device, help=text)
    text = f"run this program, where it is the run's encoder ({', '.join(PROGRAMS)}): name it as the run did"
    parser.add_argument("--encoder-code", dest=dest, metavar="MODEL", help=text)


def _of_a_run(**_: Any) -> Iterator[str]:
    """The words that `viewproof run` takes next: KEY=, or the choices of a group."""
    for group, names in choices().items():
        yield from (f"{group}={name}" for name in names)
    yield from (f"{key}=" for key in keys())
