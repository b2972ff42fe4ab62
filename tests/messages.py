"""The messages that a person can be shown, read from the source: what the code raises, with … for what varies."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("clients", "evaluation", "flower_apps", "partitions", "strategies", "unlearning")
VARYING = "…"
TEXT_AT = {"RunFailed": 0, "Refused": 0, "SiteLost": 0, "_fail": 0, "Ending": 1}
"""Where, among its arguments, a call that makes an error of one text has it."""
MAKERS = {"BadInput", "unknown_name", *TEXT_AT}
LEAST = 4
"""Letters that a message must fix to be told from others; fewer are those of a message made elsewhere."""


@dataclass(frozen=True)
class Message:
    """A message as a person reads it: ``key=…: allowed is …; …`` of bad input, the text of a failed run."""

    text: str
    where: str

    @property
    def fixed(self) -> int:
        """How many letters do not vary."""
        return len(re.findall(r"\w", self.text.replace("allowed is", "").replace("one of", "")))


def messages() -> list[Message]:
    """Return the messages of all rooms that say something of their own."""
    found = [
        message
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if path != ROOT / "partitions" / "errors.py"
        for message in _messages_of(path)
    ]
    return [message for message in found if message.fixed >= LEAST]


def _messages_of(path: Path) -> Iterator[Message]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    scopes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {id(node): scope for scope in scopes for node in ast.walk(scope)}  # the innermost comes last
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in MAKERS:
            scope = inner.get(id(call))
            names = _texts(tree.body, call.lineno) | (_texts(ast.walk(scope), call.lineno) if scope else {})
            text = _message(call.func.id, [_text(argument, names) for argument in call.args])
            if text is not None:
                yield Message(text, f"{path.relative_to(ROOT)}:{call.lineno}")


def _message(name: str, parts: list[str]) -> str | None:
    if name == "BadInput" and len(parts) > 2:
        return "; ".join([f"{parts[0]}={VARYING}: allowed is {parts[2]}", *parts[3:]])
    if name == "unknown_name":
        return f"{parts[0]}={VARYING}: allowed is one of {VARYING}"
    at = TEXT_AT.get(name)
    return None if at is None or at >= len(parts) else parts[at]


def _texts(nodes: Iterable[ast.AST], before: int) -> dict[str, str]:
    """Return the texts that names were last bound to in the lines before one."""
    bound = [node for node in nodes if isinstance(node, ast.Assign) and node.lineno < before]
    return {
        node.targets[0].id: _text(node.value, {})
        for node in sorted(bound, key=lambda node: node.lineno)
        if isinstance(node.targets[0], ast.Name)
    }


def _text(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return a text as it stands, what a name stands for, and everything else as `VARYING`."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, {}) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, names) + _text(node.right, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("replace", "strip"):
        return _text(node.func.value, names)
    return names.get(node.id, VARYING) if isinstance(node, ast.Name) else VARYING
