"""The page of a run: it holds all numbers, fetches nothing, and runs no foreign code."""

import base64
import html
import io
import itertools
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from attacks.data.images import file_names
from attacks.report.environment import with_cards
from attacks.report.page import Images, render_page, sections
from attacks.report.sheets import LARGEST, perturbation
from attacks.report.warnings import warnings
from attacks.report.words import BANKS, GLOSSARY, extreme_words, number_words
from tests.helpers import report_pages
from tests.helpers.page import Page
from tests.helpers.report_pages import ARMS, EVIL
from tests.report.test_answer import JARGON

pytestmark = pytest.mark.slow

WORDS = Path(__file__).parents[2] / "docs" / "glossary.md"
OPTIONAL = ("wide", "comparisons", "drift", "sanity", "response", "left_out", "deployment", "explanations", "failure")
OPTIONAL += ("detection", "costs")
NOTHING = dict.fromkeys(OPTIONAL) | {"comparisons": []}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    report_pages.directory(out, ["astronaut-0-0.png"])
    beware = [f"beware of {EVIL} & co"]
    report_pages.write_report(out, report_pages.content(), report_pages.manifest(), beware, report_pages.trace(), 0)
    return (out / "report.html").read_text(encoding="utf-8")


def test_the_head_has_no_word_of_the_laboratory(report):
    head = report[report.index("<header>") : report.index("</header>")]
    for words in ("Not decided", "On what", "2026-11-24", "a CPU", "How sure", "What next", "before it, 2\u00a0%"):
        assert words in head, words
    assert not JARGON.search(Page(f"<body>{head}</header></body>").text)


def test_the_three_numbers_are_those_of_the_table_with_their_intervals(report):
    rows = re.findall(
        r"<li><strong>(\d+)\u00a0%</strong><span>(.*?)<small>95\u00a0% interval (\d+)-(\d+)\u00a0%", report
    )
    arms = report_pages.content()["arms"]
    assert len(rows) == 3 and len({sentence for _, sentence, *_ in rows}) == 3
    for arm, (mean, _, *ends) in zip(("eot", "no_eot", "clean"), rows, strict=True):
        expected = [round(100 * arms[arm]["success"][key]) for key in ("mean", "low", "high")]
        assert [*map(int, (mean, *ends))] == expected


def test_every_card_has_the_meaning_of_its_word_and_leads_to_the_glossary(report):
    entries = dict(re.findall(r'<dt id="(word-\d+)">.*?</dt><dd>(.*?)</dd>', report))
    names = dict(re.findall(r'<dt id="(word-\d+)">(.*?)</dt>', report))
    assert [*names.values()] == [*GLOSSARY] and [*entries.values()] == [*GLOSSARY.values()]
    cards = re.findall(
        r'<dfn tabindex="0" aria-describedby="(.*?)">(.*?)<span class="card".*?>(.*?)</span></dfn>', report
    )
    for number, word, meaning in cards:
        assert re.fullmatch(f"{names[number]}s?", word, re.IGNORECASE) and meaning == entries[number]
    assert {names[number] for number, *_ in cards} >= {"cluster", "interval", "EOT", "arm", "primary", "held-out"}
    for section in re.findall("<section.*?</section>", report, re.DOTALL):  # one card a word and section
        numbers = re.findall('describedby="(word.*?)"', section)
        assert len(numbers) == len(set(numbers))


@pytest.mark.skipif(not WORDS.is_file(), reason="no page of words")
def test_the_page_of_words_has_the_same_meanings():
    entries = dict(
        re.findall(r"^(\S[^\n]*)\n  (.+)", WORDS.read_text(encoding="utf-8").replace("`", ""), re.MULTILINE)
    )
    for word, meaning in GLOSSARY.items():
        assert entries[word].replace(" (clean)", "").startswith(meaning.rstrip(".")), word


def test_cards_change_no_table_link_or_attribute():
    text = '<a title="arm">arm</a><table>arm</table><svg>arm</svg><p class="arm">&lt;arms&gt; arm</p>'
    result = str(with_cards(text))
    assert result.count("<dfn") == 1 and result[: text.index("&lt;")] == text[: text.index("&lt;")]
    assert re.sub(r'<dfn[^>]*>|<span class="card".*?</span>|</dfn>', "", result) == text


@given(st.lists(st.integers(0, 100).filter(lambda x: x != 50), min_size=4, max_size=4))
def test_the_words_of_a_view_are_its_most_extreme_coordinates(places):
    names = [f"coordinate {i} (px)" for i in range(4)]
    bank = {"coordinates": names, "ranges": [(-i - 1.0, 99.0) for i in range(4)]}
    values = {names[i]: -i - 1 + place / 100 * (100 + i) for i, place in enumerate(places)}
    words = [word.split() for word in extreme_words(values, bank).split(", ")]
    assert all(level == ("high" if places[int(i)] > 50 else "low") for level, _, i in words)
    distances = [abs(places[int(i)] - 50) for *_, i in words]
    assert distances == sorted((abs(place - 50) for place in places), reverse=True)[:3]


def intervals(result):
    """Every interval that a part of metrics.json holds."""
    if isinstance(result, dict):
        if {"mean", "low", "high"} <= set(result):
            yield result
        else:
            for part in result.values():
                yield from intervals(part)
    elif isinstance(result, list):
        for part in result:
            yield from intervals(part)


def test_every_interval_of_the_metrics_is_on_the_page(report):
    content = report_pages.content()
    # A shift is a paired difference: its interval is that of the comparison of cosines.
    shifts = [row["shift"] for bank in (content, content["wide"]) for row in bank["arms"].values()]
    parts = ("arms", "wide", "comparisons", "drift", "response", "left_out", "deployment", "detection")
    for section in (*parts, "explanations"):
        results = list(intervals(content[section]))
        assert results and all(f"{shift['mean']:z.2f}</td>" in report for shift in shifts)
        for result in results:
            digits = 0 if result["high"] > 1 else None
            texts = (number_words(result, digits, sign) for sign in ("", "+"))
            assert result in shifts or any(f"{mean} <small>{ends}</small>" in report for mean, ends in texts), result
    rows = [row for rows in content["failure"]["arms"].values() for row in rows]
    assert len(rows) == 3 and all(html.escape(row["words"]) in report for row in rows)


def test_the_page_is_well_formed_with_unique_ids_and_valid_links(report):
    page = Page(report)
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    used = re.findall(r"url\(#([^)]*)\)", report)
    for _, attributes in page.elements:
        used += [attributes[key].removeprefix("#") for key in ("href", "xlink:href") if key in attributes]
        used += [name for key in ("aria-labelledby", "aria-describedby") for name in attributes.get(key, "").split()]
    assert set(used) <= set(ids) and len(used) > 30


def without_cards(page):
    return re.sub(r'<span class="card".*?</span>|<section id="glossary">.*?</section>', "", page, flags=re.DOTALL)


def test_every_plot_has_a_line_that_says_what_to_see(report):
    report = re.sub("</?dfn.*?>", "", without_cards(report))
    for name, body in re.findall(r'<section id="(\w+)">(.*?)</section>', report, re.DOTALL):
        body = re.sub(r'<div class="pictures">.*?</div>', "<img >", body, flags=re.DOTALL)  # one plot
        *before, _ = re.split("<svg |<img ", body)
        assert all('<p class="see">' in text for text in before), name
        assert name not in ("left_out", "deployment", "detection") or '<p class="see">' in body
    lines = [html.unescape(line) for line in re.findall('<p class="see">(.*?)</p>', report)]
    assert len(lines) > 12 and all(len(line.split()) <= 20 and line.endswith(".") for line in lines)


def test_nothing_is_fetched_and_nothing_runs(report):
    page = Page(report)
    assert not page.all("script", "link", "iframe", "object", "embed", "base", "form")
    for _, attributes in page.elements:
        assert not [key for key in attributes if key.startswith("on")]
        for key in ("src", "href", "srcset", "data", "xlink:href"):
            assert attributes.get(key, "#").startswith(("data:image/png;base64,", "#"))
    assert "@import" not in report and not re.search(r"url\((?!#)", report)
    assert not re.search("https?:", re.sub(r'xmlns(:\w+)?="[^"]*"', "", report))
    (policy,) = (attributes["content"] for attributes in page.all("meta") if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none';") and "script-src" not in policy


def test_headings_tables_and_pictures_are_accessible(report):
    page = Page(report)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(below - above <= 1 for above, below in itertools.pairwise(levels))
    assert len(page.all("caption")) == len(page.all("table")) > 20
    assert all(attributes.get("scope") in ("col", "row", "colgroup", "rowgroup") for attributes in page.all("th"))
    assert all(attributes["alt"] for attributes in page.all("img")) and len(page.all("img")) == 10
    assert all(attributes["role"] == "img" and attributes["aria-labelledby"] for attributes in page.all("svg"))
    assert all(attributes.get("aria-label") for _, attributes in page.elements if attributes.get("role") == "region")


@pytest.mark.parametrize("part", OPTIONAL)
def test_a_part_is_on_the_page_if_the_run_has_one(part):
    report = report_pages.content()
    pages = [NOTHING, NOTHING | {part: [] if part == "comparisons" else {}}, NOTHING | {part: report[part]}]
    titles = [[section.title for section in sections(report | changes, Images(), False)] for changes in pages]
    assert titles[0] == titles[1]
    assert len(titles[2]) - len(titles[0]) == (part not in ("wide", "costs"))
    for changes, expected in zip(pages, titles, strict=True):
        assert (
            re.findall('<h2><a href="#.*?">(.*?)</a></h2>', render_page(report | changes, report_pages.manifest()))
            == expected
        )


def test_a_patch_run_shows_its_texture_and_its_facts(tmp_path):
    area = {"mean": 0.25, "low": 0.25, "high": 0.25}
    printer = {"name": "generic", "colour": "generic", "intent": "relative", "stages": {"exposure": {"stops": 0.3}}}
    patch = {"texture": [48, 64], "start": "grey", "shape": "rectangle", "grey": False, "gamut": None, "places": 1}
    patch |= {"anywhere": None, "area": area, "sheet_area": None, "width_mm": 80.0, "card": False, "tags": None}
    patch |= {"printer": printer, "target": "chelsea"}
    content = report_pages.content(response=None)
    content["threat"] |= {"patch": patch, "norm": "patch", "eps": 1.0}
    report_pages.directory(tmp_path, ["astronaut-0-0.png"])
    report_pages.write_report(tmp_path, content, report_pages.manifest(), [], report_pages.trace(), 0)
    page = Page(without_cards((tmp_path / "report.html").read_text(encoding="utf-8")))
    assert "random noise" not in page.text
    texts = ("random patch", "With the patch, 93 %", "64 x 48 texels", "25.0% of the picture")
    for text in (*texts, "viewproof print", "80 mm wide", "chelsea"):
        assert text in page.text
    assert any(attributes["alt"] == "The texture of the patch" for attributes in page.all("img"))
    assert not any("amplified" in attributes["alt"] for attributes in page.all("img"))


@pytest.mark.parametrize(("failed", "left"), [((0, 2), 1), ((), 0), ((0,), 0), ((1,), 0), ((), 2)])
def test_a_picture_keeps_its_file_whichever_others_are_left_out(tmp_path, failed, left):
    names = ("anna/1.jpg", "bert/1.jpg", "bert/2.jpg", "carl/2.jpg")  # alone, each would be 1.png or 2.png
    rows = [row for row in range(len(names) - left) if row not in failed]
    changes = {"queries": [names[row] for row in rows], "left": left, "response": None}
    content = report_pages.content(failed=[{"picture": row, "name": "", "reason": ""} for row in failed], **changes)
    for number, row in enumerate(rows):
        out = tmp_path / str(row)
        report_pages.directory(out, [file_names(names)[row]])
        report_pages.write_report(out, content, report_pages.manifest(names), [], report_pages.trace(), number)
        assert "The attacked picture" in (out / "report.html").read_text(encoding="utf-8")


def test_the_command_repeats_the_run(report):
    (text,) = re.findall(r'<pre[^>]*aria-label="The command of this run">(.*?)</pre>', report)
    assert shlex.split(html.unescape(text)) == ["python", "-m", "attacks.run", *report_pages.manifest()["overrides"]]
    manifest = report_pages.manifest() | {"overrides": ["seed=3"], "preset": "smoke"}
    bare = report_pages.content(**NOTHING)
    assert "attacks.run config=smoke seed=3<" in render_page(bare, manifest)
    # No command can name a module from Python.
    page = render_page(bare, manifest | {"encoder": {"name": "module"}})
    assert "attacks.run" not in page and ">config=smoke seed=3<" in page and "attacks.robustness" in page


def test_the_page_shows_the_cost_of_each_arm(report):
    table, costs = re.search(r'<section id="arms">.*?</table>', report, re.DOTALL)[0], report_pages.content()["costs"]
    names = {"forward": ("forward passes, choice of the iterate included", 0), "backward": ("gradients", 0)}
    names |= {"seconds": ("seconds", 1)}
    for key, (name, digits) in names.items():
        row = re.search(rf'<th scope="row">{name}</th>(.*?)</tr>', table, re.DOTALL)[1]
        assert re.findall(r"<td[^>]*>(.*?)</td>", row) == [f"{costs[arm][key]:.{digits}f}" for arm in ARMS[::-1]]


def test_comparisons_are_grouped_by_bank_and_complete(report):
    section = re.search(r'<section id="comparisons">.*?</section>', report, re.DOTALL)[0]
    groups = re.findall(r'scope="rowgroup"[^>]*>(.*?)</th>(.*?)</tbody>', section, re.DOTALL)
    assert [html.unescape(name) for name, _ in groups] == [*BANKS.values()]
    banks = [row["bank"] for row in report_pages.content()["comparisons"]]
    assert [body.count("<tr>") for _, body in groups] == [banks.count("same"), banks.count("wide")]


def test_every_section_with_numbers_names_its_file(report):
    for name, body in re.findall(r'<section id="(\w+)">(.*?)</section>', report, re.DOTALL):
        source = re.search(r"<code>[\w.]+\.(csv|json)</code>", body)
        assert source or ("<table" not in body and "<svg" not in body), name


def test_a_perturbation_is_shown_unscaled_and_amplified_to_the_full_range(tmp_path):
    clean = np.full((20, 30, 3), 100)
    attacked_pixels = clean + np.where(np.arange(30)[None, :, None] % 2, 5, -5)
    for name, values in (("clean", clean), ("eot", attacked_pixels)):
        report_pages.write(tmp_path / f"{name}.png", values)
    names = ("before", "after")
    pictures = perturbation(tmp_path / "clean.png", tmp_path / "eot.png", names)
    files = [io.BytesIO(base64.b64decode(item.source.partition(",")[2])) for item in pictures]
    arrays = [np.asarray(Image.open(item)).astype(int) for item in files]
    np.testing.assert_array_equal(arrays[2] - 128, attacked_pixels - clean)
    np.testing.assert_array_equal(arrays[3] - 128, 25 * (attacked_pixels - clean))  # 25 * 5 is the most that fits
    assert "amplified 25 times" in pictures[3].caption and "5 of 255" in pictures[2].alt
    report_pages.write(tmp_path / "wide.png", np.zeros((10, LARGEST + 50, 3)))
    assert perturbation(tmp_path / "wide.png", tmp_path / "wide.png", names)[0].width == LARGEST
    assert perturbation(tmp_path / "clean.png", tmp_path / "none.png", names) == []


def test_ranges_have_no_brackets_and_too_few_clusters_no_p_value():
    content = report_pages.shorten_values(report_pages.content(response=None))
    page = render_page(content, report_pages.manifest(), warnings(content))
    assert "beats one made for the file alone is undecided: 3 more pictures needed." in page
    assert not re.search(r"\d <small>\[", page) and "Star:" not in page
    assert page.count("too few clusters: 6 needed") == len(content["comparisons"])


def test_the_protocol_has_all_that_a_citation_needs():
    content = report_pages.content(**NOTHING | {"wide": report_pages.content()["wide"]})
    manifest = report_pages.manifest()
    section = re.search(r'<section id="protocol">.*?</section>', render_page(content, manifest), re.DOTALL)[0]
    text = html.unescape(" ".join(re.sub("<[^>]*>", " ", section).split()))
    facts = ["preset evaluate", "seed 0", "15 pictures in 12 clusters", "linf, eps 16/255 (0.0627); objective away"]
    facts += ["268 pictures, data.gallery; 2 pairs of near duplicates (duplicates.csv); 3 pictures alone in the"]
    facts += ["800 per picture, 8 views a step", "512 per picture, held out", "of ranges 1.5 times as wide"]
    facts += [manifest["git"], manifest["device"], *manifest["versions"].values(), "95%, over clusters"]
    facts += [content["encoder"]["sha256"], content["encoder"]["fingerprint"], *manifest["overrides"][1].split("=")]
    for fact in facts:
        assert fact in text, fact
    lower = {"ratio": 0.031, "taken": True, "settings": {"precision": "tf32"}}
    engine = {"decision": {"precision": "tf32"}, "settings": [], "measurements": [lower]}
    assert "tf32 in the attack (its rounding has 3.1% of" in render_page(content, manifest | {"engine": engine})
    shared = content | {"threat": content["threat"] | {"shared": True}}
    assert "eps 16/255 (0.0627), one for all pictures;" in render_page(shared, manifest)
