"""The lock has versions allowed by pyproject.toml, with a hash for every file and no URLs."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Name -> its versions in the lock: of some packages there is one for each Python.
PINS = {}
for line in re.findall(r"^[a-z0-9][^\n]*", LOCK, re.MULTILINE):
    pin = Requirement(line.removesuffix(" \\"))
    PINS.setdefault(canonicalize_name(pin.name), []).append(str(pin.specifier).removeprefix("=="))


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]])
def test_locked_versions_are_allowed_and_requirements_have_a_lower_bound(line):
    requirement = Requirement(line)
    assert any(entry.operator in (">=", "==") for entry in requirement.specifier), (
        "the lowest version cannot be tested"
    )
    assert PINS[canonicalize_name(requirement.name)]
    assert all(requirement.specifier.contains(version) for version in PINS[canonicalize_name(requirement.name)])


def test_locked_versions_have_hashes_and_no_urls():
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK)[1:]
    assert len(blocks) == sum(map(len, PINS.values()))
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in LOCK


def test_the_page_has_the_command_of_the_lock():
    (command,) = re.findall(r"^# +(uv pip compile .*)$", LOCK, re.MULTILINE)
    assert f"\n{command}\n" in (ROOT / "docs" / "environment.md").read_text()


def test_the_lower_bounds_on_the_page_are_those_of_the_project():
    page = (ROOT / "docs" / "environment.md").read_text()
    floors = {canonicalize_name(r.name): r.specifier for r in map(Requirement, PROJECT["dependencies"])}
    rows = re.findall(r"^\|([A-Za-z-]+)\|([0-9.]+)\|", page, re.MULTILINE)
    assert {"hydra-core", "kornia", "numpy", "pillow", "matplotlib", "safetensors"} <= {n.lower() for n, _ in rows}
    for name, floor in rows:
        expected = PROJECT["requires-python"] if name == "Python" else str(floors[canonicalize_name(name)])
        lowest = re.search(r">=([0-9.]+)", expected)[1]
        assert floor.removesuffix(".0") == lowest.removesuffix(".0"), name
