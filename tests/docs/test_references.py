"""docs/references.md: each paper and standard that is named anywhere, each in order, and no other."""

import re
from functools import cache
from pathlib import Path

from scripts.parts.cards import PAPER, references

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "references.md"
STANDARD = re.compile(r"\b(?:ISO|IEC|ITU-R|NIST)(?: AI)? (?:BT\.)?\d[\d-]*\d")
EXCLUDED_PAGES = {PAGE, ROOT / "docs" / "configuration.md"}


@cache
def texts():
    """The text of every file by its path, in one line, without signs of comments."""
    folders = {"attacks": "**/*.py", "transforms": "**/*.py", "scripts": "**/*.py", "configs": "**/*.yaml"}
    paths = [path for folder, files in folders.items() for path in (ROOT / folder).glob(files)]
    paths += [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "examples").glob("*.py"), ROOT / "README.md"]
    marks = re.compile(r"\s*\n\s*(?:#:? )?")
    return {path.relative_to(ROOT): marks.sub(" ", path.read_text()) for path in paths if path not in EXCLUDED_PAGES}


def test_each_paper_that_is_named_has_a_line_and_each_line_is_named():
    papers_in_text = {match.group(1, 2): path for path, text in texts().items() for match in PAPER.finditer(text)}
    missing = {paper: papers_in_text[paper] for paper in papers_in_text.keys() - references().keys()}
    assert not missing, f"no line in docs/references.md: {missing}"
    assert references().keys() - papers_in_text.keys() == set(), "not named anywhere"


def test_each_standard_that_is_named_has_a_line_and_each_line_is_named():
    standards = re.findall(r"^- \*\*(.+?)\*\*", PAGE.read_text(), re.MULTILINE)
    everything = " ".join(texts().values())
    assert standards == sorted(standards, key=str.casefold)
    assert [name for name in standards if name not in everything] == []
    named = {*STANDARD.findall(everything)}
    assert named and not [name for name in named if not any(standard.startswith(name) for standard in standards)]


def test_the_papers_of_a_section_are_in_order_and_each_says_what_it_is_for():
    for section in PAGE.read_text().split("\n## ")[1:-1]:  # the last one has the standards
        papers = re.findall(r"^- ([^(]+?) \((\d{4})\)\. (.+)", section, re.MULTILINE)
        assert papers and len(papers) == section.count("\n- ")
        first = [(re.match(r"(?:van den )?[\w-]+", authors)[0].casefold(), year) for authors, year, _ in papers]
        assert first == sorted(first)
        assert [text for _, _, text in papers if text.count(". ") < 1 or not text.endswith(".")] == []


def test_links_are_by_doi_or_to_arxiv_each_once():
    links = re.findall(r"\]\((\S+)\)\. ", PAGE.read_text())
    form = re.compile(r"https://(doi\.org/10\.\d+/\S+|arxiv\.org/abs/\d{4}\.\d{4,5})")
    assert [link for link in links if not form.fullmatch(link)] == []
    assert len({*links}) == len(links) == PAGE.read_text().count("](")
