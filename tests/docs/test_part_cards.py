"""The cards of the parts: one for each part of the registries, with every line, a valid command, and pictures."""

import re
import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from attacks.commands.show import stages_from_text
from attacks.gate.policy import read_policy, refuse_other_threat
from attacks.schema.groups import CHOICES, OPEN
from attacks.schema.suggestions import choices
from attacks.schema.validate import validate
from scripts.parts import cards, pictures
from tests.helpers.sampling import mostly_slow
from tests.schema.test_configs import composed
from transforms.registry import STAGES
from transforms.resizing.resize import NAMES

ROOT = Path(__file__).resolve().parents[2]
LINES = ("Key", "Use", "Not", "Source", "Cost", "Tested")
PARTS = [(cards.room_of_stage(stage), name) for name, stage in STAGES.items()]
PARTS += [(group, name) for group in cards.GROUPS for name in cards.choice_names(group)]
pages = cache(cards.card_pages)


@cache
def cards_by_part():
    return {(page, card.name): card for page, cards_of_page in cards.all_cards().items() for card in cards_of_page}


def files(folder):
    return {path.stem for path in (ROOT / "configs" / folder).glob("*.yaml")}


def names(group):
    return {name for page, name in cards_by_part() if page == group}


@pytest.mark.slow
def test_the_cards_are_the_registries():
    assert [*cards_by_part()] == sorted(PARTS, key=lambda part: [*pages()].index(part[0]))
    assert pictures.examples().keys() == STAGES.keys()
    assert {*cards.GROUPS} == {*CHOICES, *OPEN, "config", "policies", "launcher"}
    for group, choice_names in choices().items():
        assert names(group) == {*choice_names}, group
    assert names("policies") == files("policies") and names("launcher") == files("hydra/launcher")


@pytest.mark.parametrize("part", PARTS, ids="-".join)
def test_a_card_has_every_line_and_its_tests_exist(part):
    card, page = cards_by_part()[part], pages()[part[0]]
    lines = card.lines
    missing = [line for line in LINES if not lines.get(line)]
    assert not missing, f"{part}: no line {missing} where it is declared (see scripts/parts/cards.py)"
    assert card.description
    paths = re.findall(r"tests/[\w/]+(?:\.py)?", lines["Tested"])
    assert paths and all((ROOT / path).exists() for path in paths)
    assert f"\n## {part[1]}\n" in page and f"**Use:** {cards.with_links(lines['Use'])}\n" in page
    assert [name for name, _, meaning in card.keys if not meaning] == []


@pytest.mark.parametrize("part", mostly_slow(PARTS, 16), ids="-".join)
def test_the_command_of_a_card_is_valid(part):
    program, *words = shlex.split(cards_by_part()[part].command)
    if program == "viewproof":
        assert len(stages_from_text(words[words.index("--stage") + 1]).stages) == 1
    else:
        words = [word for word in words[2:] if word != "-m" and not word.startswith("hydra")]
        validate(composed(*(word.replace("seed=0,1", "seed=0") for word in words)))


@pytest.mark.parametrize("name", STAGES)
def test_every_coordinate_of_a_stage_has_five_views_that_differ(name):
    strips = pictures.stage_strips(name)
    assert strips
    stage = strips[0].pipelines[0].stages[0]
    if stage.dims and name not in ("sometimes", "one_of"):  # of whose stages some arguments are fixed
        assert [strip.label for strip in strips] == list(stage.names)
    for strip in strips:
        views = pictures.strip_views(strip)
        assert len(views) == len(strip.values) == 5
        assert any(a.shape != b.shape or (a - b).abs().max() > 0.02 for a, b in pairwise(views))


def test_every_resizer_is_in_the_page_of_views():
    page = (ROOT / "docs" / "transforms.md").read_text()
    assert {name for name in NAMES if f"`{name}`" not in page} == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", cards.choice_names("policies"))
def test_the_command_of_a_policy_has_the_threat_of_the_policy(name):
    words = shlex.split(cards_by_part()["policies", name].command)[3:]
    run = composed(*(word for word in words if not word.startswith("require=")))
    refuse_other_threat(read_policy(name), OmegaConf.to_container(run))
