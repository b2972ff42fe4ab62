"""The pages say what is true: tests, commands and options they name exist, and every relative link leads somewhere."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer

from evaluation.results import read_results
from evaluation.study import tables
from flower_apps.cli import app
from flower_apps.explain import method_rows, methods_markdown
from flower_apps.manifest import load_manifest
from partitions.errors import BadInput

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEST = re.compile(r"(tests/[\w/]+\.py)((?:::\w+)+)")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,4} (.+)$", re.MULTILINE)
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PYTHON = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
YOURS = ("NAME", "mine")
"""Experiments of the reader's own manifest."""
SHELL = re.compile(r"^```(?:bash|sh|console|shell)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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
def test_every_relative_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    links = [link.partition("#") for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))]
    relative = [(page.parent / to if to else page, at) for to, _, at in links if not re.match(r"[a-z]+:", to)]
    assert [str(to) for to, _ in relative if not to.exists()] == []
    assert [f"{to.name}#{at}" for to, at in relative if at and at not in anchors(to)] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them: of two alike the second gets -1."""
    found: list[str] = []
    for heading in HEADING.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


def test_anchors_are_those_of_the_headings(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`, c?\n## D\n```\n# no heading\n```\n## D\n", encoding="utf-8")
    assert anchors(page) == {"a-b-c", "d", "d-1"}


def commands_in(page: Path) -> list[str]:
    """Return the command lines of `lethe` on a page, in its blocks for a shell and in its text."""
    text = page.read_text(encoding="utf-8")
    blocks = "".join(SHELL.findall(text)).replace("\\\n", " ")
    parts = [part.strip() for line in blocks.splitlines() for part in re.split(r"&&|\||  #", line)]
    inline = [re.sub(r" \[[^]]*\]", "", code) for code in INLINE.findall(CODE.sub("", text))]
    return [part for part in (*parts, *inline) if re.match(r"(\w+=\S+ )*lethe [a-z]", part)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_of_a_page_is_one_of_the_command(page: Path) -> None:
    assert [f"{line.strip()}: {problem}" for line in commands_in(page) if (problem := refusal(line))] == []


def test_a_command_line_that_is_none_is_found() -> None:
    assert refusal("lethe run --sett rounds=1") and refusal("lethe rnu") and refusal("lethe data get lung-ct")
    assert refusal("lethe run --set round=1") and refusal("lethe partition no-such-experiment")
    assert refusal("LETHE_HOME=/data lethe run backdoor --set rounds=1 --jobs 2") == ""


def refusal(line: str) -> str:
    """Return why the command would not take a line; nothing is run; experiments and settings are looked up."""
    words = [word for word in shlex.split(line, comments=True) if not re.match(r"[A-Z_]+=", word)][1:]
    words = [re.sub(r"^(FILE|DIR|RUN|METHOD|URL)$", "given", word) for word in words]
    command, context = typer.main.get_command(app), None
    try:
        while isinstance(command, click.Group):
            context = command.make_context(command.name, list(words), parent=context)
            _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        parsed = command.make_context(command.name, list(words), parent=context)
    except (click.exceptions.Exit, click.MissingParameter, click.BadOptionUsage):  # --help; text may leave values out
        return ""
    except click.ClickException as error:
        return error.format_message()
    given, sets = parsed.params, [text for text in parsed.params.get("sets") or [] if text != "key=value"]
    if given.get("manifest") or not {"experiments", "experiment"} & given.keys():
        return ""
    shipped = load_manifest(ROOT / "experiments.yaml")
    names = given.get("experiments") or [given.get("experiment") or shipped.default()]
    try:
        shipped.groups([shipped.default() if name in YOURS else name for name in names], sets)
    except BadInput as error:
        return str(error)
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_python_of_a_page_imports_from_lethe_is_there(page: Path) -> None:
    trees = [ast.parse(block) for block in PYTHON.findall(page.read_text(encoding="utf-8"))]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [(str(node.module), name.name) for node in imports for name in node.names if _is_ours(str(node.module))]
    assert [f"{module}.{name}" for module, name in ours if not hasattr(importlib.import_module(module), name)] == []


def _is_ours(module: str) -> bool:
    return (ROOT / module.partition(".")[0]).is_dir()


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


def test_the_table_of_experiments_that_ship_has_each_once_and_its_twins_are_those_it_says() -> None:
    text = (ROOT / "docs" / "manifest.md").read_text(encoding="utf-8").partition("## The experiments that ship")[2]
    ships, twins = re.split(r"^Each from ", text.partition("### What has to wait")[0], flags=re.MULTILINE)
    listed, small = (
        [name for row in re.findall(r"^\| (`[^|]+)\|", part, re.MULTILINE) for name in INLINE.findall(row)]
        for part in (ships, twins)
    )
    assert sorted(listed + small) == sorted(set(listed + small)), "each once"
    assert set(listed + small) == set(load_manifest(ROOT / "experiments.yaml").experiments)
