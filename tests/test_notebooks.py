"""Tutorial notebooks, one for each paper: their cells run and print what the files say."""

import json

import pytest
from support.docs_scripts import load_script

NOTEBOOKS = load_script("make_notebooks")
PATHS = sorted(NOTEBOOKS.FOLDER.glob("*.ipynb"))


def test_every_paper_has_a_notebook():
    assert [path.name[:2] for path in PATHS] == ["s0", "s1", "s2", "s3"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_cells_print_what_the_file_says(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert NOTEBOOKS.run(notebook) == NOTEBOOKS.stored(notebook)
    assert notebook["nbformat"] == 4
    assert all(cell["id"] for cell in notebook["cells"])
