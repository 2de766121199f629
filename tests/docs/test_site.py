"""The site: built without a warning, with every public name; its links lead somewhere, and it fetches nothing."""

import importlib
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import pytest
from PIL import Image

from scripts.api_reference import pages, public_names
from scripts.parts.cards import ROOMS, all_cards
from tests.helpers.browser import Visit, chromium

ROOT = Path(__file__).resolve().parents[2]


def test_every_public_name_has_one_directive():
    directives = [
        line.split()[-1] for page in pages().values() for line in page.splitlines() if line.startswith("..")
    ]
    assert sorted(directives) == sorted(public_names())
    assert {"attacks.PGD", "attacks.robustness", "transforms.Compose"} <= {*directives}
    assert "attacks.optimisers.PGD" not in directives  # the same class once more


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-D", "plot_gallery=0", "docs", str(out)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return out


@pytest.mark.site
def test_the_inventory_has_the_public_names_and_no_other(site):
    from sphinx.util.inventory import InventoryFile

    targets = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="").data
    kinds = ("py:class", "py:function", "py:data", "py:exception")
    names, public = {name for kind in kinds for name in targets.get(kind, {})}, {*public_names()}
    assert names >= public
    values = [
        getattr(importlib.import_module(package), name) for package, _, name in (n.rpartition(".") for n in public)
    ]
    homes = {f"{value.__module__}.{value.__qualname__}" for value in values if hasattr(value, "__qualname__")}
    assert names - public <= homes  # Sphinx also lists a class under the module of its source


class Page(HTMLParser):
    """The ids of a page, the links of its anchors, and what it loads."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        arguments = dict(attrs)
        self.ids.add(arguments.get("id"))
        if tag == "a" and "href" in arguments:
            self.links.append(arguments["href"])
        elif tag in ("img", "script", "link", "iframe", "source"):
            self.loads += [arguments[key] for key in ("src", "href") if arguments.get(key)]


@pytest.mark.site
def test_every_link_leads_to_a_page_and_a_place_and_all_that_is_loaded_is_a_file(site):
    tree = {path: Page(path) for path in site.rglob("*.html")}
    assert len(tree) > 40
    for path, page in tree.items():
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                assert link not in page.loads, (path, link)
                continue
            file, place = urldefrag(link)
            target = (path.parent / unquote(file.partition("?")[0])).resolve() if file else path
            assert target.is_file(), (path, link)
            if place and target in tree:
                assert unquote(place) in tree[target].ids, (path, link)


@pytest.fixture(scope="module")
def browser():
    with chromium() as result:
        yield result


@pytest.mark.site
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize(
    "name", ["index", "api/attacks.optimisers", "benchmarks", "gallery/index", "parts/geometry", "parts/encoder"]
)
def test_a_page_fetches_only_files_and_fits_the_width(site, browser, name, width, scheme):
    with Visit(browser, site / f"{name}.html", width, scheme) as visit:
        assert not visit.messages
        assert visit.urls and all(url.startswith(site.as_uri()) for url in visit.urls)
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.site
def test_each_card_of_a_stage_and_of_a_preset_of_views_has_its_pictures(site):
    for page, texts_of_pages in all_cards().items():
        text = (site / "parts" / f"{page}.html").read_text(encoding="utf-8")
        for card in texts_of_pages:
            assert f'id="{card.name.replace("_", "-").lower()}"' in text
            assert card.strips or page not in (*ROOMS, "transforms")
            for strip in card.strips:
                assert f"{strip.file}.jpg" in text
                with Image.open(site / "_images" / f"{strip.file}.jpg") as picture:
                    assert picture.width >= 16 * max(1, len(strip.values))


@pytest.mark.site
@pytest.mark.parametrize(
    ("query", "page"),
    [
        ("cosine attack", "attack_an_embedding"),
        ("minutes", "how_long"),
        ("how long", "how_long"),
        ("affine warp gradient", "lost_gradients"),
        ("own objective", "write_an_objective"),
        ("normalisation", "recipes"),
        ("gallery", "your_pictures"),
        ("print patch", "print_a_patch"),
    ],
)
def test_the_page_is_among_the_first_three_that_the_search_finds_from_disk(site, browser, query, page):
    with Visit(browser, site / "search.html") as visit:
        visit.page.goto((site / "search.html").as_uri() + "?q=" + query.replace(" ", "+"))
        visit.page.wait_for_selector(".search-summary:not(:empty)")  # written after the last match
        matches = visit.page.eval_on_selector_all("ul.search li a", "links => links.map((link) => link.href)")
        assert any(f"/{page}.html" in link for link in matches[:3]), matches
        assert all(url.startswith("file:") for url in visit.urls)


@pytest.mark.site
def test_formulas_are_mathml_on_cards_and_in_the_reference(site):
    for page in ("parts/risk", "parts/optimiser", "api/attacks.eot", "api/transforms.colour"):
        assert "<math" in (site / f"{page}.html").read_text(encoding="utf-8"), page
