"""Every public name has an example in its docstring, and so on its page of the site; here all of them run."""

import doctest
import io

import pytest
import torch

from scripts.api_reference import docstring, public_names

#: Names whose example is a whole run.
RUNS = {"attacks.verify", "attacks.robustness"}
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in RUNS else name for name in public_names()]


@pytest.mark.parametrize("name", NAMES)
def test_the_example_of_a_public_name_has_the_result_that_it_shows(name):
    example = doctest.DocTestParser().get_doctest(docstring(name), {"torch": torch}, name, None, None)
    assert any(name.rpartition(".")[2] in line.source for line in example.examples), "no example that uses it"
    assert not any(doctest.SKIP in line.options for line in example.examples)
    messages = io.StringIO()
    doctest.DocTestRunner().run(example, out=messages.write)
    assert not messages.getvalue(), messages.getvalue()
