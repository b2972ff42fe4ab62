"""What `lethe clean` prints: a line for each kind of leftover, with how many there are and what they free."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from flower_apps.clean import Stale

FEW = 3
"""Leftovers of a kind up to which each is named."""


def stale_table(found: Sequence[Stale], gone: Sequence[Stale], home: Path, *, removed: bool) -> Group:
    """Return what is stale, or with `removed` what went, as a table with its sum below; without what frees nothing."""
    found, gone = [one for one in found if _tells(one)], [one for one in gone if _tells(one)]
    listed = gone if removed else found
    table = Table(box=None, pad_edge=False)
    table.add_column("what", no_wrap=True)
    table.add_column("why", overflow="fold")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("freed" if removed else "frees", justify="right", no_wrap=True)
    for what, why in dict.fromkeys((one.what, one.why) for one in listed):
        these = [one for one in listed if (one.what, one.why) == (what, why)]
        named = (
            "".join(f"\n  {escape(_short(one.called))}" for one in these) if what == "run" or len(these) <= FEW else ""
        )
        table.add_row(what, escape(why) + named, str(len(these)), size_in_words(sum(one.size for one in these)))
    total = size_in_words(sum(one.size for one in listed))
    if removed and found:
        kept = len(found) - len(gone)
        said = f"{total} freed below {home}" + (f"; {kept} kept: in use, or gone already" if kept else "")
    elif listed:
        free = size_in_words(shutil.disk_usage(home).free)
        said = f"{total} below {home}, where {free} are free; --yes removes it"
    else:
        said = f"nothing to clean below {home}"
    return Group(*([table] if listed else []), Text(said))


def _tells(one: Stale) -> bool:
    return one.size > 0 or one.what == "run"


def _short(name: str) -> str:
    """Return a name with the first eight digits of every hash in it."""
    return re.sub(r"([0-9a-f]{8})[0-9a-f]{16,}", r"\1", name)


def size_in_words(size: float) -> str:
    """Return bytes as a person reads them: ``12 kB``, ``3.4 GB``."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"
