"""The pages say what is true: every test they name exists, and every relative link leads somewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation.results import read_results
from evaluation.study import tables
from flower_apps.explain import method_rows, methods_markdown

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEST = re.compile(r"(tests/[\w/]+\.py)((?:::\w+)+)")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def names_in(path: Path) -> set[str]:
    return set(_names(ast.parse(path.read_text(encoding="utf-8")), ""))


def _names(node: ast.AST, inside: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield f"{inside}::{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from _names(child, f"{inside}::{child.name}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    named = TEST.findall(page.read_text(encoding="utf-8"))
    missing = [
        f"{file}{name}" for file, name in named if not (ROOT / file).is_file() or name not in names_in(ROOT / file)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in LINK.findall(page.read_text(encoding="utf-8"))]
    relative = [link for link in links if link and "://" not in link and not link.startswith("mailto:")]
    assert [link for link in relative if not (page.parent / link).exists()] == []


def test_the_tables_of_results_are_made_from_the_table_beside_them() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert page.partition("## The tables\n\n")[2] == tables(read_results(ROOT / "docs" / "results" / "methods.csv"))


def test_the_page_of_methods_is_what_the_methods_declare() -> None:
    page = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
    assert page == methods_markdown(method_rows()), "python -m flower_apps.explain > docs/methods.md"


def test_every_row_of_the_table_of_pains_names_a_test() -> None:
    covered = (ROOT / "docs" / "pains.md").read_text(encoding="utf-8").partition("\n## Not covered")[0]
    rows = [line for line in covered.splitlines() if line.startswith("| ") and not line.startswith("| elsewhere")]
    assert len(rows) > 40
    assert [row for row in rows if not TEST.search(row)] == []
