"""The pages in a real browser, opened from disk as a reader opens them."""

import itertools
import json

import pytest

from attacks.report.comparison import ComparedRuns, compare_runs, write_comparison, write_page
from attacks.report.runs import collect
from tests.helpers import report_pages
from tests.helpers.browser import LETTERS, PALE, Visit, chromium
from tests.helpers.run_directories import EPS, encoder

pytestmark = pytest.mark.browser
pytest.importorskip("playwright", reason="the extra `browser`")
SCREENS = [(width, scheme) for width in (1280, 390) for scheme in ("light", "dark")]
#: Of each visible box, whether it scrolls, and whether a hint says so.
HINTS = """() => [...document.querySelectorAll(".scroll")].filter((box) => box.checkVisibility()).map((box) => {
  const hint = getComputedStyle(box, "::before");
  return [box.scrollWidth > box.clientWidth, hint.content.includes("Scroll sideways") && parseFloat(hint.height) > 0];
})"""
#: Millimetres in a point.
POINT = 25.4 / 72


@pytest.fixture(scope="module")
def browser():
    with chromium() as result:
        yield result


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """A report with every section and a hostile name, and the index of three runs, the second without a wide bank."""
    folder = tmp_path_factory.mktemp("pages")
    for i, force in enumerate((0.5, 1.0, 0.1)):
        place, content = folder / f"run {i}", report_pages.content(seed=10 - i, arms=report_pages.arm_values(force))
        content["wide"] = content["wide"] if i != 1 else None
        place.mkdir()
        (place / "metrics.json").write_text(json.dumps(content))
        (place / "manifest.json").write_text(json.dumps(report_pages.manifest()))
        if i == 0:
            report_pages.directory(place, ["astronaut-0-0.png"])
            report_pages.write_report(
                place, content, report_pages.manifest(), [report_pages.EVIL], report_pages.trace(), 0
            )
    write_page(ComparedRuns(*collect({place: place.name for place in sorted(folder.iterdir())})), folder)
    sweep = tmp_path_factory.mktemp("sweep")
    for name, (i, eps) in itertools.product(("pocket (a.safetensors)", "a long name " * 5), enumerate(EPS)):
        encoder(sweep / f"{name[:4]} {i}", 0.2 + 0.4 * i, eps, name=name)
    write_comparison(compare_runs({place: place.name for place in sorted(sweep.iterdir())}), sweep)
    ranking = sweep / "index.html"
    return {"report": folder / "run 0" / "report.html", "index": folder / "index.html", "ranking": ranking}


@pytest.mark.parametrize("name", ["report", "index", "ranking"])
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_a_page_logs_and_fetches_nothing_fits_the_width_and_is_legible(browser, pages, name, width, scheme):
    with Visit(browser, pages[name], width, scheme) as visit:
        page = visit.page
        assert visit.messages == []
        assert [url for url in visit.urls if not url.startswith("data:")] == [pages[name].as_uri()]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate("document.querySelectorAll('details').forEach((each) => each.open = true)")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(PALE) == []
        assert min(page.evaluate(LETTERS), default=9) >= 8.5
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(255, 255, 255)" if scheme == "light" else "rgb(18, 23, 29)"
        )


def test_a_narrow_screen_shows_the_eot_arm_and_that_tables_scroll(browser, pages):
    with Visit(browser, pages["report"], 390) as visit:
        place = visit.page.locator("#arms td.eot").first.bounding_box()
        hints = visit.page.evaluate(HINTS)
    assert place["x"] + place["width"] <= 390
    assert len(hints) > 10 and all(visible == wide for wide, visible in hints)


def test_no_table_is_cut_at_1200_pixels(browser, pages):
    with Visit(browser, pages["report"], 1200) as visit:
        assert not any(wide for wide, _ in visit.page.evaluate(HINTS))


@pytest.mark.parametrize("name", ["report", "index"])
def test_the_skip_link_moves_the_keyboard_focus_to_the_content(browser, pages, name):
    with Visit(browser, pages[name], 390) as visit:
        keys, focus = visit.page.keyboard, "document.activeElement"
        keys.press("Tab")
        assert visit.page.evaluate(f"{focus}.className") == "skip"
        assert visit.page.evaluate(f"{focus}.getBoundingClientRect().left") >= 0
        keys.press("Enter")
        assert visit.page.evaluate(f"{focus}.id") == "content"
        keys.press("Tab")
        assert visit.page.evaluate(f"{focus}.closest('main') !== null && {focus}.id !== 'content'")
        assert visit.page.evaluate(f"getComputedStyle({focus}).outlineStyle") == "solid"


def column(page, place):
    return page.evaluate(
        f"[...document.querySelectorAll('#runs tbody tr')].map((row) => row.cells[{place}].dataset.value)"
    )


def test_mouse_and_keyboard_sort_columns_numerically_with_gaps_last(browser, pages):
    with Visit(browser, pages["index"]) as visit:
        page = visit.page
        names = page.locator("#runs thead tr:last-child th").all_inner_texts()
        seed = next(i for i, name in enumerate(names) if name.startswith("seed"))
        wide = next(i for i, name in enumerate(names) if name.startswith("EOT, wider views"))
        sort = page.locator("#runs thead tr:last-child th").nth
        sort(seed).locator("button").click()
        assert column(page, seed) == ["8", "9", "10"] and sort(seed).get_attribute("aria-sort") == "ascending"
        sort(seed).locator("button").press("Enter")
        assert column(page, seed) == ["10", "9", "8"] and sort(seed).get_attribute("aria-sort") == "descending"
        for way in (1, -1):
            sort(wide).locator("button").press("Space")
            *values, missing = column(page, wide)
            assert missing == "" and values == sorted(values, key=lambda value: way * float(value))
        assert page.locator("[aria-sort]").count() == 1 and page.locator("#said").inner_text().endswith("descending")
        assert visit.messages == []


def test_the_index_leads_to_the_report(browser, pages):
    with Visit(browser, pages["index"]) as visit:
        assert visit.page.locator("#runs a").all_inner_texts() == ["run 0"]
        visit.page.locator("#runs a").click()
        assert visit.page.url == pages["report"].as_uri()


@pytest.mark.parametrize(("name", "least", "most"), [("report", 2, 2), ("report#all", 6, 16), ("index", 1, 1)])
def test_pages_print_on_a4_with_open_details_and_whole_tables(browser, pages, name, least, most):
    pdfium = pytest.importorskip("pypdfium2")
    file, _, part = name.partition("#")
    with Visit(browser, pages[file], scheme="dark") as visit:
        visit.page.goto(f"{pages[file].as_uri()}#{part}")
        document = pdfium.PdfDocument(visit.page.pdf(prefer_css_page_size=True))
    sizes = {tuple(sorted(round(side * POINT) for side in page.get_size())) for page in document}
    assert sizes == {(210, 297)} and least <= len(document) <= most
    text = " ".join(" ".join(page.get_textpage().get_text_bounded() for page in document).split())
    assert all(bool(page.get_textpage().get_text_bounded().strip()) for page in document)
    if part:
        assert "brightness added" in text and "stages.8" in text  # of closed boxes
    parts = ("before it, ", "attacker", "git revision") if file == "report" else ("warnings", "seconds", "preset")
    assert all(words in text for words in parts)
    document.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_card_opens_at_hover_tap_and_focus_without_scripts(browser, pages, width):
    size = {"width": width, "height": 800}
    context = browser.new_context(viewport=size, has_touch=True, java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["report"].as_uri())
    for i, act in enumerate(("hover", "tap", "focus")):
        word = page.locator("dfn").nth(i)
        card = word.locator(".card")
        assert not card.is_visible()
        getattr(word, act)()
        box = card.bounding_box()
        assert card.is_visible() and box["x"] >= 0 and box["x"] + box["width"] <= width
    context.close()


def test_the_first_screen_has_the_answer_the_pictures_and_the_first_number(browser, pages):
    with Visit(browser, pages["report"], 390) as visit:
        places = [visit.page.locator(part).first.bounding_box() for part in ("h1", ".beside img", ".shares strong")]
        assert all(place["y"] + place["height"] <= 900 for place in places)
        assert visit.page.locator("header img").count() == 2
