"""The documentation site as it is built: complete in itself, whatever page one is on and wherever it is put."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

pytestmark = pytest.mark.slow
pytest.importorskip("furo", reason="the site's builder is not installed: pip install -e '.[docs]'")
ROOT = Path(__file__).resolve().parent.parent
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Tags(HTMLParser):
    """The ids of a page, what it links to and what it loads."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[key] for key in ("id", "name") if key in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif LOADED.get(tag) in given:
            self.loads.append(given[LOADED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site: the one that LETHE_SITE names, else one built here as strictly."""
    if "LETHE_SITE" in os.environ:
        return Path(os.environ["LETHE_SITE"])
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "docs", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Tags]:
    return {path: Tags(path) for path in site.glob("*.html")}


def test_every_page_of_the_folder_is_in_the_site(pages: dict[Path, Tags]) -> None:
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {path.stem for path in pages}


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Tags]) -> None:
    assert len(pages) > 15
    loads = {(path, load) for path, tags in pages.items() for load in tags.loads}
    assert [(path.name, load) for path, load in loads if urlsplit(load).netloc] == []
    files = {(path, urlsplit(load).path) for path, load in loads}
    assert [file for path, file in files if file and not (path.parent / file).is_file()] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert "@import" not in styles and "url(http" not in styles and "url(//" not in styles


def test_every_link_inside_leads_to_a_page_and_a_place_on_it(pages: dict[Path, Tags]) -> None:
    assert [f"{path.name}: {link}" for path, link in _inside(pages) if not _leads(path, link, pages)] == []


def _inside(pages: dict[Path, Tags]) -> Iterator[tuple[Path, str]]:
    for path, tags in pages.items():
        yield from ((path, link) for link in tags.links if not urlsplit(link).scheme)


def _leads(path: Path, link: str, pages: dict[Path, Tags]) -> bool:
    parts = urlsplit(link)
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return False
    return not parts.fragment or target not in pages or unquote(parts.fragment) in pages[target].ids
