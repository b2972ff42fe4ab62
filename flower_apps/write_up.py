"""Writes a run's report where its command or a person wants it, and shows how far it is."""

from __future__ import annotations

from pathlib import Path

from flower_apps.progress import Progress

REPORT = "report"
"""Where a run's own report lies, below the run folder."""


def write_up(run: Path, target: Path) -> None:
    """Write the report of a run; see `evaluation.report.write.write_report`."""
    with Progress() as progress:
        progress.now("writing the report")
        from evaluation.report.write import write_report  # matplotlib takes a second

        write_report(run, target, lambda text: progress.now(f"writing the report: {text}"))
