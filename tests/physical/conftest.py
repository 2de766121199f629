"""Fixtures of the tests of the commands for printed patches."""

import pytest

from attacks.commands import main


@pytest.fixture
def error_line(capsys):
    """The error of a command that ends with exit code 1 and one line on stderr."""

    def run(command, *arguments):
        capsys.readouterr()
        assert main([command, *map(str, arguments)]) == 1
        line = capsys.readouterr().err
        assert line.startswith("error: ") and line.count("\n") == 1
        return line

    return run
