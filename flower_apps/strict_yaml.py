"""YAML as people mean it: the YAML 1.2 core scalars, no key twice, every mistake one line with file and line."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from partitions.errors import BadInput

MOST_DIGITS = 300
"""Of a whole number; one of more may be larger than every float."""
_SCALARS = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("tag:yaml.org,2002:merge", r"<<", ["<"]),
)


class _Loader(yaml.SafeLoader):
    """PyYAML with the scalars of YAML 1.2.

    YAML 1.1, PyYAML's own, reads ``1e-4`` as text, ``yes``, ``no``, ``on`` and ``off`` as booleans, ``012`` as ten and
    ``1:30`` as ninety. Here they are a float, text (a key that takes true or false still understands ``yes``), twelve
    and text.
    """

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML keeps one table per class

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that is written twice or is not text, then build the mapping."""
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                raise _Refused(key, "a list or a mapping as key", "keys that are text")
            if key.value in lines:
                raise _Refused(key, key.value, "each key once", f"it is on line {lines[key.value]} already")
            lines[key.value] = line
        return {str(key): value for key, value in super().construct_mapping(node, deep).items()}


class _Refused(Exception):
    """A node that is YAML but not accepted."""

    def __init__(self, node: Node, value: str, allowed: str, remedy: str = "") -> None:
        super().__init__(value)
        self.line, self.value, self.allowed, self.remedy = node.start_mark.line + 1, value, allowed, remedy


def _construct_int(loader: _Loader, node: ScalarNode) -> int:
    if len(node.value) > MOST_DIGITS:
        raise _Refused(node, node.value, f"a whole number of up to {MOST_DIGITS} digits")
    return int(node.value, 10)


def _construct_float(loader: _Loader, node: ScalarNode) -> float:
    """Refuse what would silently become 0, lose digits or become infinite, then read the number."""
    value = float(loader.construct_yaml_float(node))
    if node.value[-3:].lower() in ("inf", "nan"):
        return value
    size, digits = abs(value), node.value.lower().partition("e")[0]
    if size > sys.float_info.max or (size < sys.float_info.min and re.search("[1-9]", digits)):
        least, most = sys.float_info.min, sys.float_info.max
        raise _Refused(node, node.value, f"0, or a number of {least:.3g} to {most:.3g} in size")
    return value


def _construct_mapping(loader: _Loader, node: MappingNode) -> dict[Any, Any]:
    return loader.construct_mapping(node, deep=True)


def _construct_sequence(loader: _Loader, node: SequenceNode) -> list[Any]:
    return loader.construct_sequence(node, deep=True)


for _tag, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Loader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
_Loader.add_constructor("tag:yaml.org,2002:seq", _construct_sequence)


def read_yaml(text: str, where: str) -> Any:
    """Read one YAML document.

    Parameters
    ----------
    text : str
        The document.
    where : str
        What the text is, for errors: a path or a flag.

    Returns
    -------
    object
        Mappings with text keys, lists, str, int, float, bool or None; None for an empty document.

    Raises
    ------
    BadInput
        Naming `where` and the line: not YAML, a key twice, a key that is not text, a tag.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader: builds plain values only
    except _Refused as error:
        raise BadInput(f"{where}:{error.line}", error.value, error.allowed, error.remedy) from None
    except RecursionError:
        raise BadInput(where, text[:20] + "...", "YAML that is not nested this deep") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = f":{mark.line + 1}" if mark else ""
        shown = text.splitlines()[mark.line].strip() if mark and mark.line < len(text.splitlines()) else ""
        remedy = "indent with spaces" if "\\t" in str(problem) else "quote text that has a ':' or '#' in it"
        raise BadInput(f"{where}{line}", shown, f"YAML ({problem})", remedy) from None


def read_yaml_file(path: Path) -> Any:
    """Read the YAML file at `path` (errors as in `read_yaml`, and when it cannot be read as UTF-8 text)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput("file", str(path), "a YAML file in UTF-8", str(error)) from None
    return read_yaml(text, path.name)


def in_one_line(value: Any) -> str:
    """Return a value as YAML on one line, mappings in the order written."""
    return yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6).strip()
