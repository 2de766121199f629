"""Fixtures of the tests of the photo scripts."""

import pytest


@pytest.fixture
def refused(capsys):
    """The error of a script that ends with exit code 2 and one line on stderr."""

    def run(script, *arguments):
        capsys.readouterr()
        assert script.main([str(each) for each in arguments]) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: ") and line.count("\n") == 1
        return line

    return run
