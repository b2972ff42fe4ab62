"""Facts about signals that end a command: a terminal that is closed is no failure."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

from evaluation.runs import read_record

COMMAND = """
import sys, time
from pathlib import Path
from flower_apps.lifetime import Lifetime
from flower_apps.progress import Progress
from flower_apps.runs import RunFolder
from flower_apps.settings import GroupSettings

try:
    with Lifetime(RunFolder(Path(sys.argv[1])), {"via": "lethe run"}, [GroupSettings()]), Progress() as progress:
        progress.say("at work")
        time.sleep(600)
except KeyboardInterrupt:
    print("nothing is lost", file=sys.stderr)
    sys.exit(130)
"""


def test_a_run_whose_terminal_is_closed_was_stopped_and_did_not_fail(tmp_path: Path) -> None:
    ours, its = pty.openpty()
    process = subprocess.Popen([sys.executable, "-c", COMMAND, str(tmp_path)], stdin=its, stdout=its, stderr=its)
    os.close(its)
    said = b""
    while b"at work" not in said:
        said += os.read(ours, 1000)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 130
    record = read_record(tmp_path)
    assert (record["status"], record["exit_code"]) == ("stopped", 130)


def test_what_goes_to_a_file_is_still_said(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w") as said:
        command = [sys.executable, "-u", "-c", COMMAND, str(tmp_path / "run")]
        process = subprocess.Popen(command, stdout=said, stderr=said)
        while "at work" not in (tmp_path / "said").read_text():
            assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        assert process.wait(30) == 130
    assert "nothing is lost" in (tmp_path / "said").read_text()
