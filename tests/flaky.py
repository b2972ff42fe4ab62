"""A file system in memory that fails when it is told to, as ``flaky://``."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

CALLS = ("cat_file", "get_file", "put_file", "pipe_file")


class Flaky(MemoryFileSystem):
    """Counts its calls; one of a kind in `failing` raises at the number given there and ever after."""

    protocol = "flaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    calls: ClassVar[Counter[str]] = Counter()
    failing: ClassVar[dict[str, int]] = {}
    raised: ClassVar[BaseException] = ConnectionError("the line is down")

    @classmethod
    def renew(cls) -> None:
        """Forget all files, calls and failures."""
        cls.store.clear()
        cls.calls.clear()
        cls.failing.clear()
        cls.pseudo_dirs[:] = [""]
        cls.raised = ConnectionError("the line is down")

    @classmethod
    def fail(cls, call: str, at: int = 1, raised: BaseException | None = None) -> None:
        """Let the `at`-th call of a kind from now on fail, and all after it."""
        cls.failing[call] = cls.calls[call] + at
        cls.raised = raised or cls.raised

    @classmethod
    def mend(cls) -> None:
        """Let nothing fail any more."""
        cls.failing.clear()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).removeprefix("flaky:/")))

    def _count(self, call: str) -> None:
        self.calls[call] += 1
        if self.calls[call] >= self.failing.get(call, self.calls[call] + 1):
            raise self.raised

    def cat_file(self, *arguments: Any, **more: Any) -> Any:
        self._count("cat_file")
        return super().cat_file(*arguments, **more)

    def get_file(self, *arguments: Any, **more: Any) -> Any:
        self._count("get_file")
        return super().get_file(*arguments, **more)

    def put_file(self, *arguments: Any, **more: Any) -> Any:
        self._count("put_file")
        return super().put_file(*arguments, **more)

    def pipe_file(self, *arguments: Any, **more: Any) -> Any:
        self._count("pipe_file")
        return super().pipe_file(*arguments, **more)


fsspec.register_implementation("flaky", Flaky, clobber=True)
