"""A key of the configuration is an argument of its part: the same name, the same default, the same order; and
docs/configuration.md and `--help` are written from the declarations."""

import dataclasses
import inspect
from dataclasses import is_dataclass
from pathlib import Path

import pytest

import attacks
from attacks.schema.groups import CHOICES, OPEN
from attacks.schema.options import MISSING, options
from attacks.schema.reference import listing, reference_page, usage
from attacks.schema.validate import fraction
from attacks.study.make import argument_keys
from attacks.study.pipeline import pipeline
from attacks.study.registry import PARTS
from transforms import Compose

ROOT = Path(__file__).resolve().parents[2]
ALL_CHOICES = [(group, name) for group in (*CHOICES, *OPEN) for name in CHOICES.get(group, ("",))]


def choice_schema(group, name):
    return OPEN.get(group) or CHOICES[group][name]


def plain(value):
    """YAML has lists, mappings and fractions where Python has tuples and numbers."""
    if isinstance(value, list | tuple | dict):
        return tuple(map(plain, value))
    return value


def part_default(part, key):
    makers = {field.name: field.default_factory for field in dataclasses.fields(part)} if is_dataclass(part) else {}
    factory = makers.get(key, dataclasses.MISSING)
    return inspect.signature(part).parameters[key].default if factory is dataclasses.MISSING else factory()


def test_every_choice_has_its_parts():
    assert {(group, name) for group, parts in PARTS.items() for name in parts} == set(ALL_CHOICES)


@pytest.mark.parametrize(("group", "name"), ALL_CHOICES)
def test_keys_are_arguments_with_the_same_default_in_the_same_order(group, name):
    options_by_key = {item.key: item for item in options(choice_schema(group, name))}
    part_keys = []
    for part in PARTS[group][name]:
        switch, part = part if isinstance(part, tuple) else (None, part)
        keys = argument_keys(part, choice_schema(group, name))
        if switch is not None and options_by_key[switch].type == "bool":
            assert options_by_key[switch].default is False and switch not in keys
            part_keys.append(switch)
            continue
        assert keys == [key for key in options_by_key if key in keys], "the order"
        assert switch is None or keys == [switch]
        for key in keys:
            default, value = part_default(part, key), options_by_key[key].default
            if default is inspect.Parameter.empty:  # declared once; a key with a default has one in Python too
                assert part.__name__ not in attacks.__all__ or value in (MISSING, None, {}), key
            elif isinstance(value, str) and isinstance(default, float | int):
                assert fraction(value, key) == default
            elif value != MISSING:
                assert plain(value) == plain(default), key
        part_keys += keys
    assert set(part_keys) == set(options_by_key)


def test_default_views_equal_the_pipeline_made_without_arguments():
    assert pipeline(OPEN["transforms"]("x")) == Compose()


def test_every_key_has_a_meaning_or_a_range():
    for group, name in ALL_CHOICES:
        for item in options(choice_schema(group, name)):
            assert item.meaning or item.range, f"{group}.{item.key}"


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
