"""The recipes: ten lines each, whole, and run."""

from pathlib import Path

import pytest

from scripts.run_docs import fenced_blocks

RECIPES = fenced_blocks(Path(__file__).resolve().parents[2] / "docs" / "recipes.md", "python")
MARKS = [pytest.param(recipe, marks=pytest.mark.slow if "robustness(" in recipe else ()) for recipe in RECIPES]


@pytest.mark.parametrize("recipe", MARKS, ids=range(len(RECIPES)))
def test_a_recipe_is_short_and_prints_a_result(recipe, tmp_path, monkeypatch, capsys):
    assert len([line for line in recipe.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(recipe, "docs/recipes.md", "exec"), {})
    assert capsys.readouterr().out.strip()
