"""Metrics, attacks, statistics, reports and reading runs back. No training, no images.

``from evaluation import open_run`` opens a run folder; it is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evaluation.runs import open_run as open_run

__all__ = ["open_run"]


def __getattr__(name: str) -> Any:
    if name == "open_run":
        from evaluation.runs import open_run

        return open_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
