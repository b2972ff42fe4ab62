"""What every page has around its contents: the head, the way around, the foot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from urllib.parse import quote, urlencode

from evaluation.pages.style import MARK
from evaluation.report.pieces import document

HERE = {"Runs": "/", "How to read": "/about"}


def page(title: str, *parts: str, here: str = "", crumbs: Sequence[tuple[str, str]] = ()) -> str:
    """Return a page.

    Parameters
    ----------
    title : str
        Its heading, as text.
    *parts : str
        HTML below it.
    here : str
        Which of `HERE` it is.
    crumbs : sequence of (str, str)
        Words and addresses of the pages above it.
    """
    head = (
        f'<link rel="stylesheet" href="/style.css?v={MARK}">\n<link rel="icon" href="/icon.svg" type="image/svg+xml">'
    )
    body = [
        f'<header class="top"><a class="brand" href="/">Lethe</a><nav aria-label="Site">{_site(here)}</nav></header>',
        '<main id="main" tabindex="-1">',
        _crumbs(crumbs),
        f"<h1>{escape(title)}</h1>",
        *parts,
        "</main>",
        "<footer><p class=note>Lethe scores unlearned models against one that was really retrained. Research "
        'software: nothing here is for clinical use. <a href="/about">How to read these pages</a>.</p></footer>',
    ]
    return document(f"{title} · Lethe", head, body)


def link(address: str, text: str) -> str:
    """Return a link; both are escaped here."""
    return f'<a href="{escape(address)}">{escape(text)}</a>'


def address(*parts: str, **query: str | Sequence[str]) -> str:
    """Return an address on this server from its parts as they are called, whatever characters they have.

    >>> address("run", "a/b", "figures", v="1")
    '/run/a%2Fb/figures?v=1'
    """
    path = "/" + "/".join(quote(part, safe="") for part in parts)
    return f"{path}?{urlencode(query, doseq=True)}" if query else path


def downloads(files: Mapping[str, str]) -> str:
    """Return a list of files to have: words and addresses."""
    items = "".join(f'<li><a href="{escape(where)}" download>{escape(name)}</a></li>' for name, where in files.items())
    return f'<ul class="downloads" aria-label="Downloads">{items}</ul>'


def items(texts: Sequence[str]) -> str:
    """Return a list of texts."""
    return f'<ul class="plain">{"".join(f"<li>{escape(text)}</li>" for text in texts)}</ul>' if texts else ""


def _site(here: str) -> str:
    return "".join(
        f'<a href="{where}"{" aria-current=page" if name == here else ""}>{name}</a>' for name, where in HERE.items()
    )


def _crumbs(crumbs: Sequence[tuple[str, str]]) -> str:
    if not crumbs:
        return ""
    links = " / ".join(link(where, name) for name, where in crumbs)
    return f'<nav class="crumbs" aria-label="Above this page">{links}</nav>'
