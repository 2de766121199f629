"""Which photographs are scored, by a simulator on which no limit was set: cards that are wrong, and right ones
that are hard to recognise. `-s` prints the table of docs/photographs_left_out.md."""

import re

import numpy as np
import pytest

from attacks.perturbations.patch.card import card
from scripts.benchmarks.cards import NEGATIVE, CardPrint, clutter, cover_part, draw_case, examination
from tests.helpers.other_camera import Take, photograph

pytestmark = pytest.mark.nightly
LAYOUT = card(100, 100)


def hide_corner(light):
    """Lays light over the card's lower right fiducial."""

    def change(ink):
        row, column = np.round(np.array(ink.shape[:2]) * 0.88).astype(int)
        ink[row:, column:] = light
        return ink

    return change


def side_of_chart(random):
    """A strip over one side of the card, with its swatches; not over the patch."""
    width, turn = LAYOUT.patch.x / LAYOUT.width * 0.92, int(random.integers(4))
    light = random.uniform(0, 1, 3) if random.random() < 0.5 else random.uniform(0, 1)

    def change(ink):
        rotation = np.rot90(ink, turn).copy()
        rows = round(width * len(rotation))
        rotation[:rows, round(0.15 * len(rotation)) : round(0.85 * len(rotation))] = light
        return np.rot90(rotation, -turn)

    return change


def scale(quad, times, shift=(0.0, 0.0)):
    middle = quad.mean(0)
    return middle + (quad - middle) * times + np.array(shift) * np.ptp(quad, 0)


#: Kind -> the reason to expect.
REASONS = {
    "blank patch": "not the run's|covered|glare",
    "texture of another arm": "arm",
    "card of another arm": "arm (no_eot|noise)",
    "another run": "another card|not the run's",
    "turned": "turned by",
    "mirrored": "mirrored",
    "covered, 12 to 40 %": "covered|not the run's",
    "glare, 15 to 40 %": "glare",
    "another scene": "another scene",
    "stretched 1.35 to 1.7 times": "as long|lies wrongly",
    "elsewhere in its scene": "away|lies wrongly",
    "1.4 times as large": "as large|lies wrongly",
    "two cards": "more than once",
}
#: Kind -> what is photographed of a case.
WRONG = {kind: lambda c, r, draw=draw: Take(draw(c, r)) for kind, draw in NEGATIVE.items()} | {
    "elsewhere in its scene": lambda c, r: Take(CardPrint(quad=scale(c.quad, 0.9, r.choice([-0.3, 0.3], 2)))),
    "1.4 times as large": lambda c, r: Take(CardPrint(quad=scale(c.quad, 1.4))),
    "two cards": lambda c, r: Take(
        CardPrint(quad=scale(c.quad, 0.6, (-0.4, 0))), second=scale(c.quad, 0.6, (0.5, 0))
    ),
}
HARD = {
    "vivid, glossy": lambda c, r: Take(make="gloss", sheen=r.uniform(0.1, 0.3)),
    "newsprint": lambda c, r: Take(make="newsprint", sheen=0.0),
    "side of the chart covered": lambda c, r: Take(CardPrint(change=side_of_chart(r))),
    "strong lens": lambda c, r: Take(lens=r.uniform(-0.15, 0.25)),
    "out of focus": lambda c, r: Take(blur=r.uniform(1.2, 1.8)),
    "lamp": lambda c, r: Take(sheen=r.uniform(0.15, 0.45)),
    "folded": lambda c, r: Take(fold=r.uniform(10, 25)),
    "a fiducial hidden": lambda c, r: Take(CardPrint(change=hide_corner(r.uniform(0, 1)))),
    "clutter": lambda c, r: Take(clutter(c, r)),
    "covered by 1 to 3 %": lambda c, r: Take(cover_part(c, r, (0.01, 0.03))),
    "printed at 97 %": lambda c, _: Take(CardPrint(quad=scale(c.quad, 0.97))),
}
SCREENS = {
    "screen": lambda *_: Take(make=None, sheen=0.0),
    "screen whose primaries mix": lambda _, r: Take(make=None, mix=r.uniform(0.02, 0.06), sheen=0.0),
}


def examine(kind, make, index):
    """Why a photograph of a kind is left out (None: scored), and its measurement."""
    random = np.random.default_rng((*kind.encode(), index))
    case = draw_case(random)
    return examination(case, photograph(case, make(case, random), random))


def test_wrong_cards_are_left_out_with_the_right_reason():
    errors, hits_count, count = 0, 0, 8 * len(WRONG)
    for kind, make in WRONG.items():
        reasons = [examine(kind, make, index)[0] for index in range(8)]
        hits = [reason is not None and re.search(REASONS[kind], reason) is not None for reason in reasons]
        errors, hits_count = errors + reasons.count(None), hits_count + sum(hits)
        print(f"{kind}: {reasons.count(None)} of 8 scored, {sum(hits)} right reasons")
    print(f"wrong cards: {errors} of {count} scored, {hits_count} right reasons")
    assert count >= 100 and errors <= 1 and hits_count >= 0.95 * count


def test_hard_photographs_of_the_right_card_are_scored():
    refusals, count, folds, mistakes = 0, 11 * len(HARD), 0, 0
    for kind, make in HARD.items():
        results = [examine(kind, make, index) for index in range(11)]
        reasons = [reason for reason, _ in results if reason is not None]
        flags = [" ".join(result.flags) for reason, result in results if reason is None]
        refusals += len(reasons)
        print(f"{kind}: {11 - len(reasons)} of 11 scored, {sum(map(bool, flags))} flagged; {'; '.join(reasons)}")
        if kind == "folded":
            folds = sum("folded" in text for text in flags) + sum(
                "folded" in text or "bent" in text for text in reasons
            )
        else:
            mistakes += sum("folded" in text for text in flags)
    print(f"hard: {refusals} of {count} left out; {folds} of 11 folds named, {mistakes} flat cards called folded")
    assert count >= 120 and refusals <= 0.1 * count


def test_screens_are_scored_and_a_pure_one_is_flagged():
    for kind, make in SCREENS.items():
        reasons, results = zip(*(examine(kind, make, index) for index in range(12)), strict=True)
        flagged = sum("screen" in " ".join(result.flags) for result in results)
        print(f"{kind}: {reasons.count(None)} of 12 scored, {flagged} flagged")
        assert reasons.count(None) >= 11 and (flagged >= 6 or "mix" in kind)
