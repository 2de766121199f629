"""The recipes: ten lines each, whole, and run."""

from pathlib import Path

import pytest

from scripts.run_docs import fenced_blocks

RECIPES = fenced_blocks(Path(__file__).resolve().parents[2] / "docs" / "recipes.md", "python")


@pytest.mark.parametrize("recipe", RECIPES, ids=range(len(RECIPES)))
def test_a_recipe_is_short_and_prints_a_result(recipe, tmp_path, monkeypatch, capsys):
    assert len([line for line in recipe.splitlines() if line.strip()]) <= 10
    if "robustness(" in recipe:
        pytest.skip("a run: scripts/run_docs.py")
    monkeypatch.chdir(tmp_path)
    exec(compile(recipe, "docs/recipes.md", "exec"), {})
    assert capsys.readouterr().out.strip()
