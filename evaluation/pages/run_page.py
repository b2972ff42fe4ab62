"""The page of one run: everything the report has, with every figure and table to be had as a file."""

from __future__ import annotations

from evaluation.pages.frame import address, downloads, page
from evaluation.pages.shelf import KINDS, Ready
from evaluation.report.drawing import Plot
from evaluation.report.grid import Grid
from evaluation.report.page import anchors, origin, sections
from evaluation.report.pieces import Places, contents

TABLES = {"csv": "text/csv; charset=utf-8", "md": "text/markdown; charset=utf-8", "tex": "application/x-tex"}
"""Files of a table, with their media types."""
NAMES = {"csv": "CSV", "md": "Markdown", "tex": "LaTeX"}


def run_page(ready: Ready) -> str:
    """Return the page."""

    def image(plot: Plot) -> str:
        return address("run", ready.id, "figures", f"{plot.name}.svg", v=ready.marks[plot.name])

    def files(plot: Plot) -> dict[str, str]:
        mark = ready.marks[plot.name]
        return {kind.upper(): address("run", ready.id, "figures", f"{plot.name}.{kind}", v=mark) for kind in KINDS}

    def tables(grid: Grid) -> dict[str, str]:
        return {name: address("run", ready.id, "tables", f"{grid.slug}.{kind}") for kind, name in NAMES.items()}

    of_run = {
        "results.csv": address("run", ready.id, "results.csv"),
        "curves.csv": address("run", ready.id, "curves.csv"),
    }
    of_run |= {f"All tables, {name}": address("run", ready.id, f"tables.{kind}") for kind, name in NAMES.items()}
    places = Places(image, files, tables, "Download")
    found = sections(ready.run.manifest, ready.chapters, ready.trainings, places, ready.rankings)
    paper = address("run", ready.id, "paper")
    return page(
        ready.run.name,
        origin(ready.run.manifest),
        f"<p>Every model is read by its distance from <b>retrain</b>, the model that was really retrained: "
        f'<a href="/about">how to read this</a>. The same run <a href="{paper}">beside published tables</a>.</p>',
        downloads(of_run),
        f'<div class="withnav">{contents(anchors(ready.chapters, ready.rankings))}<div>',
        *found,
        "</div></div>",
        crumbs=[("Runs", "/")],
    )
