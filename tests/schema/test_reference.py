"""docs/configuration.md and `--help` are written from the declarations."""

from pathlib import Path

from attacks.schema.groups import CHOICES
from attacks.schema.reference import reference_page, usage


def test_page_equals_the_text_generated_from_the_declarations():
    page = (Path(__file__).resolve().parents[2] / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == reference_page(), "run `python -m attacks.schema.reference > docs/configuration.md`"


def test_help_lists_every_choice_and_the_keys_of_the_selection():
    text = usage(["optimiser=apgd"])
    for group, choices in CHOICES.items():
        line = next(line for line in text.splitlines() if line.startswith(f"  {group}: "))
        assert [name.strip("[] ") for name in line.partition(": ")[2].split(",")] == list(choices)
    assert "[apgd]" in text and "optimiser.rho=0.75" in text and "optimiser.schedule" not in text
    assert "perturbation.eps=8/255" in text and "evaluate.views=512" in text
