"""Every notebook runs from its first cell to its last on a fresh run, and is kept without what it printed."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode
from small_run import SmallRun

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LABELLED = """
for _axes in (axes for number in plt.get_fignums() for axes in plt.figure(number).axes):
    assert _axes.get_xlabel() or _axes.get_label() == "<colorbar>", "an axis without a label"
    assert "(" in _axes.get_xlabel() + _axes.get_ylabel(), "an axis without a unit"
"""
"""Put before each ``plt.show()``: whatever is drawn says what its axes are, with units."""


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def test_there_are_three_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["1-reading-a-run", "2-update-histories", "3-beside-published"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert notebook.cells[0].cell_type == "markdown"
    assert notebook.metadata.kernelspec.name == "python3"


def test_every_notebook_runs_and_draws_with_labelled_axes(
    small_run: SmallRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LETHE_RUN": str(small_run.path), "LETHE_HOME": str(small_run.home)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    joined = nbformat.v4.new_notebook(metadata=read(NOTEBOOKS[0]).metadata)
    for path in NOTEBOOKS:  # one kernel for all: starting one costs as much as running a notebook
        for cell in read(path).cells:
            if cell.cell_type == "code":
                cell.source = cell.source.replace("plt.show()", f"{LABELLED}\nplt.show()")
                joined.cells.append(cell)
        joined.cells.append(nbformat.v4.new_code_cell("%reset -f"))  # none lives on what another has left
    for number, cell in enumerate(joined.cells):
        cell["id"] = str(number)
    NotebookClient(joined, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in joined.cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 8
    assert not [output for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    text = "".join(output.text for output in outputs if output.output_type == "stream")
    assert "site-1 leaves" in text
    assert "ANOTHER DATA SET: no reproduction" in text
    if kept := os.environ.get("LETHE_KEEP_NOTEBOOKS"):  # to look at what they draw
        nbformat.write(joined, Path(kept))
