"""The page of troubles has a row for every message that the code can show, and no row for one that it cannot."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from messages import VARYING, Message, messages

PAGE = Path(__file__).resolve().parent.parent / "docs" / "troubleshoot.md"
QUOTE = re.compile(r"(?:^\| |<br>)`([^`]+)`")
"""A message where a row begins, or on a line of its own in the first cell."""


@cache
def quotes() -> tuple[str, ...]:
    """Return what the first column of the page's tables quotes; exit codes and headings quote nothing."""
    cells = [line.split(" | ")[0] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return tuple(quote for cell in cells for quote in QUOTE.findall(cell))


@cache
def told() -> tuple[Message, ...]:
    return tuple(messages())


def pattern(quote: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in quote.split(VARYING)))


def test_every_message_of_the_code_has_a_row() -> None:
    known = [pattern(quote) for quote in quotes()]
    missing = [m for m in told() if not any(one.match(m.text) for one in known)]
    assert missing == [], "add to docs/troubleshoot.md:\n" + "\n".join(f"| `{m.text}` | ({m.where}) |" for m in missing)


def test_every_row_is_of_a_message_of_the_code() -> None:
    texts = [message.text for message in told()]
    assert [quote for quote in quotes() if not any(pattern(quote).match(text) for text in texts)] == []


def test_no_row_takes_every_message() -> None:
    assert all(len(re.findall(r"\w", quote.replace("allowed is", ""))) >= 3 for quote in quotes())
    assert not any(pattern(quote).match(f"no-such-key={VARYING}: allowed is nothing of the kind") for quote in quotes())
