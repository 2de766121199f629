"""What the page of a run says in words: its verdict, and its protocol."""

import html
import re

from attacks.report.facts import verdict
from attacks.report.page import render
from tests.helpers import reported


def test_the_verdict_says_who_was_tested_on_which_views_and_what_the_untouched_picture_gives():
    content = reported.content()
    said = verdict(content)
    eot, plain, clean = (content["arms"][arm]["recall_at_1"] for arm in ("eot", "no_eot", "clean"))
    for words in (
        "512 held-out views from the attack's own ranges",
        "the encoder pocket recognises an attacked picture",
    ):
        assert words in said
    for result in (eot, plain):
        assert f"{result['mean']:.0%} of the views (95% interval {result['low']:.0%} to {result['high']:.0%})" in said
    assert f"the untouched one in {clean['mean']:.0%};" in said
    aimed = verdict(content | {"threat": content["threat"] | {"targeted": True}})
    assert (
        f"takes an attacked picture for the attacker's target in {content['arms']['eot']['success']['mean']:.0%}"
        in aimed
    )
    assert f"the untouched one in {content['arms']['clean']['success']['mean']:.0%};" in aimed
    still = verdict(content | {"bank": content["bank"] | {"coordinates": []}})
    assert "without a camera" in still and "held-out" not in still
    assert "the encoder recognises" in verdict(content | {"encoder": None})


def test_the_protocol_says_all_that_a_citation_needs():
    """Its section by itself: preset, seed, pictures, threat, views at attack and at evaluation, versions."""
    manifest = reported.manifest()
    whole = render(reported.content(response=None), manifest)
    section = re.search(r'<section id="protocol">.*?</section>', whole, re.DOTALL)[0]
    text = html.unescape(" ".join(re.sub("<[^>]*>", " ", section).split()))
    for words in ("preset evaluate", "seed 0", "5, in a gallery of 268", "linf, eps 0.062745; objective away"):
        assert words in text, words
    for words in ("8 per picture in each of 100 steps", "512 per picture, held out", "of ranges 1.5 times as wide"):
        assert words in text, words
    content = reported.content()
    for words in (
        manifest["git"],
        manifest["device"],
        *map(str, manifest["versions"].values()),
        content["intervals"],
    ):
        assert words in text, words
    assert content["encoder"]["sha256"] in text and content["encoder"]["fingerprint"] in text
    assert all(word in text for word in manifest["overrides"][1].split("="))
    shared = content | {"threat": content["threat"] | {"shared": True}}
    assert "eps 0.062745, one for all pictures;" in render(shared, manifest)
