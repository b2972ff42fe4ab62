"""Which cells a group has: its requests, the methods that run on each, and what it leaves out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partitions.errors import BadInput, unknown_name
from partitions.requests import parse_request

if TYPE_CHECKING:
    from flower_apps.settings import GroupSettings

ORIGINAL, GOLD = "original", "retrain"
CONTROL = "fine-tuning"
"""The arm every table has: recovery alone, without a forgetting step (METHODS 5)."""
ALWAYS = (ORIGINAL, GOLD, CONTROL)
"""What every request has, whatever the methods: the others are read against them."""
EXCLUDE_FORM = 'a JSON list of objects, such as [{"method": "ga", "request": ["class:5"]}]'


@dataclass(frozen=True)
class Exclusion:
    """Cells that a group leaves out: those of some methods on some requests.

    Attributes
    ----------
    methods, requests : tuple of str
        Names and texts; none: every one. Not both are empty.
    """

    methods: tuple[str, ...] = ()
    requests: tuple[str, ...] = ()

    @classmethod
    def read(cls, entry: Any) -> Exclusion:
        """Read ``{"method": ..., "request": ...}``, each a text or a list of texts; raises `ValueError`."""
        if not isinstance(entry, dict) or not entry or set(entry) - {"method", "request"}:
            raise ValueError("an entry has method, request or both")
        methods, requests = (_texts(entry[key]) if key in entry else () for key in ("method", "request"))
        return cls(methods, tuple(dict.fromkeys(map(normal, requests))))

    def to_json(self) -> dict[str, list[str]]:
        """Return what `read` reads."""
        parts = {"method": list(self.methods), "request": list(self.requests)}
        return {key: values for key, values in parts.items() if values}

    def covers(self, method: str, request: str) -> bool:
        """Tell whether it leaves out a method on a request, the request in its normal form."""
        return (not self.methods or method in self.methods) and (not self.requests or request in self.requests)


def read_exclusions(text: str) -> list[Exclusion]:
    """Read the setting ``exclude``, in JSON; empty text has none. Raises `BadInput` when it is anything else."""
    if not text:
        return []
    try:
        entries = json.loads(text)
        if not isinstance(entries, list):
            raise ValueError("it is no list")
        return [Exclusion.read(entry) for entry in entries]
    except (ValueError, RecursionError) as error:
        raise BadInput("exclude", text, EXCLUDE_FORM, str(error)) from None


def write_exclusions(exclusions: Iterable[Exclusion]) -> str:
    """Return exclusions as the setting's text, equal ones once."""
    entries = [exclusion.to_json() for exclusion in dict.fromkeys(exclusions)]
    return json.dumps(entries, ensure_ascii=False) if entries else ""


def normal(request: str) -> str:
    """Return a request, or a sequence of them, in its one normal form."""
    return parse_request(request).text


def run_methods(settings: GroupSettings) -> list[str]:
    """Return the methods of a group; the control arm is always one, gold is no method."""
    return [CONTROL, *(name for name in settings.method_names() if name not in (GOLD, CONTROL))]


def methods_by_request(settings: GroupSettings) -> dict[str, list[str]]:
    """Return the methods that run on each request of a group; a request that is left out is not there.

    Requests are as written, a sequence one text: what is left out of a sequence is left out at each of its steps.

    Raises
    ------
    BadInput
        When ``exclude`` names what the group has not, or what every table has, or leaves nothing.
    """
    methods, exclusions = run_methods(settings), settings.exclusions()
    if not exclusions:
        return dict.fromkeys(settings.request_texts(), methods)
    requests = {request: normal(request) for request in settings.request_texts()}
    _check(exclusions, methods, requests.values())
    left = {
        request: [name for name in methods if not any(one.covers(name, text) for one in exclusions)]
        for request, text in requests.items()
        if not any(not one.methods and text in one.requests for one in exclusions)
    }
    asked = {name for name in methods if name != CONTROL}
    if not (any(asked & set(names) for names in left.values()) if asked else left):
        allowed = "exclusions that leave a method on a request"
        raise BadInput("exclude", settings.exclude, allowed, "leave out the experiment instead")
    return left


def cells_of(settings: GroupSettings) -> list[tuple[str, str, int]]:
    """Return request, method and unlearning seed of every cell that a group writes, those a method cannot do included.

    A sequence of requests has cells for each of its steps; evaluation seeds are rows of a cell.
    """
    cells: dict[tuple[str, str, int], None] = {}
    for sequence, methods in methods_by_request(settings).items():
        for seed in settings.seeds("unlearn"):
            for step in parse_request(sequence).prefixes():
                cells |= dict.fromkeys((step.text, method, seed) for method in (ORIGINAL, GOLD, *methods))
    return list(cells)


def _check(exclusions: Iterable[Exclusion], methods: Iterable[str], requests: Iterable[str]) -> None:
    for exclusion in exclusions:
        for name in exclusion.methods:
            check_excludable(name, "exclude: method")
            if name not in methods:
                raise unknown_name("exclude: method", name, set(methods) - set(ALWAYS))
        for text in exclusion.requests:
            if text not in requests:
                raise unknown_name("exclude: request", text, requests)


def check_excludable(method: str, key: str) -> None:
    """Refuse to leave out what the others are read against."""
    if method in ALWAYS:
        allowed = f"a method other than {', '.join(ALWAYS)}"
        raise BadInput(key, method, allowed, "every table has these: the others are read against them")


def _texts(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(one, str) and one.strip() for one in values):
        raise ValueError("method and request are a text each, or a list of texts")
    return tuple(dict.fromkeys(one.strip() for one in values))
