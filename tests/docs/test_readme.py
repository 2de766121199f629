"""The README keeps its word."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
sys.path.insert(0, str(ROOT / "scripts"))
SCRIPTS = tuple(
    f"python scripts/{name}.py" for name in ("audit", "print_patch", "simulate_photos", "score_photos", "compare")
)


def test_the_two_commands_stand_first_and_exactly():
    first = re.search(r"```bash\n(.*?)```", README, re.DOTALL).group(1)
    assert first == 'pip install -e ".[test]" && python -m attacks.run config=quickstart\npython -m pytest\n'


@pytest.mark.slow
def test_the_python_example_is_short_and_runs(capsys):
    example, _ = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    code = [line for line in example.splitlines() if line.strip()]
    assert len(code) <= 20
    exec(compile(example, "README", "exec"), {})
    said = capsys.readouterr().out
    clean, attacked = (
        float(re.search(rf"{name} cosine (-?[\d.]+)", said).group(1)) for name in ("clean", "attacked")
    )
    assert attacked < clean - 0.2
    assert "affine angle (deg)" in said


@pytest.mark.slow
def test_the_run_from_python_is_what_it_says(tmp_path, monkeypatch, capsys):
    _, example = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README", "exec"), {})
    assert capsys.readouterr().out.splitlines()[-1].startswith("{'mean': ")
    assert (tmp_path / "outputs" / "smoke" / "report.html").is_file()


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_links_and_pictures_exist(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_dev_group_holds_the_test_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["project"]["optional-dependencies"]["test"]) <= set(project["dependency-groups"]["dev"])


def test_the_lock_names_no_address():
    lock = (ROOT / "requirements.lock").read_text()
    assert "://" not in lock and "--hash=sha256:" in lock
    assert not (ROOT / "uv.lock").exists() or "uv.lock" in (ROOT / ".gitignore").read_text()


def test_every_command_is_run_by_somebody():
    from run_docs import ELSEWHERE, commands

    ci = (ROOT / ".ci" / "run").read_text()
    assert "run_docs.py README.md docs/*.md" in ci
    for line in commands(ROOT / "README.md"):
        starts = [who for begin, who in ELSEWHERE.items() if line.startswith(begin)]
        assert line.startswith(("python -m attacks.run", "torchrun --standalone", *SCRIPTS)) or starts, line
    for who in ELSEWHERE.values():
        assert who == "itself" or (ROOT / who).exists(), who
