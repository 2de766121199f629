"""Names are nouns and verbs of the field (CONTRIBUTING.md), and one name means one thing."""

import re
from collections import defaultdict

import pytest

from tests.test_rooms import ROOT, source

CODE = [path for package in ("attacks", "transforms", "scripts") for path in (ROOT / package).rglob("*.py")]
TESTS = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "docs").rglob("*.py")]
#: Adverbs, pronouns and determiners; then participles that are no nouns of the field (as `cut`, `set`, `spread` are).
NO_NOUNS = frozenset(
    re.findall(
        r"\w+",
        """after afterwards again all alone along already also always among another any anyone anything apart
        around aside away because before beneath beside besides between beyond both but each earlier
        either else elsewhere enough even ever every everyone everything everywhere few fewer former
        further hence here how if instead it its itself just last later latter least less many more most
        much neither never next nobody none nothing now nowhere often once one ones only others own past
        perhaps quite rather same since so some someone something soon still such than that their them
        then there these they thing this those though through throughout thus together too toward
        towards twice until very what whatever when where whether which while who whole whom whose why
        with within without yet become been begun bent born bought bound broken brought built caught
        chosen come done drawn driven dug eaten fallen felt forgotten fought found fresh frozen given
        gone grown heard held hidden hung kept known laid lain led lent lost made meant met paid put
        said seen sent shown sold sought spent spoken stolen stood struck stuck swept taken taught
        thought thrown told torn understood undone unknown unseen untold withdrawn won worn written""",
    )
)
#: Words in -ed and -ly that are nouns, verbs or terms of the field.
NOUNS = frozenset(
    re.findall(
        r"\w+",
        """anomaly apply assembly batched bleed blurred breed clipped cropped decoded disabled enabled encoded
        exceed expected failed family feed finished fixed flattened fused hundred installed limited
        masked mirrored missing multiply need nested normalised padded poly proceed quantised quantized
        red rely reply required resized rotated rounded scaled seed seeded shared shed signed sorted
        speed succeed supply supported targeted typed unlabelled untargeted warped weighted""",
    )
)
#: What every module of a kind has (commands, families of encoders), or what another library calls it.
PROTOCOLS = {"main", "add_arguments", "run", "load", "preprocessing", "rotate", "resize", "perspective", "affine"}


def is_riddle(name):
    """Whether a name is one word that is no noun or verb, or ends in one of `NO_NOUNS`."""
    words = [word.lower() for word in name.strip("_").split("_") if word and not word.isdigit()]
    if not words or name.startswith("__") or words[-1] in NOUNS:
        return False
    if words[-1] in NO_NOUNS:
        return True
    return len(words) == 1 and len(words[0]) > 4 and words[0].isalpha() and words[0].endswith(("ed", "ly"))


@pytest.mark.parametrize("paths", [CODE, TESTS], ids=["code", "tests"])
def test_fewer_than_one_name_in_a_hundred_is_no_noun_or_verb(paths):
    total, riddles = 0, defaultdict(list)
    for path in paths:
        for name in source(path).bindings:
            total += 1
            if is_riddle(name):
                riddles[name].append(str(path.relative_to(ROOT)))
    count = sum(map(len, riddles.values()))
    assert count < total / 100, f"{count} of {total}: {sorted(riddles.items(), key=lambda item: -len(item[1]))[:40]}"


def test_no_class_and_no_public_function_has_a_name_twice():
    files = defaultdict(set)
    for path in CODE:
        for name in source(path).definitions:
            files[name].add(str(path.relative_to(ROOT)))
    public = {name: paths for name, paths in files.items() if not (name.startswith("_") and name[1:2].islower())}
    assert not {name: paths for name, paths in public.items() if len(paths) > 1 and name not in PROTOCOLS}
