"""Starts `lethe run` and `flwr run` as a person would, and looks at what they leave: weights, events, processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

from evaluation.catalogue import is_timed

CHECKOUT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LIMIT = 300.0

MANIFEST = """
small:
  dataset: digits
  cap: 30
  split: dirichlet
  sites: 3
  alpha: 1.0
  model: cnn
  rounds: 3
  local-epochs: 1
  batch-size: 16
  lr: 0.05
  requests: [client:site-1]
  methods: [ga, federaser, fedquit]
  preset: safe
  unlearn-epochs: 1
  recovery-rounds: 2
  recovery-epochs: 1
  device: cpu
  timeout: 120
lean: {extends: small, methods: [ga]}
batchnorm: {extends: lean, model: resnet18, cap: 6, batch-size: 8}
stops: {extends: lean, failure-policy: fail}
goes-on: {extends: lean, failure-policy: continue}
"""

HITCH = '''
"""A third-party distribution whose presence makes site-1 stall or raise in the second round of training."""

import os
import time

from clients import ops


def hitched(train):
    def run(site, call):
        if (site.name, call.op, call.config["round"]) == ("site-1", "train", 2):
            if os.environ["HITCH"] == "stall":
                time.sleep(600)
            raise ValueError("the scanner is\\nbroken")
        return train(site, call)

    return run


for op in ops.OPS:
    if op.name == "train":
        object.__setattr__(op, "run", hitched(op.run))
OPERATION = ops.Op("hitch", "query", ops.describe)
'''


class Command:
    """A command that runs in the background; its output is kept. Used in a ``with``, it does not outlive that."""

    def __init__(self, arguments: list[str], env: dict[str, str], log: Path, cwd: Path) -> None:
        self._out, self._err = log.with_suffix(".out"), log.with_suffix(".err")
        # the code of this checkout, whatever is installed
        code = os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(CHECKOUT))))
        plain = {k: v for k, v in os.environ.items() if not k.startswith(("FLWR_", "LETHE_", "RAY_", "PYTHONPATH"))}
        with self._out.open("w") as out, self._err.open("w") as err:
            self.process = subprocess.Popen(
                arguments,
                env={**plain, "OMP_NUM_THREADS": "1", **env, "PYTHONPATH": code},
                stdout=out,
                stderr=err,
                cwd=cwd,
            )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        """End the command if it still runs; its guard ends what it started."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
            self.process.wait()

    def __str__(self) -> str:
        return self.output + self.errors

    @property
    def output(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._err.read_text()

    def wait(self) -> int:
        return self.process.wait(LIMIT)


class Home:
    """One LETHE_HOME and the commands that run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "home"
        self.manifest = folder / "experiments.yaml"
        folder.mkdir(exist_ok=True)
        self.manifest.write_text(MANIFEST)

    def start(self, *arguments: str, out: str = "run", env: dict[str, str] | None = None) -> Command:
        """Start ``lethe run`` with the test's manifest."""
        command = [str(BIN / "lethe"), "run", *arguments, "--manifest", str(self.manifest)]
        places = ["--home", str(self.path), "--out", str(self.out(out))]
        return Command([*command, *places], env or {}, self.folder / out, self.folder)

    def run(self, *arguments: str, out: str = "run", env: dict[str, str] | None = None) -> Command:
        """Run it to its end."""
        with self.start(*arguments, out=out, env=env) as command:
            command.wait()
        return command

    def ask(self, *arguments: str, out: str = "run") -> Command:
        """Run a command about a run folder (`lethe resume`, `lethe stop`, ...) to its end."""
        command = [str(BIN / "lethe"), *arguments, str(self.out(out)), "--home", str(self.path)]
        with Command(command, {}, self.folder / arguments[0], self.folder) as asked:
            asked.wait()
        return asked

    def record(self, out: str = "run") -> dict[str, Any]:
        return dict(json.loads((self.out(out) / "run.json").read_text()))

    def out(self, name: str = "run") -> Path:
        return self.folder / f"{name}-folder"

    def weights(self) -> dict[str, str]:
        """Return the hash of the weights of every stage (of a table: nothing), by kind and key."""
        return stage_weights(self.path)

    def results(self, out: str = "run") -> pd.DataFrame:
        return untimed(self.out(out) / "results.csv")

    def events(self, out: str = "run") -> list[dict[str, Any]]:
        """Return the events of all groups, those of one group in their order."""
        files = sorted((self.out(out) / "events").glob("*.jsonl"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def history(self, kind: str = "train") -> list[Path]:
        return sorted((self.path / "stages" / kind).glob("*/history"))


def stage_weights(home: Path) -> dict[str, str]:
    """See `Home.weights`."""
    found = {}
    for file in (home / "stages").glob("*/*/stage.json"):
        found["/".join(file.parts[-3:-1])] = json.loads(file.read_text())["sha256"]
    return found


def untimed(path: Path) -> pd.DataFrame:
    """Return the rows of a results.csv whose values do not depend on the clock, as text and in their order."""
    table = pd.read_csv(path, keep_default_na=False, dtype=str)
    return table[~table["metric"].map(is_timed)].reset_index(drop=True)


Answer = tuple[str, int, str]


def replies(events: list[dict[str, Any]], label: str | None = None, round_: int | None = None) -> list[Answer]:
    """Return label, round and site of every answer in a recorded round that the events tell of."""
    return [
        (e["label"], e["round"], e["site"])
        for e in events
        if e["kind"] == "reply" and e["round"] and label in (None, e["label"]) and round_ in (None, e["round"])
    ]


def hitch(folder: Path, what: str, code: str = HITCH) -> dict[str, str]:
    """Install a distribution, by default `HITCH`, by path alone; return the environment in which it is there."""
    info = folder / "hitch-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hitch\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lethe.operations]\nhitch = hitch:OPERATION\n")
    (folder / "hitch.py").write_text(code)
    return {"PYTHONPATH": str(folder), "HITCH": what}


def wait_for(condition: Callable[[], bool], limit: float, told_by: object) -> None:
    """Wait until `condition` holds; after `limit` seconds, fail with what `told_by` says then."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, f"waited {limit:.0f} s: {told_by}"
        time.sleep(0.05)


class Traces:
    """Everything a command holds while it runs: processes, ports, shared memory, Ray's folder."""

    def __init__(self, pid: int) -> None:
        self.processes = psutil.Process(pid).children(recursive=True)
        self.ports, self.shared, self.folders = set(), set(), set()
        for process in self.processes:
            with contextlib.suppress(psutil.Error):
                self.ports |= {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
                self.shared |= {Path(m.path) for m in process.memory_maps() if m.path.startswith("/dev/shm/")}
                self.shared |= {Path(f.path) for f in process.open_files() if f.path.startswith("/dev/shm/")}
                self.folders |= {
                    Path(f) for name, f in process.environ().items() if name in ("RAY_TMPDIR", "FLWR_HOME")
                }

    def __str__(self) -> str:
        return ", ".join(self.left())

    def left(self) -> list[str]:
        """Return what is still there."""
        listening = {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        names = [f"process {p.pid} {p.name()}" for p in self.processes if lives(p)]
        names += [f"port {port}" for port in self.ports & listening]
        return names + [str(path) for path in self.shared | self.folders if path.exists()]


def lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@contextlib.contextmanager
def flower_ended(flower_home: Path) -> Iterator[None]:
    """End afterwards, by process id, what works with this FLWR_HOME: the SuperLink that `flwr run` leaves running."""
    try:
        yield
    finally:
        ours = [process for process in psutil.process_iter() if _flower_home(process) == str(flower_home)]
        for process in ours:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        for process in psutil.wait_procs(ours, timeout=10)[1]:
            with contextlib.suppress(psutil.Error):
                process.kill()


def _flower_home(process: psutil.Process) -> str:
    try:
        return str(process.environ().get("FLWR_HOME", ""))
    except (psutil.Error, OSError):
        return ""
