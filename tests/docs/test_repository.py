"""Usual contents of a repository: a version, a citation, types, public names."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import attacks
import transforms
from attacks.run import cli

ROOT = Path(__file__).resolve().parents[2]
STUBS = [stub for package in ("attacks", "transforms") for stub in (ROOT / package).rglob("__init__.pyi")]


def test_version_and_citation_agree(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["viewproof", "--version"])
    cli()
    assert capsys.readouterr().out == f"viewproof {attacks.__version__}\n"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == attacks.__version__ and citation["cff-version"] == "1.2.0"
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_description_of_the_wheel_has_the_words_of_the_readme_and_no_relative_target():
    """A package index shows it beside no file of the repository, where nothing relative leads anywhere."""
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"]
    readme = text = (ROOT / "README.md").read_text()
    for rule in hook["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    targets = re.findall(r"\]\(([^)]*)", text)
    assert targets and all(target.startswith("https://") for target in targets) and "![" not in text
    assert {*re.findall("^## .*", readme, re.MULTILINE)} == {*re.findall("^## .*", text, re.MULTILINE)}
    assert text.count("```") == readme.count("```")


def test_both_packages_have_py_typed():
    assert all((ROOT / package / "py.typed").exists() for package in ("attacks", "transforms"))


@pytest.mark.parametrize("stub", sorted(STUBS), ids=lambda stub: stub.parent.name)
def test_public_names_exist_and_do_not_clash_with_modules(stub):
    package = importlib.import_module(".".join(stub.parent.relative_to(ROOT).parts))
    assert not {path.stem for path in stub.parent.iterdir()} & {*package.__all__}
    assert all(hasattr(package, name) for name in package.__all__)


def test_the_packages_export_the_names_that_most_work_needs():
    assert len(attacks.__all__) + len(transforms.__all__) <= 50


def test_no_file_has_the_marks_of_a_conflict():
    files = [Path(name) for name in subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()]
    marks = tuple(7 * sign + b" " for sign in (b"<", b">"))
    assert not [
        file
        for file in files
        if (ROOT / file).is_file() and any(line.startswith(marks) for line in (ROOT / file).read_bytes().splitlines())
    ]
