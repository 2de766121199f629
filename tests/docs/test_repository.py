"""What people expect to find in a repository: a version, a citation, types."""

import sys
from pathlib import Path

import yaml

import attacks
from attacks.run import cli

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_ours_and_the_citation_names_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["viewproof", "--version"])
    cli()
    assert capsys.readouterr().out == f"viewproof {attacks.__version__}\n"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == attacks.__version__ and citation["cff-version"] == "1.2.0"
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_both_packages_say_that_they_are_typed():
    assert all((ROOT / package / "py.typed").exists() for package in ("attacks", "transforms"))
