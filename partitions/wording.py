"""What a setting takes, in words, from the pydantic field that declares it."""

from __future__ import annotations

from collections.abc import Sequence
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

KINDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def allowed_in_words(field: FieldInfo) -> str:
    """Return what a field takes, for example ``"a number above 0 to 1"`` or ``"one of sgd, adam"``."""
    return " or ".join(_kinds(field.annotation)) + _range(field.metadata)


def _kinds(annotation: Any) -> list[str]:
    if get_origin(annotation) is Literal:
        return ["one of " + ", ".join(str(choice) for choice in get_args(annotation))]
    if get_origin(annotation) in (Union, UnionType):
        return [kind for part in get_args(annotation) for kind in _kinds(part)]
    if annotation is type(None):
        return ["nothing"]
    return [KINDS.get(annotation, "text")]


def _range(metadata: Sequence[Any]) -> str:
    words = {"ge": "from {:g}", "gt": "above {:g}", "le": "to {:g}", "lt": "to below {:g}"}
    bounds = [text.format(getattr(m, kind)) for kind, text in words.items() for m in metadata if hasattr(m, kind)]
    if len(bounds) == 1 and bounds[0].startswith("from"):
        bounds.append("up")
    return "".join(f" {bound}" for bound in bounds)
