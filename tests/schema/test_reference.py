"""docs/configuration.md and `--help` are written from the declarations."""

from pathlib import Path

import pytest

from attacks.schema.groups import CHOICES
from attacks.schema.reference import listing, reference_page, usage

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("name", "generate", "command"),
    [("docs/configuration.md", reference_page, ""), ("configs/README.md", listing, " groups")],
)
def test_page_equals_the_text_generated_from_the_declarations(name, generate, command):
    page = (ROOT / name).read_text(encoding="utf-8")
    assert page == generate(), f"run `python -m attacks.schema.reference{command} > {name}`"


def test_help_lists_every_choice_and_the_keys_of_the_selection():
    text = usage(["optimiser=apgd"])
    for group, choices in CHOICES.items():
        line = next(line for line in text.splitlines() if line.startswith(f"  {group}: "))
        assert [name.strip("[] ") for name in line.partition(": ")[2].split(",")] == list(choices)
    assert "[apgd]" in text and "optimiser.rho=0.75" in text and "optimiser.schedule" not in text
    assert "perturbation.eps=8/255" in text and "evaluate.views=512" in text
