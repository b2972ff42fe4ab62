"""The run's event file: one JSON object a line, flushed, so that a run can be watched and traced."""

from __future__ import annotations

import json
import math
import threading
import time
from pathlib import Path
from typing import Any


class EventSink:
    """Appends events to a file, or drops them when there is none.

    Kinds and their fields: ``run-started``, ``task`` {metric}, ``stage-started`` {stage, label, rounds, round},
    ``round-started`` {stage, label, round, rounds}, ``reply`` {stage, label, round, site, seconds},
    ``round-finished`` {stage, label, round, rounds, loss, metric, seconds, client_seconds, examples, bytes_down,
    bytes_up}, ``stage-finished`` {stage, label, status; of scores key}, ``stage-cached`` {stage, label, key},
    ``claimed`` {stage, name, key} before a model is computed (``name`` is its label, ``key`` that of the cache),
    ``note`` {text}, ``failed`` {reason}, ``finished``. Each has ``kind`` and ``time`` (Unix seconds).

    Parameters
    ----------
    path : Path or None
        The file; its folder is made.
    """

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")

    def emit(self, kind: str, **fields: Any) -> None:
        """Append one event; a float that is not finite becomes null."""
        if self._file is None:
            return
        plain = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in fields.items()
        }
        line = json.dumps({"kind": kind, "time": time.time(), **plain}, default=str)
        with self._lock:
            self._file.write(line + "\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
