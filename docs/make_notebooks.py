"""Run the tutorial notebooks and store what their cells print: `python docs/make_notebooks.py`.

A notebook runs here as one program, without Jupyter: its code cells share a namespace, and the
output of a cell is what it prints. `--check` compares instead of writing.
"""

import contextlib
import io
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "notebooks"


def run(notebook: dict) -> list[str]:
    """Return what each code cell prints."""
    space: dict[str, object] = {"__name__": "__main__"}
    printed = []
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        stream = io.StringIO()
        with contextlib.redirect_stdout(stream):
            exec(compile("".join(cell["source"]), "cell", "exec"), space)
        printed.append(stream.getvalue())
    return printed


def stored(notebook: dict) -> list[str]:
    """Return what each code cell printed when the notebook was written."""
    result = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            texts = ["".join(output["text"]) for output in cell["outputs"]]
            result.append("".join(texts))
    return result


def update(path: Path) -> None:
    """Run a notebook, and write its outputs into the file."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    printed = iter(run(notebook))
    number = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        text = next(printed)
        cell["execution_count"] = number
        cell["outputs"] = []
        if text:
            lines = text.splitlines(keepends=True)
            cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": lines}]
    path.write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Write all notebooks anew, or name those whose outputs changed."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if "--check" not in sys.argv:
            update(path)
            continue
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if run(notebook) != stored(notebook):
            sys.exit(f"{path.name} prints something else; run python docs/make_notebooks.py")


if __name__ == "__main__":
    main()
