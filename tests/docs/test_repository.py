"""Usual contents of a repository: a version, a citation, types, public names."""

import sys
from pathlib import Path

import pytest
import yaml

import attacks
import transforms
from attacks.run import cli

ROOT = Path(__file__).resolve().parents[2]


def test_version_and_citation_agree(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["viewproof", "--version"])
    cli()
    assert capsys.readouterr().out == f"viewproof {attacks.__version__}\n"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == attacks.__version__ and citation["cff-version"] == "1.2.0"
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_both_packages_have_py_typed():
    assert all((ROOT / package / "py.typed").exists() for package in ("attacks", "transforms"))


@pytest.mark.parametrize("package", [attacks, transforms])
def test_public_names_exist_and_do_not_clash_with_modules(package):
    assert not {path.stem for path in (ROOT / package.__name__).iterdir()} & set(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
