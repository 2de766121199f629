"""The examples of the site's gallery, and its notebook."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
NOTEBOOK = ROOT / "docs" / "notebooks" / "evaluate.ipynb"
#: The most lines of code of an example.
MOST_LINES = 40


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_question_a_short_script_and_an_answer(path):
    text = path.read_text()
    tree = ast.parse(text)
    title, line, *_ = ast.get_docstring(tree).splitlines()
    assert title.endswith("?") and line == "=" * len(title)
    head = tree.body[0].end_lineno
    code = [entry for entry in text.splitlines()[head:] if entry.strip() and not entry.startswith("#")]
    assert len(code) <= MOST_LINES
    assert "plt.show()" in code and path.stem.startswith("plot_")  # sphinx-gallery runs no other
    answer = text.rpartition("\n# %%\n")[2].splitlines()
    assert answer and all(entry.startswith("# ") for entry in answer)


def run(path, folder):
    """Run an example in a fresh process, with warnings as errors."""
    keywords = {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
    variables = {name: value for name, value in os.environ.items() if name != "DISPLAY"} | keywords
    command = [sys.executable, "-W", "error", str(path)]
    process = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.slow
def test_one_example_runs(tmp_path):
    run(ROOT / "docs" / "examples" / "plot_choose_views.py", tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_runs(path, tmp_path):
    run(path, tmp_path)


def test_the_notebook_has_no_outputs_and_compiles():
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert len(cells) >= 5
    for number, cell in enumerate(cells):
        assert cell["outputs"] == [] and cell["execution_count"] is None and not cell["metadata"]
        compile("".join(cell["source"]), f"cell {number}", "exec")


@pytest.mark.site
def test_the_notebook_runs_and_shows_table_picture_and_report(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    book = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed_lines = [entry.data for cell in book.cells[-5:] for entry in cell.get("outputs", []) if "data" in entry]
    table, picture, report = printed_lines
    assert "<table>" in table["text/html"] and "image/png" in picture and "<iframe" in report["text/html"]
