"""What people expect to find in a repository: a version, a citation, types, public names."""

import sys
from pathlib import Path

import pytest
import yaml

import attacks
import transforms
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


@pytest.mark.parametrize("package", [attacks, transforms])
def test_every_public_name_is_there_and_no_module_hides_one(package):
    assert not {path.stem for path in (ROOT / package.__name__).iterdir()} & set(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
