"""Run the notebooks of examples/ from the first cell to the last: make notebooks.

python tests/notebooks.py                # --write keeps what the cells printed
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def main(write: bool) -> None:
    """Run every notebook in a folder of its own; an error in a cell ends it."""
    assert NOTEBOOKS, "no notebooks"
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(notebook, timeout=300, resources={"metadata": {"path": folder}}).execute()
        print(path.name, len(notebook.cells), "cells")
        if write:
            nbformat.write(notebook, path)


if __name__ == "__main__":
    main("--write" in sys.argv)
