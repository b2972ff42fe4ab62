"""The page on how to read all the others."""

from __future__ import annotations

from evaluation.pages.frame import page
from evaluation.report.pieces import section
from evaluation.report.words import READ

PAGES = """
<ul>
<li><b>Runs</b> lists what there is, newest first. Tick two and press <b>Compare two</b>.</li>
<li><b>A run</b> has a section a request: every model beside the retrained one, before and after recovery; what is not
ok, and why; and the figures. Below each figure are its image (PNG, SVG) and its numbers (CSV), below each table the
same as CSV, Markdown and LaTeX. <b>results.csv</b> has every number with its interval, status and reason.</li>
<li><b>Two runs side by side</b> starts with the settings that differ, since those are the first thing to suspect.
A difference is marked where its 95 % interval leaves out nought.</li>
<li><b>Beside published tables</b> sets a run beside what studies report, and says which records and which checkpoint
each number is of, where the studies do not.</li>
</ul>"""
FILES = """
<p>Every number of a table holds its exact value for whatever reads the page next (the element <code>data</code>).
Tables that are wider than the screen scroll by themselves: with the keyboard, focus one and use the arrow keys. The
first press of the tab key offers a way past the head of each page. Nothing is loaded from another server, and no page
runs a script.</p>"""


def about_page() -> str:
    """Return the page."""
    return page(
        "How to read these pages",
        section("read", "What the numbers say", READ),
        section("pages", "What is where", PAGES),
        section("files", "With a keyboard, a screen reader, a program", FILES),
        here="How to read",
    )
