"""A server whose workers take their time, and tell a file when they begin: to be killed in mid-scoring."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from evaluation.service.serve import Server
from evaluation.service.store import sqlite_url
from evaluation.submission import Submission

_rows = Submission.rows


def slow_rows(submission: Submission) -> list[dict[str, Any]]:
    with Path(os.environ["MARK"]).open("a") as mark:
        mark.write(f"{os.getpid()} {submission.model.method}\n")
    time.sleep(float(os.environ["SLOW"]))
    return _rows(submission)


Submission.rows = slow_rows  # type: ignore[method-assign]

if __name__ == "__main__":  # the workers import this module too
    folder = Path(sys.argv[1])
    url = os.environ.get("STORE") or sqlite_url(folder / "evaluator.sqlite")
    Server("127.0.0.1", int(sys.argv[2]), url, folder, "", 64, int(sys.argv[3]), lease=2.0).run(print)
